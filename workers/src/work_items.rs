//! Rows and units of an instruction, derived from the work lists of the step table.
//!
//! Fresh rows of a sequence follow the earlier positions, which are in the cache or, if a prompt
//! shares its prefix with another one of its stream, are rows of the stream. Programs differ in
//! nothing but the list.

use std::ops::Range;

use kernels::{AttentionUnit, paged_place};
use model::ops::Kv;
use program::deferred_rows::stream_after;
use program::ir::{At, ProgramId, Rows};
use program::kv_owner::{AttentionSide, HOST};
use program::map::Chunk;
use program::step_table::{Field, List};
use protocol::table::{StepTable, WorkItem};

/// The rows of one sequence in an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRows {
    /// Index of the first row.
    pub row0: usize,
    pub item: WorkItem,
}

/// Returns the work list of an instruction.
pub const fn list_of(program: ProgramId, at: At) -> List {
    List { program, stream: at.stream }
}

/// Returns the sequences of an instruction with their rows. Deferred ones follow all others.
pub fn sequences(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = SequenceRows> + '_ {
    let batch = usize::from(at.batch);
    let list = list_of(program, at);
    let joined =
        (has_deferred_rows(table, program) && at.stream > 0).then_some(List { stream: 0, ..list });
    let mut row0 = 0;
    joined
        .into_iter()
        .chain([list])
        .flat_map(move |list| {
            (0..table.item_count(batch, list)).map(move |index| table.item(batch, list, index))
        })
        .map(move |item| {
            let found = SequenceRows { row0, item };
            row0 += item.rows;
            found
        })
}

/// Returns true if rows of a program are deferred.
pub fn has_deferred_rows(table: &StepTable, program: ProgramId) -> bool {
    table.program(program).attention_side == AttentionSide::Deferred
}

/// Returns true if an instruction attends for deferred rows: its values are then at the places
/// where these are kept, a row for each slot.
pub fn attends_deferred(table: &StepTable, program: ProgramId, chunk: Option<Chunk>) -> bool {
    chunk == Some(HOST) && has_deferred_rows(table, program)
}

/// Returns the deferred rows of an instruction, which follow all others.
pub fn deferred_rows(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = SequenceRows> + '_ {
    assert!(at.stream >= stream_after(0), "rows that lag are not among those of all layers");
    let batch = usize::from(at.batch);
    let all = table.item_count(batch, List { program, stream: 0 });
    sequences(table, program, at).skip(all)
}

/// A row whose logits are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitsRow {
    /// Index among the rows of the stream.
    pub row: usize,
    /// Work item that contains the row.
    pub item: WorkItem,
    pub position: usize,
    /// Number of drafts up to this row, its own token included, if a token is drawn from it.
    pub drawn: Option<usize>,
}

impl LogitsRow {
    /// Returns true if a token is drawn from this row.
    pub fn is_drawn(&self) -> bool {
        self.drawn.is_some()
    }
}

/// Returns the rows of an instruction's stream whose logits are computed, in order.
pub fn logits_rows(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = LogitsRow> + '_ {
    sequences(table, program, at).flat_map(|SequenceRows { row0, item }| {
        (item.rows - item.logits_rows..item.rows).map(move |row| LogitsRow {
            row: row0 + row,
            item,
            position: item.first + row,
            drawn: (row + item.drawn_rows()).checked_sub(item.rows),
        })
    })
}

/// Returns the number of rows of an instruction's stream whose logits are computed, and the number
/// of all rows.
pub fn row_counts(table: &StepTable, program: ProgramId, at: At) -> (usize, usize) {
    sequences(table, program, at).fold((0, 0), |(logits, rows), SequenceRows { item, .. }| {
        (logits + item.logits_rows, rows + item.rows)
    })
}

