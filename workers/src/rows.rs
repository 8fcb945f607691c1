//! Which rows and units an instruction works on, from the work lists of the step table.
//!
//! Fresh rows of a sequence stand behind the positions before them, which lie in the cache or,
//! where a prompt begins like another one of its stream, are rows of the stream. Programs differ in
//! nothing but the list.

use std::ops::Range;

use kernels::Unit;
use program::ir::{At, ProgramId, Rows};
use program::map::Chunk;
use program::step_table::{Field, List};

use crate::table::{Item, StepTable};

/// The rows of one sequence in an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRows {
    /// First row.
    pub row0: usize,
    pub item: Item,
}

/// The work list of an instruction.
pub const fn list_of(program: ProgramId, at: At) -> List {
    List { program, stream: at.stream }
}

/// Sequences of an instruction with their rows.
pub fn sequences(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = SequenceRows> + '_ {
    let (batch, list) = (usize::from(at.batch), list_of(program, at));
    let mut row0 = 0;
    (0..table.items(batch, list)).map(move |index| {
        let found = SequenceRows { row0, item: table.item(batch, list, index) };
        row0 += found.item.rows;
        found
    })
}

/// Sequences whose next token is drawn, in the order of the rows of logits.
pub fn sampled(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = SequenceRows> + '_ {
    sequences(table, program, at).filter(|found| found.item.samples)
}

/// How many tokens an instruction's stream draws, and how many rows it has.
pub fn counts(table: &StepTable, program: ProgramId, at: At) -> (usize, usize) {
    sequences(table, program, at).fold((0, 0), |(drawn, rows), SequenceRows { item, .. }| {
        (drawn + usize::from(item.samples), rows + item.rows)
    })
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
    program: ProgramId,
    at: At,
    chunk: Option<Chunk>,
) -> impl Iterator<Item = Unit> + '_ {
    slots_and_units(table, program, at, chunk).map(|(_, unit)| unit)
}

fn slots_and_units(
    table: &StepTable,
    program: ProgramId,
    at: At,
    chunk: Option<Chunk>,
) -> impl Iterator<Item = (usize, Unit)> + '_ {
    let batch = usize::from(at.batch);
    let range = table.chunk_units(batch, chunk);
    let origin = table.chunk_origin(batch, &range);
    sequences(table, program, at).flat_map(move |SequenceRows { row0, item }| {
        let range = range.clone();
        heads_in(table, item.slot, &range).map(move |head| {
            let unit = item.slot * table.kv_heads() + head;
            let unit = Unit {
                row0: row0 as u32,
                rows: item.rows as u32,
                past: item.first as u32,
                shared_row: item.shared_row.map(|row| row as u32),
                kv_head: head as u32,
                cache_offset: table.unit_offset(batch, item.slot, head) - origin,
                scores_offset: (unit - range.start) * table.scores_stride(),
            };
            (item.slot, unit)
        })
    })
}

/// Units whose fresh rows an append takes: the instruction's, and where prompts are cut into chunks
/// those of the sequences that leave their beginnings to one of these.
pub fn appended_units(
    table: &StepTable,
    program: ProgramId,
    at: At,
    chunk: Chunk,
) -> impl Iterator<Item = Unit> + '_ {
    let is_cut = table.program(program).rows == Rows::Chunks;
    let slots = if is_cut { 0..table.batch_size() } else { 0..0 };
    slots_and_units(table, program, at, Some(chunk)).flat_map(move |(owner, own)| {
        let left = move |slot| left_to(table, at, chunk, own, (owner, slot));
        std::iter::once(own).chain(slots.clone().filter_map(left))
    })
}

/// What of an owner's rows belongs into the cache of a sequence that begins alike, too.
fn left_to(
    table: &StepTable,
    at: At,
    chunk: Chunk,
    own: Unit,
    (owner, slot): (usize, usize),
) -> Option<Unit> {
    let batch = usize::from(at.batch);
    if table.field(batch, slot, Field::Owner) as usize != owner + 1 {
        return None;
    }
    let rows = (table.shared(batch, slot) as u32).saturating_sub(own.past).min(own.rows);
    let range = table.chunk_units(batch, Some(chunk));
    let head = own.kv_head as usize;
    let is_ours = range.contains(&(slot * table.kv_heads() + head)) && rows > 0;
    is_ours.then(|| Unit {
        rows,
        cache_offset: table.unit_offset(batch, slot, head) - table.chunk_origin(batch, &range),
        ..own
    })
}
