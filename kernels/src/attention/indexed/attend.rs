//! Attention to listed positions.

use super::{IndexedPlaces, IndexedScratch, IndexedShape, Piece, dense_rows, elements, nth_of};
use crate::Kernels;
use crate::attention::compiled::AttentionTasks;
use crate::attention::pages::{AttentionUnits, PageLists};
use crate::attention::shape::{AttentionShape, AttentionUnit};
use crate::columns::Columns;
use crate::scratch::SharedPointer;

/// Rows whose vectors a task copies.
const TASK_ROWS: usize = 64;

/// Part of attention, or all of it. Parts are of units of one row each, whose scores and
/// probabilities are those of the listed positions, in their order: a softmax is that of a unit
/// with as many positions as are listed.
#[derive(Debug)]
pub enum AttentionPart<'a, T> {
    /// Scores of `q`, `[rows, heads * head_dim]`.
    Scores { q: &'a [T], out: &'a mut [f32] },
    /// Weighted sums of vectors, `[rows, heads * head_dim]`.
    Values { probabilities: &'a [f32], out: Columns<'a, T> },
    /// Scores, softmax and weighted sums in one pass.
    Fused { q: &'a [T], out: Columns<'a, T> },
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
        mut part: AttentionPart<'_, T>,
    ) {
        let units = units.into();
        let IndexedShape { vector, place, top_k, .. } = *indexed;
        let rows = selection.len() / top_k;
        assert_eq!(selection.len(), rows * top_k, "selection is [rows, top_k]");
        assert_eq!(places.fresh.len(), rows * place, "fresh places are [rows, place]");
        let is_of_vectors =
            shape.kv_heads == 1 && shape.head_dim == vector && shape.window.is_none();
        assert!(is_of_vectors, "attention has one head of vectors, without a window");
        scratch.check::<T>(indexed, units.units, rows);
        let is_whole = matches!(part, AttentionPart::Fused { .. });
        assert!(is_whole || units.units.iter().all(|unit| unit.rows == 1), "parts are of rows");
        let call = Call { indexed, shape, pages: units.pages, places, selection };
        self.copy_last_vectors(scratch, &call, units.units);
        for unit in units.units {
            let dense = dense_rows(unit, top_k);
            if dense > 0 {
                self.add_piece(scratch, &call, Piece { unit: *unit, first: 0, rows: dense });
                self.attend_if_full(scratch, &call, &mut part);
            }
            for first in dense..unit.rows as usize {
                self.add_piece(scratch, &call, Piece { unit: *unit, first, rows: 1 });
                self.attend_if_full(scratch, &call, &mut part);
            }
        }
        self.attend_wave(scratch, &call, &mut part);
    }

    /// Adds rows to the wave.
    fn add_piece<T>(&self, scratch: &mut IndexedScratch, call: &Call<'_, T>, piece: Piece) {
        let IndexedShape { vector, top_k, .. } = *call.indexed;
        let unit = AttentionUnit {
            row0: piece.row() as u32,
            rows: piece.rows as u32,
            past: piece.position().min(top_k - 1) as u32,
            shared_row: None,
            cache_offset: scratch.units.len() * scratch.selected() * vector,
            first_page: 0,
            ..piece.unit
        };
        scratch.units.push(unit);
        scratch.pieces.push(piece);
    }

    fn attend_if_full<T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        call: &Call<'_, T>,
        part: &mut AttentionPart<'_, T>,
    ) {
        if scratch.units.len() == scratch.wave {
            self.attend_wave(scratch, call, part);
        }
    }

    /// Copies the vector of each row's last position, which attention takes as the row's own.
    fn copy_last_vectors<T: AttentionTasks>(
        &self,
        scratch: &IndexedScratch,
        call: &Call<'_, T>,
        units: &[AttentionUnit],
    ) {
        let IndexedShape { vector, place, top_k, .. } = *call.indexed;
        let to = SharedPointer(scratch.fresh.as_mut_ptr().cast::<T>());
        let rows: usize = units.iter().map(|unit| unit.rows as usize).sum();
        let bytes = 2 * rows * vector * size_of::<T>();
        let tasks = |unit: &AttentionUnit| (unit.rows as usize).div_ceil(TASK_ROWS);
        self.run_sized(units.iter().map(tasks).sum(), bytes, &|task, _| {
            let (index, task) = nth_of(task, units.iter().map(tasks));
            let (unit, first) = (&units[index], task * TASK_ROWS);
            for row in first..(unit.rows as usize).min(first + TASK_ROWS) {
                let (own, at) = (unit.past as usize + row, unit.row0 as usize + row);
                let last = match own < top_k {
                    true => own,
                    false => call.listed(at, top_k - 1, own),
                };
                let from = &call.places.of(&call.pages, unit, last, place)[..vector];
                // SAFETY: scratch has space for a vector of every row, each of which one task
                // writes.
                unsafe {
                    let to = to.pointer().add(at * vector);
                    to.copy_from_nonoverlapping(from.as_ptr(), vector);
                }
            }
        });
    }

    /// Attends for the rows of the wave, and empties it.
    fn attend_wave<T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        call: &Call<'_, T>,
        part: &mut AttentionPart<'_, T>,
    ) {
        let IndexedShape { vector, place, top_k, .. } = *call.indexed;
        let selected = scratch.selected();
        let IndexedScratch { gathered, fresh, units, pieces, .. } = scratch;
        if units.is_empty() {
            return;
        }
        let to = SharedPointer(gathered.as_mut_ptr().cast::<T>());
        let cached: usize = units.iter().map(|unit| unit.past as usize).sum();
        self.run_attention(units.len(), 2 * cached * vector * size_of::<T>(), &|task, _| {
            let (unit, piece) = (&units[task], &pieces[task]);
            let own = piece.position();
            for index in 0..unit.past as usize {
                let position = match own < top_k {
                    true => index,
                    false => call.listed(piece.row(), index, own),
                };
                let from = &call.places.of(&call.pages, &piece.unit, position, place)[..vector];
                // SAFETY: scratch has space for the selected positions of every unit of the wave,
                // each of which one task writes.
                unsafe {
                    let to = to.pointer().add(unit.cache_offset + index * vector);
                    to.copy_from_nonoverlapping(from.as_ptr(), vector);
                }
            }
        });
        let rows = call.selection.len() / top_k;
        // SAFETY: nothing writes the vectors any more.
        let (cached, fresh) = unsafe {
            let cached = elements::<T>(gathered, units.len() * selected * vector);
            (cached, elements::<T>(fresh, rows * vector))
        };
        let shape = call.shape;
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
            AttentionPart::Fused { q, out } => {
                let out = columns(out);
                self.attention(shape, &*units, q, fresh, fresh, cached, cached, None, out);
            }
        }
        units.clear();
        pieces.clear();
    }
}

/// Operands of a call.
struct Call<'a, T> {
    indexed: &'a IndexedShape,
    shape: &'a AttentionShape,
    pages: PageLists<'a>,
    places: IndexedPlaces<'a, T>,
    selection: &'a [u32],
}

impl<T> Call<'_, T> {
    /// Returns a position that a row lists; `own` is the row's.
    fn listed(&self, row: usize, index: usize, own: usize) -> usize {
        (self.selection[row * self.indexed.top_k + index] as usize).min(own)
    }
}

impl IndexedScratch {
    /// Returns the number of gathered vectors that each unit of a wave has space for.
    fn selected(&self) -> usize {
        self.shape.top_k.min(self.limits.positions.max(1))
    }
}
