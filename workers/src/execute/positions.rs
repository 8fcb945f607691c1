//! Rotation of q and k by their positions.

use kernels::{Element, HeadSpan, Kernels, Number, RopeTables};
use model::config::ModelConfig;
use model::ops::{Kv, Op, Value};
use model::rope::AttentionTemperature;
use program::ir::Compute;

use super::indexed;
use super::operands::Operands;
use crate::rope_tables::{has_table_per_sequence, tables_by_kind};
use crate::work_items::{SequenceRows, sequences};

/// Positions and rotary tables of the rows of an instruction.
#[derive(Debug)]
pub(super) struct Positions {
    /// Tables of each kind of layer.
    kinds: Vec<Vec<f32>>,
    /// Position of each row.
    row_positions: Vec<u32>,
    table_of_row: Vec<u32>,
    /// `[sequences, rotary_dim / 2]`, used if each sequence has a table of its own.
    own_tables: Vec<f32>,
}

impl Positions {
    /// Allocates for up to `rows` rows of `sequences` sequences.
    pub(super) fn new(config: &ModelConfig, rows: usize, sequences: usize) -> Positions {
        let mut ropes = config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
        let own_len = if ropes.any(has_table_per_sequence) {
            sequences * config.max_of_layers(|model| model.head_dim) / 2
        } else {
            0
        };
        Positions {
            kinds: tables_by_kind(config),
            row_positions: Vec::with_capacity(rows),
            table_of_row: Vec::with_capacity(rows),
            own_tables: Vec::with_capacity(own_len),
        }
    }

    /// Lists and returns the positions of all rows.
    pub(super) fn list(&mut self, operands: &Operands<'_>, compute: &Compute) -> &[u32] {
        self.row_positions.clear();
        for SequenceRows { item, .. } in sequences(operands.table, operands.program, compute.at) {
            let first = item.first as u32;
            self.row_positions.extend(first..first + item.rows as u32);
        }
        &self.row_positions
    }

    /// Returns the rotary tables of an instruction's rows, whose positions are listed; `None` if
    /// the layer does not rotate.
    fn prepare(
        &mut self,
        operands: &Operands<'_>,
        compute: &Compute,
    ) -> Option<(RopeTables<'_>, &[u32])> {
        let config = operands.config;
        let layer = compute.at.layer.map_or(0, usize::from);
        let kind = operands.plan.config.layers.kind_index(layer);
        let rope = config.layers.kind(layer).rope.as_ref()?;
        self.list(operands, compute);
        let has_own_tables = has_table_per_sequence(rope);
        if rope.depends_on_length() {
            self.table_of_row.clear();
            self.own_tables.clear();
            let batch = usize::from(compute.at.batch);
            let all = sequences(operands.table, operands.program, compute.at);
            for (index, SequenceRows { item, .. }) in (0..).zip(all) {
                let length = operands.table.length(batch, item.slot);
                let table = if has_own_tables { index } else { rope.frequency_class(length) };
                self.table_of_row.extend(std::iter::repeat_n(table, item.rows));
                if has_own_tables {
                    let before = self.own_tables.len();
                    self.own_tables.resize(before + rope.rotary_dim(config.head_dim) / 2, 0.0);
                    let table = &mut self.own_tables[before..];
                    rope.fill_inverse_frequencies(config.head_dim, length, table);
                }
            }
        }
        let tables = RopeTables {
            inverse_frequencies: if has_own_tables { &self.own_tables } else { &self.kinds[kind] },
            rotary_dim: rope.rotary_dim(config.head_dim),
            attention_factor: rope.attention_factor(),
            table_of_row: rope.depends_on_length().then_some(&self.table_of_row),
        };
        Some((tables, &self.row_positions))
    }

    /// Runs `Unrotate`.
    pub(super) fn unrotate<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let config = operands.config;
        let Some((tables, positions)) = self.prepare(operands, compute) else {
            panic!("layers whose values are rotated have a rope");
        };
        let x = operands.rows::<T>(compute.inputs[0], Value::Attended, rows);
        let out = operands.output::<T>(compute, rows);
        let heads = [config.num_heads, config.head_dim];
        kernels.unrotate(heads, positions, &tables, x, out);
    }

    /// Returns the rotary tables of a layer in which all sequences have the same; `None` if the
    /// layer does not rotate.
    pub(super) fn tables(
        &self,
        operands: &Operands<'_>,
        compute: &Compute,
    ) -> Option<RopeTables<'_>> {
        let config = operands.config;
        let layer = compute.at.layer.map_or(0, usize::from);
        let kind = operands.plan.config.layers.kind_index(layer);
        let rope = config.layers.kind(layer).rope.as_ref()?;
        Some(RopeTables {
            inverse_frequencies: &self.kinds[kind],
            rotary_dim: rope.rotary_dim(config.head_dim),
            attention_factor: rope.attention_factor(),
            table_of_row: None,
        })
    }

    /// Rotates `rows` rows of q or k, if the layer does.
    pub(super) fn rotate<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let config = operands.config;
        let layer = compute.at.layer.map_or(0, usize::from);
        let Some((tables, positions)) = self.prepare(operands, compute) else { return };
        let (heads, head_dim) = match (compute.op, &config.latent, config.own_indexer()) {
            (Op::Q, Some(latent), _) => (config.num_heads, latent.query_dim()),
            (Op::Q, None, _) => (config.num_heads, config.head_dim),
            (Op::IndexQuery, _, Some(indexer)) => (indexer.heads, indexer.head_dim),
            _ => (config.num_kv_heads, config.head_dim),
        };
        let out = operands.output::<T>(compute, rows);
        if compute.op == Op::K && config.compression().is_some() {
            // Values and gates follow, which are rotated when they are compressed.
            let span = HeadSpan { width: config.cache_size(Kv::K), first: 0 };
            kernels.rope_of_span(rows, span, [heads, head_dim], positions, &tables, out);
            return;
        }
        kernels.rope(rows, heads, head_dim, positions, &tables, out);
        if let (Op::K, Some(indexer)) = (compute.op, config.own_indexer()) {
            let key = [1, indexer.head_dim];
            let span = indexed::key_span(config);
            kernels.rope_of_span(rows, span, key, positions, &tables, out);
        }
        let rope = config.layers.kind(layer).rope.as_ref();
        let temperature = rope.and_then(|rope| rope.temperature);
        if let Some(temperature) = temperature.filter(|_| compute.op == Op::Q) {
            scale_queries(temperature, positions, heads * head_dim, out);
        }
    }
}

/// Multiplies each query by the factor of its position. `out` is `[positions, row_elements]`.
fn scale_queries<T: Number>(
    temperature: AttentionTemperature,
    positions: &[u32],
    row_elements: usize,
    out: &mut [T],
) {
    for (row, position) in out.chunks_exact_mut(row_elements).zip(positions) {
        let factor = temperature.factor(*position);
        if factor != 1.0 {
            row.iter_mut().for_each(|element| *element = T::from_f32(element.to_f32() * factor));
        }
    }
}
