//! Attention to listed vectors.

use super::{IndexedPlaces, IndexedScratch, IndexedShape, Piece, dense_rows, elements, nth_of};
use crate::Kernels;
use crate::attention::compiled::AttentionTasks;
use crate::attention::pages::{AttentionUnits, PageLists};
use crate::attention::shape::{AttentionShape, AttentionUnit};
use crate::columns::Columns;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Rows whose vectors a task copies.
const TASK_ROWS: usize = 64;

/// Part of attention, or all of it. Parts are of units of one row each, whose scores and
/// probabilities are those of the listed vectors, in their order: a softmax is that of a unit with
/// as many positions as are listed.
#[derive(Debug)]
pub enum AttentionPart<'a, T> {
    /// Scores of `q`, `[rows, heads * head_dim]`.
    Scores { q: &'a [T], out: &'a mut [f32] },
    /// Weighted sums of vectors, `[rows, heads * head_dim]`.
    Values { probabilities: &'a [f32], out: Columns<'a, T> },
    /// Scores, softmax and weighted sums in one pass. `sinks` are additional logits, one per head.
    Fused { q: &'a [T], sinks: Option<&'a [f32]>, out: Columns<'a, T> },
}

/// The vectors to which the rows of a call attend, in order. The last one of each row stands for
/// the row's own position.
pub(in crate::attention) trait ListedVectors<T>: Sync {
    /// Returns the number of a unit's first rows of which each attends to the vectors of the row
    /// before and one more.
    fn dense_rows(&self, unit: &AttentionUnit) -> usize;

    /// Returns the number of vectors of a row of the unit at `index`, at least 1.
    fn count(&self, index: usize, row: usize) -> usize;

    /// Returns a vector of a row.
    fn vector(&self, index: usize, row: usize, place: usize) -> &[T];
}

impl Kernels {
    /// Runs a part of attention, or all of it, on the positions that `selection`, `[rows, top_k]`,
    /// lists for each row, ascending. `shape` has one KV head, whose vectors are keys and values.
    /// A listed position after the row's own counts as its own.
    ///
    /// # Panics
    /// If shapes do not match, units exceed `scratch`, or parts are run on units of several rows.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each with its own name.
    pub fn attend_to_selection<'a, T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        indexed: &IndexedShape,
        shape: &AttentionShape,
        units: impl Into<AttentionUnits<'a>>,
        places: IndexedPlaces<'_, T>,
        selection: &[u32],
        part: AttentionPart<'_, T>,
    ) {
        let AttentionUnits { units, pages } = units.into();
        let IndexedShape { vector, place, top_k, .. } = *indexed;
        let rows = selection.len() / top_k;
        assert_eq!(selection.len(), rows * top_k, "selection is [rows, top_k]");
        assert_eq!(places.fresh.len(), rows * place, "fresh places are [rows, place]");
        let is_of_vectors =
            shape.kv_heads == 1 && shape.head_dim == vector && shape.window.is_none();
        assert!(is_of_vectors, "attention has one head of vectors, without a window");
        scratch.check::<T>(indexed, units, rows);
        let listed = Selected { indexed, units, pages, places, selection };
        self.attend_to_listed(scratch, &Call { shape, units, rows, listed }, part);
    }

    /// Runs a part of attention, or all of it, on the listed vectors.
    pub(in crate::attention) fn attend_to_listed<T: AttentionTasks, L: ListedVectors<T>>(
        &self,
        scratch: &mut IndexedScratch,
        call: &Call<'_, L>,
        mut part: AttentionPart<'_, T>,
    ) {
        let is_whole = matches!(part, AttentionPart::Fused { .. });
        assert!(is_whole || call.units.iter().all(|unit| unit.rows == 1), "parts are of rows");
        self.copy_last_vectors::<T, L>(scratch, call);
        for (index, unit) in call.units.iter().enumerate() {
            let dense = call.listed.dense_rows(unit);
            if dense > 0 {
                let piece = Piece { index, unit: *unit, first: 0, rows: dense };
                add_piece::<T, L>(scratch, call, piece);
                self.attend_if_full(scratch, call, &mut part);
            }
            for first in dense..unit.rows as usize {
                let piece = Piece { index, unit: *unit, first, rows: 1 };
                add_piece::<T, L>(scratch, call, piece);
                self.attend_if_full(scratch, call, &mut part);
            }
        }
        self.attend_wave(scratch, call, &mut part);
    }

    fn attend_if_full<T: AttentionTasks, L: ListedVectors<T>>(
        &self,
        scratch: &mut IndexedScratch,
        call: &Call<'_, L>,
        part: &mut AttentionPart<'_, T>,
    ) {
        if scratch.units.len() == scratch.wave {
            self.attend_wave(scratch, call, part);
        }
    }

    /// Copies the vector of each row's last position, which attention takes as the row's own.
    fn copy_last_vectors<T: AttentionTasks, L: ListedVectors<T>>(
        &self,
        scratch: &IndexedScratch,
        call: &Call<'_, L>,
    ) {
        let (units, vector) = (call.units, call.shape.head_dim);
        let to = SharedPointer(scratch.fresh.as_mut_ptr().cast::<T>());
        let rows: usize = units.iter().map(|unit| unit.rows as usize).sum();
        let bytes = 2 * rows * vector * size_of::<T>();
        let tasks = |unit: &AttentionUnit| (unit.rows as usize).div_ceil(TASK_ROWS);
        self.run_sized(units.iter().map(tasks).sum(), bytes, &|task, _| {
            let (index, task) = nth_of(task, units.iter().map(tasks));
            let (unit, first) = (&units[index], task * TASK_ROWS);
            for row in first..(unit.rows as usize).min(first + TASK_ROWS) {
                let last = call.listed.count(index, row) - 1;
                let from = &call.listed.vector(index, row, last)[..vector];
                // SAFETY: scratch has space for a vector of every row, each of which one task
                // writes.
                unsafe {
                    let to = to.pointer().add((unit.row0 as usize + row) * vector);
                    to.copy_from_nonoverlapping(from.as_ptr(), vector);
                }
            }
        });
    }

    /// Attends for the rows of the wave, and empties it.
    fn attend_wave<T: AttentionTasks, L: ListedVectors<T>>(
        &self,
        scratch: &mut IndexedScratch,
        call: &Call<'_, L>,
        part: &mut AttentionPart<'_, T>,
    ) {
        let (shape, vector, selected) = (call.shape, call.shape.head_dim, scratch.selected);
        let IndexedScratch { gathered, fresh, units, pieces, .. } = scratch;
        if units.is_empty() {
            return;
        }
        let to = SharedPointer(gathered.as_mut_ptr().cast::<T>());
        let cached: usize = units.iter().map(|unit| unit.past as usize).sum();
        self.run_attention(units.len(), 2 * cached * vector * size_of::<T>(), &|task, _| {
            let (unit, piece) = (&units[task], &pieces[task]);
            for place in 0..unit.past as usize {
                let from = &call.listed.vector(piece.index, piece.first, place)[..vector];
                // SAFETY: scratch has space for the selected positions of every unit of the wave,
                // each of which one task writes.
                unsafe {
                    let to = to.pointer().add(unit.cache_offset + place * vector);
                    to.copy_from_nonoverlapping(from.as_ptr(), vector);
                }
            }
        });
        // SAFETY: nothing writes the vectors any more.
        let (cached, fresh) = unsafe {
            let cached = elements::<T>(gathered, units.len() * selected * vector);
            (cached, elements::<T>(fresh, call.rows * vector))
        };
        let columns = |out: &Columns<'_, T>| {
            // SAFETY: waves write the columns of different rows, one after the other.
            unsafe { Columns::new(out.first(), out.len()) }
        };
        match part {
            AttentionPart::Scores { q, out } => self.scores(shape, &*units, q, fresh, cached, out),
            AttentionPart::Values { probabilities, out } => {
                let out = columns(out);
                self.weighted_values(shape, &*units, probabilities, fresh, cached, out);
            }
            AttentionPart::Fused { q, sinks, out } => {
                let out = columns(out);
                self.attention(shape, &*units, q, fresh, fresh, cached, cached, *sinks, out);
            }
        }
        units.clear();
        pieces.clear();
    }
}

