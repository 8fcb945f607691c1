//! Probabilities of a task's block: the softmax of each query's scores, at once or by chunks.
//!
//! A sink is one more score of its head, whose probability belongs to no position: it takes part in
//! the maximum, and is added to the sum behind all chunks.

use std::ops::Range;

use super::block::Block;
use super::prefetch::Prefetcher;
use super::shape::{chunks_of, within_chunk};
use super::softmax::{exponentials, maximum, multiply};
use super::task::{BlockTask, Part, Scores};
use crate::number::Number;
use crate::simd::{Simd, math};

/// Scores of a query, which become its probabilities.
struct Row {
    query: usize,
    /// Positions that it sees.
    seen: Range<usize>,
    /// Position 0, which need not be there.
    from: *const f32,
    to: *mut f32,
}

impl Row {
    /// Scores of a chunk, where their exponentials go, and how many there are.
    #[inline(always)]
    fn chunk(&self, chunk: usize) -> (*const f32, *mut f32, usize) {
        let positions = within_chunk(&self.seen, chunk);
        let first = positions.start;
        (self.from.wrapping_add(first), self.to.wrapping_add(first), positions.len())
    }
}

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
        prefetcher: &mut Prefetcher<'_>,
    ) {
        for query in 0..block.queries() {
            let (from, to) = (
                scores.from.wrapping_add(query * scores.stride),
                scores.to.wrapping_add(query * scores.stride),
            );
            let row = Row { query, seen: block.seen(query), from, to };
            // SAFETY: the caller's promise.
            unsafe {
                match self.part {
                    Part::Whole => self.whole_softmax(block, &row, prefetcher),
                    Part::Finish => {}
                    Part::Scores(chunk) | Part::Exponentials(chunk) | Part::Values(chunk) => {
                        if chunks_of(&row.seen).contains(&chunk) {
                            self.chunk_softmax(block, &row, chunk, prefetcher);
                        }
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`BlockTask::run_softmax`]; the row is one of the block.
    #[inline(always)]
    unsafe fn whole_softmax<S: Simd>(
        &self,
        block: &Block<'_, S>,
        row: &Row,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let (s, chunks) = (block.s, chunks_of(&row.seen));
        // SAFETY: the caller's promise: chunks of visible positions.
        unsafe {
            let sink = self.sink(block, row.query);
            let mut highest = sink;
            for chunk in chunks.clone() {
                let (from, _, len) = row.chunk(chunk);
                highest = highest.max(maximum(s, from, len));
            }
            let mut sum = 0.0;
            for chunk in chunks.clone() {
                let part = exponentials(s, row.chunk(chunk), highest, prefetcher);
                sum = if chunk == chunks.start { part } else { sum + part };
            }
            let sum = self.with_sink(s, sum, || sink - highest);
            if self.steps.values {
                // What is read soon after is multiplied chunk by chunk.
                *block.factor(row.query) = 1.0 / sum;
                return;
            }
            for chunk in chunks {
                let (_, to, len) = row.chunk(chunk);
                multiply(s, to, len, 1.0 / sum);
            }
        }
    }

    /// A chunk's maximum, exponentials and their sum, or probabilities, whichever the part is.
    ///
    /// # Safety
    /// As [`BlockTask::whole_softmax`]; the row sees positions of the chunk.
    #[inline(always)]
    unsafe fn chunk_softmax<S: Simd>(
        &self,
        block: &Block<'_, S>,
        row: &Row,
        chunk: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let (s, queries, chunks) = (block.s, block.queries(), chunks_of(&row.seen));
        let (from, to, len) = row.chunk(chunk);
        let highest_of = |chunk| self.chunk_results(queries, chunk).0.wrapping_add(row.query);
        let sum_of = |chunk| self.chunk_results(queries, chunk).1.wrapping_add(row.query);
        // SAFETY: the caller's promise: chunks of visible positions, and a float of each kind for
        // every query of every chunk.
        unsafe {
            if matches!(self.part, Part::Scores(_)) {
                *highest_of(chunk) = maximum(s, from, len);
                return;
            }
            let sink = self.sink(block, row.query);
            let all = chunks.clone();
            let highest = || all.fold(sink, |highest, chunk| highest.max(*highest_of(chunk)));
            if matches!(self.part, Part::Exponentials(_)) {
                *sum_of(chunk) = exponentials(s, (from, to, len), highest(), prefetcher);
                return;
            }
            let mut sum = *sum_of(chunks.start);
            for chunk in chunks.start + 1..chunks.end {
                sum += *sum_of(chunk);
            }
            multiply(s, to, len, 1.0 / self.with_sink(s, sum, || sink - highest()));
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

    /// A sum of exponentials and that of a sink, `above` the highest score, if there is one.
    #[inline(always)]
    fn with_sink<S: Simd>(&self, s: S, sum: f32, above: impl FnOnce() -> f32) -> f32 {
        if self.tensors.sinks.is_null() {
            return sum;
        }
        let [of_sink] = math::exp(s, [s.splat(above())]);
        sum + s.max_lanes(of_sink)
    }
}
