//! Probabilities of a task's block: the softmax of each query's scores, by the chunks of its part.
//!
//! A sink is one more score of its head, whose probability belongs to no position: it takes part in
//! the maximum, and is added to the sum behind all chunks.

use super::block::Block;
use super::prefetch::Prefetcher;
use super::shape::{chunks_of, within_chunk};
use super::softmax::{exponentials, maximum, multiply};
use super::task::{BlockTask, Part, Scores};
use crate::number::Number;
use crate::simd::{Simd, math};

impl<T: Number> BlockTask<'_, T> {
    /// Scores become exponentials, and probabilities unless values follow in the same part.
    ///
    /// # Safety
    /// As [`SimdTask::run`](crate::variant::SimdTask::run); `scores` are the block's.
    #[inline(always)]
    pub(super) unsafe fn run_softmax<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        prefetcher: &mut Prefetcher,
    ) {
        if self.part == Part::Finish {
            return;
        }
        for query in 0..block.queries() {
            // SAFETY: the caller's promise.
            unsafe { self.softmax_of(block, query, scores, prefetcher) };
        }
    }

    /// # Safety
    /// As [`BlockTask::run_softmax`].
    #[inline(always)]
    unsafe fn softmax_of<S: Simd>(
        &self,
        block: &Block<'_, S>,
        query: usize,
        scores: Scores,
        prefetcher: &mut Prefetcher,
    ) {
        let (s, queries) = (block.s, block.queries());
        let seen = block.seen(query);
        let (chunks, row) = (chunks_of(&seen), query * scores.stride);
        let at = |chunk: usize| {
            let positions = within_chunk(&seen, chunk);
            (row + positions.start, positions.len())
        };
        let highest_of = |chunk| self.chunk_results(queries, chunk).0.wrapping_add(query);
        let sum_of = |chunk| self.chunk_results(queries, chunk).1.wrapping_add(query);
        let whole = self.part == Part::Whole;
        let within = match self.part {
            Part::Scores(chunk) | Part::Exponentials(chunk) | Part::Values(chunk) => {
                chunk.clamp(chunks.start, chunks.end)..(chunk + 1).clamp(chunks.start, chunks.end)
            }
            Part::Whole | Part::Finish => chunks.clone(),
        };
        // SAFETY: the caller's promise: chunks of visible positions, and a float of each kind for
        // every query of every chunk.
        unsafe {
            let sink = self.sink(block, query);
            let mut highest = sink;
            if whole || matches!(self.part, Part::Scores(_)) {
                for chunk in within.clone() {
                    let (at, len) = at(chunk);
                    let of_chunk = maximum(s, scores.from.wrapping_add(at), len);
                    highest = highest.max(of_chunk);
                    if !whole {
                        *highest_of(chunk) = of_chunk;
                    }
                }
            } else {
                for chunk in chunks.clone() {
                    highest = highest.max(*highest_of(chunk));
                }
            }
            let mut sum = 0.0;
            if whole || matches!(self.part, Part::Exponentials(_)) {
                for chunk in within.clone() {
                    let (at, len) = at(chunk);
                    let places = (scores.from.wrapping_add(at), scores.to.wrapping_add(at), len);
                    let part = exponentials(s, places, highest, prefetcher);
                    sum = if chunk == chunks.start { part } else { sum + part };
                    if !whole {
                        *sum_of(chunk) = part;
                    }
                }
            } else if matches!(self.part, Part::Values(_)) {
                for chunk in chunks.clone() {
                    let part = *sum_of(chunk);
                    sum = if chunk == chunks.start { part } else { sum + part };
                }
            }
            if !self.tensors.sinks.is_null() {
                let [of_sink] = math::exp(s, [s.splat(sink - highest)]);
                sum += s.max_lanes(of_sink);
            }
            if whole && self.steps.values {
                // What is read soon after is multiplied chunk by chunk.
                *block.factor(query) = 1.0 / sum;
            } else if whole || matches!(self.part, Part::Values(_)) {
                for chunk in within {
                    let (at, len) = at(chunk);
                    multiply(s, scores.to.wrapping_add(at), len, 1.0 / sum);
                }
            }
        }
    }

    /// The sink of a query's head; below all scores where there is none.
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