/// Returns the heads of a sequence that are within a range of units, of which there are `kv_heads`
/// for each sequence.
pub fn heads_in(kv_heads: usize, sequence: usize, units: &Range<usize>) -> Range<usize> {
    let first = sequence * kv_heads;
    let start = units.start.saturating_sub(first).min(kv_heads);
    start..units.end.saturating_sub(first).clamp(start, kv_heads)
}

/// Returns the units of the instruction's sequences in `chunk`, in order, with their places in the
/// caches of positions. Cache offsets are relative to the chunk's first unit, and so are offsets in
/// the scores, which are laid out for decode only.
pub fn units(
    table: &StepTable,
    program: ProgramId,
    at: At,
    chunk: Option<Chunk>,
) -> impl Iterator<Item = AttentionUnit> + '_ {
    cache_units(table, program, at, chunk, Kv::K)
}

/// Returns units like [`units`], with their places in a cache.
pub fn cache_units(
    table: &StepTable,
    program: ProgramId,
    at: At,
    chunk: Option<Chunk>,
    kv: Kv,
) -> impl Iterator<Item = AttentionUnit> + '_ {
    let chunk_units = ChunkUnits::new(table, at, chunk, kv);
    let attends = move |sequence: &SequenceRows| {
        !table.has_owners()
            || chunk.is_none_or(|side| table.attention_side(at, &sequence.item) == side)
    };
    let is_kept = attends_deferred(table, program, chunk);
    let own_units =
        sequences(table, program, at).filter(attends).map(move |sequence| match is_kept {
            true => SequenceRows { row0: sequence.item.slot, ..sequence },
            false => sequence,
        });
    own_units.flat_map(move |sequence| chunk_units.clone().of_sequence(sequence))
}

/// The units of a chunk of a batch.
#[derive(Debug, Clone)]
struct ChunkUnits<'a> {
    table: &'a StepTable,
    at: At,
    range: Range<usize>,
    /// Number of elements before the first unit.
    origin: usize,
    /// The chunk, if sequences have owners.
    owner: Option<Chunk>,
    /// Cache whose places units have.
    kv: Kv,
}

impl<'a> ChunkUnits<'a> {
    fn new(table: &'a StepTable, at: At, chunk: Option<Chunk>, kv: Kv) -> ChunkUnits<'a> {
        if table.has_owners() {
            let range = table.chunk_units(at, None);
            return ChunkUnits { table, at, range, origin: 0, owner: chunk, kv };
        }
        let range = table.chunk_units(at, chunk);
        let origin = table.chunk_origin(at, kv, &range);
        ChunkUnits { table, at, range, origin, owner: None, kv }
    }

    fn index(&self, slot: usize, head: usize) -> usize {
        slot * self.table.kv_heads(self.at.layer) + head
    }

    /// Returns the units of a sequence.
    fn of_sequence(self, sequence: SequenceRows) -> impl Iterator<Item = AttentionUnit> + use<'a> {
        let kv_heads = self.table.kv_heads(self.at.layer);
        let heads = heads_in(kv_heads, sequence.item.slot, &self.range);
        heads.map(move |head| self.unit(sequence, head))
    }

    /// Returns the unit of a head of a sequence.
    fn unit(&self, SequenceRows { row0, item }: SequenceRows, head: usize) -> AttentionUnit {
        let is_paged = self.table.page_places(self.at.layer, self.kv) > 0;
        let extent = || match self.owner {
            Some(owner) => self.table.owned_offset(self.at, item.slot, head, owner),
            None => self.table.unit_offset(self.at, self.kv, item.slot, head) - self.origin,
        };
        AttentionUnit {
            row0: row0 as u32,
            rows: item.rows as u32,
            past: item.first as u32,
            shared_row: item.shared_row.map(|row| row as u32),
            kv_head: head as u32,
            cache_offset: if is_paged { 0 } else { extent() },
            cache_positions: self.places(item.slot),
            first_page: if is_paged { (item.slot * self.table.pages()) as u32 } else { 0 },
            scores_offset: (self.index(item.slot, head) - self.range.start)
                * self.table.scores_stride(self.at.layer),
        }
    }

