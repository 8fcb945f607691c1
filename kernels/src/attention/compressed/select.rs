//! Scores of entries, and the selection of the highest.

use super::{EntryIndexer, EntryShape};
use crate::Kernels;
use crate::attention::compiled::AttentionTasks;
use crate::attention::indexed::{IndexedScratch, Piece, ScoredKeys, Scoring, rows_within};
use crate::attention::pages::AttentionUnits;
use crate::attention::shape::AttentionUnit;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Operands of a selection of entries.
#[derive(Debug, Clone, Copy)]
pub struct EntryQueries<'a, T> {
    /// Queries of the indexer's heads, `[rows, heads * head_dim]`.
    pub queries: &'a [T],
    /// Weights of the indexer's heads, `[rows, heads]`.
    pub weights: &'a [f32],
    /// Units with their places in the cache of entries.
    pub units: AttentionUnits<'a>,
    /// Entries `[rows, entry]` of the groups that end with the call's rows, and the cache.
    pub entries: super::IndexedPlaces<'a, T>,
}

impl Kernels {
    /// Lists the entries that every row attends to: those with the highest scores `sum_h weight_h *
    /// max(0, query_h · key)`, the lowest among equals, ascending.
    ///
    /// `selection` is `[rows, top_k]`, of which a row writes as many as there are entries of groups
    /// that end at or before its position, at most all.
    ///
    /// # Panics
    /// If shapes do not match, the layer has no indexer, or units exceed `scratch`.
    pub fn select_entries<T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        shape: &EntryShape,
        from: &EntryQueries<'_, T>,
        selection: &mut [u32],
    ) {
        let Some(indexer) = shape.indexer else { panic!("a selection has an indexer") };
        let EntryIndexer { heads, head_dim, top_k } = indexer;
        let EntryQueries { queries, weights, units, .. } = *from;
        let rows = weights.len() / heads;
        assert_eq!(weights.len(), rows * heads, "weights are [rows, heads]");
        assert_eq!(queries.len(), rows * heads * head_dim, "queries are [rows, heads * head_dim]");
        assert_eq!(from.entries.fresh.len(), rows * shape.entry, "entries are [rows, entry]");
        assert_eq!(selection.len(), rows * top_k, "selection is [rows, top_k]");
        assert_eq!(shape.entry, shape.vector + head_dim, "an entry has a vector and a key");
        scratch.check_entries::<T>(shape, units.units, rows);
        let scoring =
            Scoring { heads, head_dim, top_k, queries, weights, keys: EntryKeys { shape, from } };
        for unit in units.units {
            for row in 0..all_rows(shape, top_k, unit) {
                let to = &mut selection[(unit.row0 as usize + row) * top_k..][..top_k];
                let entries = 0..shape.entries(unit.past as usize + row) as u32;
                to.iter_mut().zip(entries).for_each(|(to, entry)| *to = entry);
            }
        }
        let selection = SharedPointer(selection.as_mut_ptr());
        let (mut scored, mut cached) = (0, 0);
        for (index, unit) in units.units.iter().enumerate() {
            let mut first = all_rows(shape, top_k, unit);
            // All entries that the unit's last row sees count as cached.
            let past = shape.entries(unit.positions() - 1);
            while first < unit.rows as usize {
                let left = scratch.scores.len() - scored;
                // The kernels take a piece's rows for positions after the entries.
                let fits = scratch.limits.positions.saturating_sub(past).max(1);
                let rows = rows_within(left / heads, past).min(unit.rows as usize - first);
                let rows = rows.min(fits);
                let is_full = rows == 0
                    || cached + past > scratch.limits.positions
                    || scratch.pieces.len() == scratch.pieces.capacity();
                if is_full {
                    self.select_wave(scratch, &scoring, selection);
                    (scored, cached) = (0, 0);
                    continue;
                }
                scratch.pieces.push(Piece::new(index, *unit, first, rows));
                scratch.units.push(AttentionUnit {
                    row0: unit.row0 + first as u32,
                    rows: rows as u32,
                    past: past as u32,
                    shared_row: None,
                    kv_head: 0,
                    cache_offset: cached * head_dim,
                    cache_positions: 0,
                    first_page: 0,
                    scores_offset: scored,
                });
                scored += heads * rows * (past + rows);
                cached += past;
                first += rows;
            }
        }
        self.select_wave(scratch, &scoring, selection);
    }
}

/// Returns the number of a unit's first rows that attend to all entries up to their position.
fn all_rows(shape: &EntryShape, top_k: usize, unit: &AttentionUnit) -> usize {
    // The first position with more entries than are selected.
    let first = (top_k + 1).saturating_mul(shape.rate) - 1;
    first.saturating_sub(unit.past as usize).min(unit.rows as usize)
}

/// Keys of entries, all of which count as cached.
struct EntryKeys<'a, T> {
    shape: &'a EntryShape,
    from: &'a EntryQueries<'a, T>,
}

impl<T: Number> ScoredKeys<T> for EntryKeys<'_, T> {
    fn key(&self, piece: &Piece, index: usize) -> &[T] {
        let AttentionUnits { units, pages } = &self.from.units;
        let unit = &units[piece.index()];
        &super::entry(&self.from.entries, self.shape, pages, unit, index)[self.shape.vector..]
    }

    fn seen(&self, piece: &Piece, row: usize) -> usize {
        self.shape.entries(piece.position() + row)
    }
}
