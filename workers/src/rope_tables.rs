//! Inverse frequencies of rotary positions: for each kind of layer, the consecutive tables of all
//! classes of sequences.

use model::config::ModelConfig;
use model::layers::LayerKind;
use model::rope::{Rope, RopeScaling, SequenceLength};

/// Returns `[tables, rotary_dim / 2]` for each kind of layer: one table, or two from which a
/// sequence's length selects; empty if nothing is rotated.
pub(crate) fn tables_by_kind(config: &ModelConfig) -> Vec<Vec<f32>> {
    let tables = |(kind, model): (&LayerKind, &ModelConfig)| {
        let rope = kind.rope.as_ref();
        rope.map_or_else(Vec::new, |rope| tables_of_rope(rope, model.head_dim))
    };
    config.layers.kinds().iter().zip(config.kind_models()).map(tables).collect()
}

/// Returns the number of tables of a kind of layer that are created once.
pub(crate) fn table_count(rope: &Rope) -> usize {
    if matches!(rope.scaling, RopeScaling::Longrope { .. }) { 2 } else { 1 }
}

fn tables_of_rope(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let mut frequencies = rope.inverse_frequencies(head_dim);
    if let RopeScaling::Longrope { original_max_positions, .. } = rope.scaling {
        let long = SequenceLength(original_max_positions.saturating_add(1));
        frequencies.extend(rope.inverse_frequencies_for(head_dim, long));
    }
    frequencies
}

/// Returns true if each length of a sequence has its own frequencies, so that they cannot be
/// tabulated.
pub(crate) fn has_table_per_sequence(rope: &Rope) -> bool {
    matches!(rope.scaling, RopeScaling::Dynamic { .. })
}
