//! Weights and factors of a task's block; see `softmax.rs`.
//!
//! A sink is one additional score of its head, whose probability belongs to no position: it takes
//! part in the row's highest score, and is added to its sum after all chunks.

use std::ops::Range;

use super::block::Block;
use super::prefetch::Prefetcher;
use super::shape::{CHUNK, chunks_of, within_chunk};
use super::softmax::{Weights, exponential, factor, maximum, multiply, recover, weights};
use super::task::{BlockTask, ScoresPointers};
use crate::number::Number;
use crate::simd::Simd;

/// Positions of a query within a chunk.
struct Row {
    query: usize,
    chunk: usize,
    seen: Range<usize>,
}

impl<S: Simd> Block<'_, S> {
    /// Returns the location of the weight of a row's first position. The weights of a chunk are
    /// stored from its first position; pairs are stored at the beginning of the space for the same
    /// number of f32. The weight of a pair before the row is 0.
    ///
    /// # Safety
    /// `to` has space for all of the chunk, and for two vectors after it.
    #[inline(always)]
    unsafe fn weights_at(&self, to: *mut f32, row: &Row) -> Weights {
        if !self.pairs {
            return Weights::Plain(to.wrapping_add(row.seen.start));
        }
        let first = row.chunk * CHUNK;
        let to = to.wrapping_add(first).cast::<half::bf16>();
        // SAFETY: the caller's promise.
        unsafe {
            if row.seen.start > first {
                *to.add(row.seen.start - first - 1) = half::bf16::ZERO;
            }
            Weights::Rounded(to.add(row.seen.start - first))
        }
    }
}

impl<T: Number> BlockTask<'_, T> {
    /// Returns every query's rows of some chunks.
    #[inline(always)]
    fn rows_of<S: Simd>(
        &self,
        block: &Block<'_, S>,
        chunks: &Range<usize>,
    ) -> impl Iterator<Item = Row> {
        let Range { start, end } = *chunks;
        (0..block.queries()).flat_map(move |query| {
            let seen = block.seen(query);
            let own = chunks_of(&seen);
            (own.start.max(start)..own.end.min(end)).map(move |chunk| Row {
                query,
                chunk,
                seen: within_chunk(&seen, chunk),
            })
        })
    }

    /// Converts the scores of some chunks to weights; stores each row's highest score and sum.
    ///
    /// # Safety
    /// Same contract as [`SimdTask::run`](crate::variant::SimdTask::run); `scores` are the block's.
    #[inline(always)]
    pub(super) unsafe fn run_weights<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: ScoresPointers,
        chunks: &Range<usize>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        for row in self.rows_of(block, chunks) {
            let from = scores.from.wrapping_add(row.query * scores.stride + row.seen.start);
            let to = scores.to.wrapping_add(row.query * scores.stride_to);
            // SAFETY: the caller's promise: a chunk of visible positions, and space for the results
            // of every query of every chunk.
            unsafe {
                let out = if self.steps.values {
                    block.weights_at(to, &row)
                } else {
                    Weights::Plain(to.wrapping_add(row.seen.start))
                };
                let len = row.seen.len();
                let highest = maximum(block.s, from, len);
                let results = self.results(block.queries(), row.chunk);
                *results.factors.add(row.query) = highest;
                let sum = weights(block.s, from, len, out, highest, prefetcher);
                *results.sums.add(row.query) = sum;
            }
        }
    }

    /// Converts the probabilities of some chunks back to weights; stores each row's factor.
    ///
    /// # Safety
    /// Same contract as [`BlockTask::run_weights`].
    #[inline(always)]
    pub(super) unsafe fn recover_weights<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: ScoresPointers,
        chunks: &Range<usize>,
    ) {
        for row in self.rows_of(block, chunks) {
            let at = row.query * scores.stride_to;
            let from = scores.from.wrapping_add(row.query * scores.stride + row.seen.start);
            // SAFETY: the caller's promise.
            unsafe {
                let len = row.seen.len();
                let largest = maximum(block.s, from, len);
                *self.results(block.queries(), row.chunk).factors.add(row.query) = largest;
                // NaN probabilities have a maximum below 0, and give NaN weights.
                if largest != 0.0 {
                    let out = block.weights_at(scores.to.wrapping_add(at), &row);
                    recover(block.s, from, len, out, largest);
                }
            }
        }
    }

    /// Converts highest scores and sums of all chunks to the rows' factors; if no values follow,
    /// weights become probabilities.
    ///
    /// # Safety
    /// Same contract as [`BlockTask::run_weights`], which must have run before.
    #[inline(always)]
    pub(super) unsafe fn run_factors<S: Simd>(&self, block: &Block<'_, S>, scores: ScoresPointers) {
        let (s, queries) = (block.s, block.queries());
        for query in 0..queries {
            let seen = block.seen(query);
            let chunks = chunks_of(&seen);
            // SAFETY: the caller's promise.
            unsafe {
                let highest_of = |chunk| self.results(queries, chunk).factors.add(query);
                let sink = self.sink(block, query);
                let highest = chunks.clone().fold(sink, |most, chunk| most.max(*highest_of(chunk)));
                let mut sum = 0.0;
                for chunk in chunks.clone() {
                    let of_chunk = *self.results(queries, chunk).sums.add(query);
                    sum += of_chunk * exponential(s, *highest_of(chunk) - highest);
                }
                if !self.tensors.sinks.is_null() {
                    sum += exponential(s, sink - highest);
                }
                for chunk in chunks {
                    let of_chunk = factor(s, *highest_of(chunk) - highest, sum);
                    *highest_of(chunk) = of_chunk;
                    if !self.steps.values {
                        let seen = within_chunk(&seen, chunk);
                        let at = scores.to.wrapping_add(query * scores.stride_to + seen.start);
                        multiply(s, at, seen.len(), of_chunk);
                    }
                }
            }
        }
    }

    /// Returns the sink of a query's head; a value below all scores if there is none.
    ///
    /// # Safety
    /// There is a sink for each head, or none.
    #[inline(always)]
    unsafe fn sink<S: Simd>(&self, block: &Block<'_, S>, query: usize) -> f32 {
        if self.tensors.sinks.is_null() {
            return f32::NEG_INFINITY;
        }
        // SAFETY: the caller's promise.
        unsafe { *self.tensors.sinks.add(block.head(query)) }
    }
}
