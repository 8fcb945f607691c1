//! Inverse frequencies of rotary positions: for each kind of layer the tables of all classes of
//! sequences, side by side.

use model::config::ModelConfig;
use model::layers::LayerKind;
use model::rope::{Rope, RopeScaling, SequenceLength};

/// The tables of a kind of layer.
#[derive(Debug)]
pub(crate) struct KindTables {
    /// `[tables, rotary_dim / 2]`: one, or two that are chosen by a sequence's length.
    pub(crate) frequencies: Vec<f32>,
    /// Elements of a head that are rotated.
    pub(crate) rotary_dim: usize,
    /// Factor of sines and cosines.
    pub(crate) attention_factor: f32,
    /// Whether a sequence's length decides its frequencies.
    pub(crate) by_length: bool,
}

/// Those of all kinds, by their place; `None` where nothing is rotated.
pub(crate) fn of_kinds(config: &ModelConfig) -> Vec<Option<KindTables>> {
    let of = |kind: &LayerKind| Some(of_rope(kind.rope.as_ref()?, config.head_dim));
    config.layers.kinds().iter().map(of).collect()
}

/// How many tables a kind of layer has that are made once.
pub(crate) fn count(rope: &Rope) -> usize {
    if matches!(rope.scaling, RopeScaling::Longrope { .. }) { 2 } else { 1 }
}

fn of_rope(rope: &Rope, head_dim: usize) -> KindTables {
    let mut frequencies = rope.inverse_frequencies(head_dim);
    if let RopeScaling::Longrope { original_max_positions, .. } = rope.scaling {
        let long = SequenceLength(original_max_positions.saturating_add(1));
        frequencies.extend(rope.inverse_frequencies_for(head_dim, long));
    }
    KindTables {
        frequencies,
        rotary_dim: rope.rotary_dim(head_dim),
        attention_factor: rope.attention_factor(),
        by_length: rope.is_by_length(),
    }
}

/// Whether each length of a sequence has frequencies of its own, so that no tables hold them all.
pub(crate) fn has_a_table_each(rope: &Rope) -> bool {
    matches!(rope.scaling, RopeScaling::Dynamic { .. })
}
