//! Device list of a stream's rows, and the rotary tables that they use.
//!
//! Tables that are created once are stored consecutively in the scratch, kind by kind of layer. If
//! the table depends on a sequence's length, the list specifies the table of each row, and contains
//! the tables themselves if every sequence may need its own.

use cuda_kernels::{DevicePointer, DeviceRopeTables};
use model::config::ModelConfig;
use model::rope::{Rope, SequenceLength};
use program::ir::ProgramShape;

use crate::rope_tables::{has_table_per_sequence, table_count, tables_by_kind};
use crate::work_items::SequenceRows;

/// Size of a position, an index and a frequency, in bytes.
const WORD_BYTES: usize = 4;

/// Returns the tables that are created once, of all kinds of layers.
pub(super) fn frequencies(config: &ModelConfig) -> Vec<f32> {
    tables_by_kind(config).concat()
}

/// Returns the size of the tables that are created once, of the first `kinds` kinds of layers, in
/// bytes.
pub(super) fn frequencies_bytes(config: &ModelConfig, kinds: usize) -> u64 {
    let ropes = config.layers.kinds()[..kinds].iter().filter_map(|kind| kind.rope.as_ref());
    let values: usize = ropes.map(|rope| table_count(rope) * half(config, rope)).sum();
    (values * WORD_BYTES) as u64
}

fn half(config: &ModelConfig, rope: &Rope) -> usize {
    rope.rotary_dim(config.head_dim) / 2
}

/// Layout of a list, in words: the positions of the rows, then the rows whose logits are computed,
/// and then, for each kind of layer whose tables depend on length, the table of each row and the
/// tables of the sequences if each has its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowList {
    rows: usize,
    logits_rows: usize,
    sequences: usize,
}

impl RowList {
    /// Returns the layout for the maximum numbers of rows and sequences of a program.
    pub(super) fn new(program: &ProgramShape) -> RowList {
        RowList {
            rows: program.stream_rows as usize,
            logits_rows: program.logits_rows as usize,
            sequences: program.sequences.into(),
        }
    }

    /// Returns the size of a list, in bytes.
    pub(super) fn size_bytes(&self, config: &ModelConfig) -> usize {
        self.kind_at(config, config.layers.kinds().len()) * WORD_BYTES
    }

    /// Returns the offset of the rows whose logits are computed.
    pub(super) fn last_rows_at(&self) -> usize {
        self.rows
    }

    /// Returns the offset of the part of a kind of layer. The number of kinds yields the end of the
    /// list.
    fn kind_at(&self, config: &ModelConfig, kind: usize) -> usize {
        let before = config.layers.kinds()[..kind].iter().filter_map(|kind| kind.rope.as_ref());
        let words = before.map(|rope| {
            let own_words =
                if has_table_per_sequence(rope) { self.sequences * half(config, rope) } else { 0 };
            if rope.depends_on_length() { self.rows + own_words } else { 0 }
        });
        self.rows + self.logits_rows + words.sum::<usize>()
    }

    /// Writes the tables of the sequence at `index`, whose maximum number of positions is `length`,
    /// into a list.
    pub(super) fn write_tables(
        &self,
        config: &ModelConfig,
        index: usize,
        sequence: SequenceRows,
        length: SequenceLength,
        words: &mut [u32],
    ) {
        for (kind, layers) in config.layers.kinds().iter().enumerate() {
            let Some(rope) = layers.rope.as_ref().filter(|rope| rope.depends_on_length()) else {
                continue;
            };
            let (first, has_own_tables) =
                (self.kind_at(config, kind), has_table_per_sequence(rope));
            let table = if has_own_tables { index as u32 } else { rope.frequency_class(length) };
            words[first + sequence.row0..][..sequence.item.rows].fill(table);
            if has_own_tables {
                let half = half(config, rope);
                let to = &mut words[first + self.rows + index * half..][..half];
                let to = bytemuck::cast_slice_mut(to);
                rope.fill_inverse_frequencies(config.head_dim, length, to);
            }
        }
    }

    /// Returns the rotary tables of a kind of layer for the rows of the list at `list`, given the
    /// tables created once at `frequencies`; `None` if the layers do not rotate.
    pub(super) fn tables(
        &self,
        config: &ModelConfig,
        kind: usize,
        list: DevicePointer,
        frequencies: DevicePointer,
    ) -> Option<DeviceRopeTables> {
        let rope = config.layers.kinds()[kind].rope.as_ref()?;
        let own_tables = list + (self.kind_at(config, kind) * WORD_BYTES) as u64;
        Some(DeviceRopeTables {
            inverse_frequencies: match has_table_per_sequence(rope) {
                true => own_tables + (self.rows * WORD_BYTES) as u64,
                false => frequencies + frequencies_bytes(config, kind),
            },
            rotary_dim: rope.rotary_dim(config.head_dim) as u32,
            attention_factor: rope.attention_factor(),
            table_of_row: if rope.depends_on_length() { own_tables } else { 0 },
        })
    }
}
