//! Scores of positions, and the selection of the highest.

use super::{IndexedPlaces, IndexedScratch, IndexedShape, Piece, dense_rows, elements, nth_of};
use crate::Kernels;
use crate::attention::compiled::AttentionTasks;
use crate::attention::pages::{AttentionUnits, PageLists};
use crate::attention::shape::{AttentionShape, AttentionUnit, scores_len};
use crate::number::Number;
use crate::scratch::{AlignedBuffer, SharedPointer};

/// Positions whose keys a task copies.
const TASK_POSITIONS: usize = 256;

impl Kernels {
    /// Lists the positions that every row attends to: those with the highest scores `sum_h weight_h
    /// * max(0, query_h · key)`, the lowest positions first among equals, ascending.
    ///
    /// `queries` is `[rows, heads * head_dim]`, `weights` `[rows, heads]`, `selection` `[rows,
    /// top_k]`, of which a row writes as many as there are positions up to its own, at most all.
    ///
    /// # Panics
    /// If shapes do not match, or units exceed `scratch`.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each with its own name.
    pub fn select_positions<'a, T: AttentionTasks>(
        &self,
        scratch: &mut IndexedScratch,
        shape: &IndexedShape,
        units: impl Into<AttentionUnits<'a>>,
        queries: &[T],
        weights: &[f32],
        places: IndexedPlaces<'_, T>,
        selection: &mut [u32],
    ) {
        let units = units.into();
        let IndexedShape { vector, place, heads, head_dim, top_k } = *shape;
        let rows = weights.len() / heads;
        assert_eq!(weights.len(), rows * heads, "weights are [rows, heads]");
        assert_eq!(queries.len(), rows * heads * head_dim, "queries are [rows, heads * head_dim]");
        assert_eq!(places.fresh.len(), rows * place, "fresh places are [rows, place]");
        assert_eq!(selection.len(), rows * top_k, "selection is [rows, top_k]");
        assert_eq!(place, vector + head_dim, "a place has a vector and a key");
        scratch.check::<T>(shape, units.units, rows);
        for unit in units.units {
            for row in 0..dense_rows(unit, top_k) {
                let to = &mut selection[(unit.row0 as usize + row) * top_k..][..top_k];
                let positions = 0..=unit.past + row as u32;
                to.iter_mut().zip(positions).for_each(|(to, position)| *to = position);
            }
        }
        self.copy_fresh_keys(scratch, shape, rows, places.fresh);
        let keys = PositionKeys { shape, pages: units.pages, places };
        let scoring = Scoring { heads, head_dim, top_k, queries, weights, keys };
        let selection = SharedPointer(selection.as_mut_ptr());
        let (mut scored, mut cached) = (0, 0);
        for (index, unit) in units.units.iter().enumerate() {
            let mut first = dense_rows(unit, top_k);
            while first < unit.rows as usize {
                let past = unit.past as usize + first;
                let left = scratch.scores.len() - scored;
                let rows = rows_within(left / heads, past).min(unit.rows as usize - first);
                let is_full = rows == 0
                    || cached + past > scratch.limits.positions
                    || scratch.pieces.len() == scratch.pieces.capacity();
                if is_full {
                    self.select_wave(scratch, &scoring, selection);
                    (scored, cached) = (0, 0);
                    continue;
                }
                scratch.pieces.push(Piece { index, unit: *unit, first, rows });
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

    /// Copies the keys of the call's rows.
    fn copy_fresh_keys<T: AttentionTasks>(
        &self,
        scratch: &IndexedScratch,
        shape: &IndexedShape,
        rows: usize,
        fresh: &[T],
    ) {
        let IndexedShape { vector, place, head_dim, .. } = *shape;
        let to = SharedPointer(scratch.fresh.as_mut_ptr().cast::<T>());
        let bytes = 2 * rows * head_dim * size_of::<T>();
        self.run_sized(rows.div_ceil(TASK_POSITIONS), bytes, &|task, _| {
            let first = task * TASK_POSITIONS;
            for row in first..rows.min(first + TASK_POSITIONS) {
                let key = &fresh[row * place + vector..][..head_dim];
                // SAFETY: scratch has space for a key of every row, each of which one task writes.
                unsafe {
                    let to = to.pointer().add(row * head_dim);
                    to.copy_from_nonoverlapping(key.as_ptr(), head_dim);
                }
            }
        });
    }

    /// Copies the cached keys of each unit of a wave.
    fn gather_keys<T: AttentionTasks, K: ScoredKeys<T>>(
        &self,
        gathered: &AlignedBuffer,
        units: &[AttentionUnit],
        pieces: &[Piece],
        scoring: &Scoring<'_, T, K>,
    ) {
        let head_dim = scoring.head_dim;
        let to = SharedPointer(gathered.as_mut_ptr().cast::<T>());
        let tasks = |unit: &AttentionUnit| (unit.past as usize).div_ceil(TASK_POSITIONS);
        let all_tasks: usize = units.iter().map(tasks).sum();
        let cached: usize = units.iter().map(|unit| unit.past as usize).sum();
        let bytes = 2 * cached * head_dim * size_of::<T>();
        self.run_sized(all_tasks, bytes, &|task, _| {
            let (index, task) = nth_of(task, units.iter().map(tasks));
            let (unit, piece) = (&units[index], &pieces[index]);
            let first = task * TASK_POSITIONS;
            for position in first..(unit.past as usize).min(first + TASK_POSITIONS) {
                let key = &scoring.keys.key(piece, position)[..head_dim];
                // SAFETY: scratch has space for the keys of all units of the wave, each of which
                // one task writes.
                unsafe {
                    let to = to.pointer().add(unit.cache_offset + position * head_dim);
                    to.copy_from_nonoverlapping(key.as_ptr(), head_dim);
                }
            }
        });
    }

    /// Selects for the rows of a wave, and empties it.
    pub(in crate::attention) fn select_wave<T: AttentionTasks, K: ScoredKeys<T>>(
        &self,
        scratch: &mut IndexedScratch,
        scoring: &Scoring<'_, T, K>,
        selection: SharedPointer<u32>,
    ) {
        let Scoring { heads, head_dim, top_k, queries, weights, .. } = *scoring;
        let IndexedScratch { gathered, fresh, scores, per_thread, units, pieces, .. } = scratch;
        let Some(last) = units.last() else { return };
        let cached = last.cache_offset / head_dim + last.past as usize;
        let scored = last.scores_offset + heads * last.rows as usize * last.positions();
        self.gather_keys(gathered, units, pieces, scoring);
        let rows = weights.len() / heads;
        // The order of scores does not depend on a factor of all of them.
        let shape = AttentionShape { heads, kv_heads: 1, head_dim, scale: 1.0, window: None };
        // SAFETY: nothing writes the keys any more, and nothing else the scores.
        let (cached, fresh_keys, out) = unsafe {
            let out = std::slice::from_raw_parts_mut(scores.as_mut_ptr(), scored);
            (elements::<T>(gathered, cached * head_dim), elements::<T>(fresh, rows * head_dim), out)
        };
        self.scores(&shape, &*units, queries, fresh_keys, cached, out);
        let all_rows: usize = units.iter().map(|unit| unit.rows as usize).sum();
        self.run_attention(all_rows, scored * size_of::<f32>(), &|task, thread| {
            let (index, row) = nth_of(task, units.iter().map(|unit| unit.rows as usize));
            let unit = &units[index];
            let (positions, stride) = (scoring.keys.seen(&pieces[index], row), unit.positions());
            let at = unit.row0 as usize + row;
            let weights = &weights[at * heads..][..heads];
            // SAFETY: this thread alone uses its scratch, which holds two numbers per position; the
            // scores of the row were written; no other task writes the row's selection.
            let (totals, order, to, scores) = unsafe {
                let totals = per_thread.for_thread(thread);
                let order = totals.add(positions).cast::<u32>();
                let first = unit.scores_offset + row * heads * stride;
                (
                    std::slice::from_raw_parts_mut(totals, positions),
                    std::slice::from_raw_parts_mut(order, positions),
                    std::slice::from_raw_parts_mut(selection.pointer().add(at * top_k), top_k),
                    scores.as_mut_ptr().cast_const().add(first),
                )
            };
            totals.fill(0.0);
            for (head, weight) in weights.iter().enumerate() {
                // SAFETY: as above; a head has the scores of all positions that the row sees.
                let of_head =
                    unsafe { std::slice::from_raw_parts(scores.add(head * stride), positions) };
                for (total, score) in totals.iter_mut().zip(of_head) {
                    *total += weight * score.max(0.0);
                }
            }
            choose(totals, order, to);
        });
        units.clear();
        pieces.clear();
    }
}

/// Operands of scores.
pub(in crate::attention) struct Scoring<'a, T, K> {
    pub(in crate::attention) heads: usize,
    pub(in crate::attention) head_dim: usize,
    /// Number of keys that a row selects, of more.
    pub(in crate::attention) top_k: usize,
    /// `[rows, heads * head_dim]`.
    pub(in crate::attention) queries: &'a [T],
    /// `[rows, heads]`.
    pub(in crate::attention) weights: &'a [f32],
    pub(in crate::attention) keys: K,
}

/// The keys that rows of a wave select from.
pub(in crate::attention) trait ScoredKeys<T>: Sync {
    /// Returns a cached key of a piece, and possibly more after it.
    fn key(&self, piece: &Piece, index: usize) -> &[T];

    /// Returns the number of keys that a row of a piece selects from, the first ones.
    fn seen(&self, piece: &Piece, row: usize) -> usize;
}

/// Keys of positions. Those of a piece's own rows are fresh and follow the cached ones.
struct PositionKeys<'a, T> {
    shape: &'a IndexedShape,
    pages: PageLists<'a>,
    places: IndexedPlaces<'a, T>,
}