/// Adds rows to the wave.
fn add_piece<T, L: ListedVectors<T>>(
    scratch: &mut IndexedScratch,
    call: &Call<'_, L>,
    piece: Piece,
) {
    let past = call.listed.count(piece.index, piece.first) - 1;
    assert!(past < scratch.selected.max(1), "a row lists no more vectors than the scratch holds");
    let unit = AttentionUnit {
        row0: piece.row() as u32,
        rows: piece.rows as u32,
        past: past as u32,
        shared_row: None,
        cache_offset: scratch.units.len() * scratch.selected * call.shape.head_dim,
        cache_positions: 0,
        first_page: 0,
        ..piece.unit
    };
    scratch.units.push(unit);
    scratch.pieces.push(piece);
}

/// Operands of a call.
pub(in crate::attention) struct Call<'a, L> {
    /// One head of vectors, without a window.
    pub(in crate::attention) shape: &'a AttentionShape,
    pub(in crate::attention) units: &'a [AttentionUnit],
    /// Number of all rows.
    pub(in crate::attention) rows: usize,
    pub(in crate::attention) listed: L,
}

/// Positions that a selection lists.
struct Selected<'a, T> {
    indexed: &'a IndexedShape,
    units: &'a [AttentionUnit],
    pages: PageLists<'a>,
    places: IndexedPlaces<'a, T>,
    selection: &'a [u32],
}

impl<T: Number> ListedVectors<T> for Selected<'_, T> {
    fn dense_rows(&self, unit: &AttentionUnit) -> usize {
        dense_rows(unit, self.indexed.top_k)
    }

    fn count(&self, index: usize, row: usize) -> usize {
        (self.units[index].past as usize + row + 1).min(self.indexed.top_k)
    }

    fn vector(&self, index: usize, row: usize, place: usize) -> &[T] {
        let (unit, top_k) = (&self.units[index], self.indexed.top_k);
        let (own, at) = (unit.past as usize + row, unit.row0 as usize + row);
        let position = match own < top_k {
            true => place,
            false => (self.selection[at * top_k + place] as usize).min(own),
        };
        self.places.elements(&self.pages, unit, position, self.indexed.place)
    }
}
