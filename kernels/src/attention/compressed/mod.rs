//! Attention of rows to a window of positions and to compressed entries of the groups of positions
//! that end at or before their own (see `model::compression`).
//!
//! `compress` computes the entries of the groups that end with the call's rows, `select_entries`
//! lists those that an indexer scores highest, and `attend_to_entries` copies a row's entries and
//! then the vectors of its window to contiguous memory, in ascending order, where the kernels for
//! whole caches attend to them as to positions of a sequence that has no others. Every row depends
//! on nothing but its own vectors and those of the positions before it.

mod attend;
mod compress;
mod select;

use super::indexed::{IndexedPlaces, IndexedScratch, IndexedShape};
use super::pages::{AttentionUnits, PageLists};
use super::shape::AttentionUnit;
use crate::number::Number;
use crate::scratch::ScratchLimits;

pub(crate) use compress::thread_len;
pub use compress::{CompressRules, CompressedSpan};
pub use select::EntryQueries;

/// Sizes of a layer with compressed entries, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    /// Size of the vector that heads attend to, at the start of a place and of an entry.
    pub vector: usize,
    /// Size of a place of the cache of positions.
    pub place: usize,
    /// Size of an entry: the vector, then the indexer's key if the layer has an indexer.
    pub entry: usize,
    /// Number of positions of a group, at least 1.
    pub rate: usize,
    /// Number of positions that a row attends to, its own included, at least 1.
    pub window: usize,
    /// Indexer that selects entries; `None` if rows attend to all.
    pub indexer: Option<EntryIndexer>,
}

/// Sizes of an indexer of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryIndexer {
    pub heads: usize,
    /// Size of a query of a head, and of a key.
    pub head_dim: usize,
    /// Maximum number of entries that a row attends to, at least 1.
    pub top_k: usize,
}

impl EntryShape {
    /// Returns the number of entries of the groups that end at or before a position.
    const fn entries(&self, position: usize) -> usize {
        (position + 1) / self.rate
    }

    /// Returns the number of entries that the row at a position attends to.
    fn attended(&self, position: usize) -> usize {
        let top_k = self.indexer.map_or(usize::MAX, |indexer| indexer.top_k);
        self.entries(position).min(top_k)
    }

    /// Returns the number of positions that the row at a position attends to.
    fn seen(&self, position: usize) -> usize {
        self.window.min(position + 1)
    }

    /// Returns the number of vectors that the row at a position attends to.
    fn vectors(&self, position: usize) -> usize {
        self.seen(position) + self.attended(position)
    }
}

/// Places of the positions and entries of a call. Both lists of units have the same rows, with
/// their places in the respective cache.
#[derive(Debug, Clone, Copy)]
pub struct EntryPlaces<'a, T> {
    pub units: AttentionUnits<'a>,
    /// Places `[rows, place]` of the call's rows, and the cache of positions.
    pub positions: IndexedPlaces<'a, T>,
    pub entry_units: AttentionUnits<'a>,
    /// Entries `[rows, entry]` of the groups that end with the call's rows, and the cache of
    /// entries.
    pub entries: IndexedPlaces<'a, T>,
}

impl<'a, T: Number> EntryPlaces<'a, T> {
    /// Returns an entry of the unit at `index`.
    fn entry(&self, shape: &EntryShape, index: usize, number: usize) -> &'a [T] {
        let AttentionUnits { units, pages } = &self.entry_units;
        entry(&self.entries, shape, pages, &units[index], number)
    }

    /// Checks the shapes of the operands.
    ///
    /// # Panics
    /// If they do not match.
    fn check(&self, shape: &EntryShape, rows: usize) {
        assert_eq!(self.positions.fresh.len(), rows * shape.place, "places are [rows, place]");
        assert_eq!(self.entries.fresh.len(), rows * shape.entry, "entries are [rows, entry]");
        let rows_of = |unit: &AttentionUnit| (unit.row0, unit.rows, unit.past, unit.shared_row);
        let (units, others) = (self.units.units, self.entry_units.units);
        let is_same = units.iter().map(rows_of).eq(others.iter().map(rows_of));
        assert!(is_same, "positions and entries are of the same rows");
    }
}

/// Returns an entry of a unit.
fn entry<'a, T: Number>(
    entries: &IndexedPlaces<'a, T>,
    shape: &EntryShape,
    pages: &PageLists<'_>,
    unit: &AttentionUnit,
    number: usize,
) -> &'a [T] {
    let last = (number + 1) * shape.rate - 1;
    let row = match (last.checked_sub(unit.past as usize), unit.shared_row) {
        (Some(after), _) => unit.row0 as usize + after,
        (None, Some(shared)) => shared as usize + last,
        (None, None) => {
            let place = pages.place(unit, 1, number);
            return &entries.cache[unit.cache_offset + place * shape.entry..][..shape.entry];
        }
    };
    &entries.fresh[row * shape.entry..][..shape.entry]
}

impl IndexedScratch {
    /// Allocates scratch for layers of `shapes` in calls within `limits` on `threads` threads,
    /// whose elements have at most `element_bytes` bytes; `None` if there are no shapes.
    ///
    /// # Panics
    /// If heads exceed the limits.
    pub fn for_entries(
        shapes: &[EntryShape],
        threads: usize,
        limits: &ScratchLimits,
        element_bytes: usize,
    ) -> Option<IndexedScratch> {
        let last = limits.positions.max(1) - 1;
        let of_indexer = |size: fn(&EntryIndexer) -> usize| {
            let sizes = shapes.iter().filter_map(|shape| shape.indexer.as_ref()).map(size);
            sizes.max().unwrap_or(1)
        };
        let shape = IndexedShape {
            vector: shapes.iter().map(|shape| shape.vector).max()?,
            place: shapes.iter().map(|shape| shape.place).max()?,
            heads: of_indexer(|indexer| indexer.heads),
            head_dim: of_indexer(|indexer| indexer.head_dim),
            top_k: of_indexer(|indexer| indexer.top_k),
        };
        let selected = shapes.iter().map(|shape| shape.vectors(last)).max()?;
        Some(IndexedScratch::with_selected(shape, selected, threads, limits, element_bytes))
    }

    /// Checks that a call is within the scratch.
    ///
    /// # Panics
    /// If units have several heads, or rows or positions exceed the scratch.
    fn check_entries<T: Number>(&self, shape: &EntryShape, units: &[AttentionUnit], rows: usize) {
        let (heads, head_dim) =
            shape.indexer.map_or((0, 0), |indexer| (indexer.heads, indexer.head_dim));
        let is_within = shape.vector <= self.shape.vector
            && heads <= self.shape.heads
            && head_dim <= self.shape.head_dim;
        assert!(is_within, "the scratch is of vectors and indexers as large");
        assert!(size_of::<T>() <= self.element_bytes, "elements are beyond the scratch");
        assert!(rows <= self.limits.rows, "rows are beyond the scratch limits");
        for unit in units {
            assert!(unit.kv_head == 0, "a unit is a sequence with one head");
            assert!(unit.positions() <= self.limits.positions, "positions beyond the scratch");
            assert!(unit.row0 as usize + unit.rows as usize <= rows, "units lie within the rows");
        }
    }
}