impl<T: Number> ScoredKeys<T> for PositionKeys<'_, T> {
    fn key(&self, piece: &Piece, index: usize) -> &[T] {
        let IndexedShape { vector, place, .. } = *self.shape;
        &self.places.elements(&self.pages, &piece.unit, index, place)[vector..]
    }

    fn seen(&self, piece: &Piece, row: usize) -> usize {
        piece.position() + row + 1
    }
}

/// Returns the maximum number of rows after `past` positions whose scores for one head, `rows *
/// (past + rows)`, are at most `scores`.
pub(in crate::attention) fn rows_within(scores: usize, past: usize) -> usize {
    let shape = AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
    // All rows within the largest number of rows without earlier positions.
    let (mut fits, mut exceeds) = (0, scores.isqrt() + 1);
    while fits + 1 < exceeds {
        let middle = fits.midpoint(exceeds);
        if scores_len(&shape, middle, past) <= scores { fits = middle } else { exceeds = middle }
    }
    fits
}

/// Lists the positions with the highest scores, as many as `to` has, the lowest first among equals.
/// `order` has as many elements as `scores`, which are more.
fn choose(scores: &[f32], order: &mut [u32], to: &mut [u32]) {
    (0..).zip(order.iter_mut()).for_each(|(position, place)| *place = position);
    let key = |place: &u32| scores[*place as usize];
    let higher = |a: &u32, b: &u32| key(b).total_cmp(&key(a)).then(a.cmp(b));
    order.select_nth_unstable_by(to.len() - 1, higher);
    to.copy_from_slice(&order[..to.len()]);
    to.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_scores_are_chosen_and_the_lowest_positions_among_equals() {
        let chosen = |scores: &[f32], count: usize| {
            let (mut order, mut to) = (vec![0; scores.len()], vec![0; count]);
            choose(scores, &mut order, &mut to);
            to
        };
        assert_eq!(chosen(&[0.0, 3.0, -1.0, 2.0, 3.0], 2), [1, 4]);
        assert_eq!(chosen(&[1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 3), [0, 2, 3]);
        assert_eq!(chosen(&[-2.0, -1.0, -3.0], 1), [1]);
        // A score that is no number is an order too.
        assert_eq!(chosen(&[0.0, f32::NAN, 1.0], 2).len(), 2);
    }

    #[test]
    fn rows_fit_the_scores() {
        for (scores, past, rows) in [(0, 0, 0), (9, 0, 3), (10, 4, 1), (12, 4, 2), (4, 4, 0)] {
            assert_eq!(rows_within(scores, past), rows, "{scores} after {past}");
        }
    }
}
