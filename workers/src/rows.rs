//! Which rows and units an instruction works on, from the step table.
//!
//! Prefill: the new sequences of a micro-batch, their prompt tokens concatenated, nothing cached. What a prompt
//! shares with another one's beginning has the other one's rows.
//! Decode: the batch's active rows, one fresh row each behind `Past` cached positions.

use std::ops::Range;

use kernels::Unit;
use program::ir::{At, Phase};
use program::map::Chunk;
use program::step_table::Field;

use crate::table::StepTable;

/// The rows of one sequence in an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRows {
    /// Slot in the batch.
    pub sequence: usize,
    /// First row.
    pub row0: usize,
    /// Fresh rows.
    pub rows: usize,
    /// Positions before them.
    pub past: usize,
    /// The first row of those positions in prefill, if there are any; in decode they are cached.
    pub shared_row: Option<usize>,
}

/// Sequences of an instruction with their rows, in slot order.
pub fn sequences(
    table: &StepTable,
    phase: Phase,
    at: At,
) -> impl Iterator<Item = SequenceRows> + '_ {
    let batch = usize::from(at.batch);
    let range = match phase {
        Phase::Prefill => table.micro_slots(at.micro),
        Phase::Decode => 0..table.active(batch),
    };
    let mut row0 = 0;
    range.filter_map(move |index| {
        let found = match phase {
            Phase::Prefill => {
                let load = |field| table.field(batch, index, field) as usize;
                let past = table.shared(batch, index);
                let shared_row = (past > 0).then(|| load(Field::SharedRow));
                SequenceRows { sequence: index, row0, rows: load(Field::Fresh), past, shared_row }
            }
            Phase::Decode => {
                let sequence = table.row_sequence(batch, index);
                let past = table.field(batch, sequence, Field::Past) as usize;
                SequenceRows { sequence, row0, rows: 1, past, shared_row: None }
            }
        };
        row0 += found.rows;
        (found.rows > 0).then_some(found)
    })
}

/// How many sequences and rows an instruction has.
pub fn counts(table: &StepTable, phase: Phase, at: At) -> (usize, usize) {
    sequences(table, phase, at)
        .fold((0, 0), |(sequences, rows), found| (sequences + 1, rows + found.rows))
}

/// Heads of a sequence that lie in a range of units.
pub fn heads_in(table: &StepTable, sequence: usize, units: &Range<usize>) -> Range<usize> {
    let kv_heads = table.kv_heads();
    let first = sequence * kv_heads;
    let start = units.start.saturating_sub(first).min(kv_heads);
    start..units.end.saturating_sub(first).clamp(start, kv_heads)
}

/// Units of the instruction's sequences in `chunk`, in order. Cache offsets count from the chunk's
/// first unit, and so do offsets in the scores, which are laid out for decode only.
pub fn units(
    table: &StepTable,
    phase: Phase,
    at: At,
    chunk: Option<Chunk>,
) -> impl Iterator<Item = Unit> + '_ {
    let batch = usize::from(at.batch);
    let range = table.chunk_units(batch, chunk);
    let origin = table.chunk_origin(batch, &range);
    sequences(table, phase, at).flat_map(move |found| {
        let range = range.clone();
        heads_in(table, found.sequence, &range).map(move |head| {
            let unit = found.sequence * table.kv_heads() + head;
            Unit {
                row0: found.row0 as u32,
                rows: found.rows as u32,
                past: found.past as u32,
                shared_row: found.shared_row.map(|row| row as u32),
                kv_head: head as u32,
                cache_offset: table.unit_offset(batch, found.sequence, head) - origin,
                scores_offset: (unit - range.start) * table.scores_stride(),
            }
        })
    })
}