    /// Returns the number of places of a sequence in the layer's caches if these are rings, or else
    /// 0.
    fn places(&self, slot: usize) -> u32 {
        let batch = usize::from(self.at.batch);
        let is_ring = self.table.is_windowed(self.at.layer, self.kv);
        if is_ring { self.table.kept_positions(batch, slot, self.at.layer) as u32 } else { 0 }
    }

    /// Returns the rows of an owner that also belong in the cache of the sequence in a slot, with
    /// which it shares a prefix.
    fn shared_rows(&self, owner: SequenceRows, slot: usize) -> Option<SequenceRows> {
        let batch = usize::from(self.at.batch);
        let is_owned = self.table.field(batch, slot, Field::Owner) as usize == owner.item.slot + 1;
        let shared = if is_owned { self.table.shared_prefix_len(batch, slot) } else { 0 };
        let rows = shared.saturating_sub(owner.item.first).min(owner.item.rows);
        let item = WorkItem { slot, rows, ..owner.item };
        (rows > 0).then_some(SequenceRows { item, ..owner })
    }
}

/// Lists the pages of the cached positions of an instruction's sequences, at the indices given by
/// `first_page` of their units; lists none if the layer's cache is not paged.
pub fn list_pages(table: &StepTable, program: ProgramId, at: At, kv: Kv, pages: &mut Vec<u32>) {
    pages.clear();
    let page_positions = table.page_places(at.layer, kv) as usize * table.cache_rate(at.layer, kv);
    if page_positions == 0 {
        return;
    }
    let batch = usize::from(at.batch);
    pages.resize(table.batch_size() * table.pages(), 0);
    for SequenceRows { item, .. } in sequences(table, program, at) {
        let own = &mut pages[item.slot * table.pages()..][..item.first.div_ceil(page_positions)];
        for (index, page) in own.iter_mut().enumerate() {
            *page = table.page(batch, item.slot, index);
        }
    }
}

/// Returns the element of a unit's cache at one of its places: as returned by `Unit::appended`, or
/// of a group of positions.
pub fn cache_element(
    table: &StepTable,
    at: At,
    kv: Kv,
    unit: &AttentionUnit,
    place: usize,
) -> usize {
    let (page_places, place_dim) = (table.page_places(at.layer, kv), table.place_dim(at.layer, kv));
    if page_places == 0 {
        return unit.cache_offset + place * place_dim;
    }
    let slot = unit.first_page as usize / table.pages();
    let page = table.page(usize::from(at.batch), slot, place / page_places as usize);
    let kv_heads = table.kv_heads(at.layer);
    paged_place(page, page_places, kv_heads, unit.kv_head, place) * place_dim
}

/// Returns the units whose fresh rows an append takes: those of the instruction and, if prompts are
/// split into chunks, those of the sequences that share a prefix owned by one of these.
pub fn appended_units(
    table: &StepTable,
    program: ProgramId,
    at: At,
    chunk: Chunk,
    kv: Kv,
) -> impl Iterator<Item = AttentionUnit> + '_ {
    let chunk_units = ChunkUnits::new(table, at, Some(chunk), kv);
    let is_cut = table.program(program).rows == Rows::Chunks;
    let slots = if is_cut { 0..table.batch_size() } else { 0..0 };
    let fills = move |sequence: &SequenceRows| {
        !table.has_owners() || table.owner(usize::from(at.batch), sequence.item.slot) == chunk
    };
    sequences(table, program, at).filter(fills).flat_map(move |owner| {
        let (chunk_units, slots) = (chunk_units.clone(), slots.clone());
        let shared_units = chunk_units.clone();
        let shared_sequences = slots.filter_map(move |slot| shared_units.shared_rows(owner, slot));
        std::iter::once(owner)
            .chain(shared_sequences)
            .flat_map(move |sequence| chunk_units.clone().of_sequence(sequence))
    })
}
