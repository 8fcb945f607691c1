//! What one task runs: scores, softmax and weighted values of its block, as far as its part goes.

use super::block::{Block, Source};
use super::prefetch::Prefetcher;
use super::shape::{chunks_of, head_stride, within_chunk};
use super::softmax::multiply;
use super::task::{BlockTask, Part, Scores, transposed_len};
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::SimdTask;

impl<T: Number> SimdTask for BlockTask<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let group = self.shape.group();
        let head = self.rows.len() * group * head_stride(self.shape.head_dim);
        let transposed = self.scratch.wrapping_add(3 * head);
        let block = Block {
            s,
            shape: self.shape,
            unit: self.unit,
            pages: self.pages,
            rows: self.rows.clone(),
            group,
            window: self.shape.most_seen(),
            packed: self.scratch,
            pairs: !T::IS_F32 && self.variant.multiplies_pairs(),
            transposed,
        };
        // SAFETY: units were checked against all slices; scratch was sized for the blocks that the
        // schedule makes.
        unsafe {
            let scores = self.scores(
                self.scratch
                    .wrapping_add(3 * head + transposed_len(self.shape.head_dim, block.queries())),
            );
            let mut prefetcher = self.prefetcher();
            prefetcher.fill_pause(s);
            self.ask_for_rows(s);
            self.run_scores(&block, scores, &mut prefetcher);
            if self.steps.softmax {
                prefetcher.fill_pause(s);
                self.run_softmax(&block, scores, &mut prefetcher);
            }
            if self.steps.values {
                self.run_values(&block, scores, self.scratch.wrapping_add(head), &mut prefetcher);
            }
            prefetcher.finish(s);
        }
    }
}

impl<T: Number> BlockTask<'_, T> {
    /// # Safety
    /// As the caller, [`SimdTask::run`].
    #[inline(always)]
    unsafe fn run_scores<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let positions = match self.part {
            Part::Whole => block.positions(),
            Part::Scores(chunk) => within_chunk(&block.positions(), chunk),
            _ => return,
        };
        if self.steps.scores {
            // SAFETY: the caller's promise.
            unsafe {
                let out = (scores.to, scores.stride);
                match self.tensors.k {
                    Source::Plain { fresh, cache } => {
                        block.pack_queries(self.tensors.q);
                        block.scores((fresh, cache), out, positions, prefetcher);
                    }
                    Source::Four { fresh, cache } => {
                        block.pack_four_queries(self.tensors.q);
                        block.four_scores((fresh, cache), out, positions, prefetcher);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As the caller, [`SimdTask::run`]; `scratch` has room for two heads of every query.
    #[inline(always)]
    unsafe fn run_values<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        scratch: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let whole = self.part == Part::Whole;
        let positions = block.positions();
        let all = chunks_of(&positions);
        let first = all.start;
        let results = |chunk: usize| self.chunk_results(block.queries(), chunk).2;
        let (chunks, totals) = match self.part {
            Part::Whole => (all.clone(), scratch),
            Part::Values(chunk) => (chunk..chunk + 1, results(chunk)),
            Part::Finish => (0..0, results(first)),
            _ => return,
        };
        let head = block.queries() * head_stride(self.shape.head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            for chunk in chunks {
                let weights = (scores.to.cast_const(), scores.stride);
                let added = whole && chunk > first;
                let sums = if added { scratch.add(head) } else { totals };
                let range = within_chunk(&positions, chunk);
                if whole && self.steps.softmax {
                    for query in 0..block.queries() {
                        let seen = within_chunk(&block.seen(query), chunk);
                        if !seen.is_empty() {
                            let row = scores.to.wrapping_add(query * scores.stride + seen.start);
                            multiply(block.s, row, seen.len(), *block.factor(query));
                        }
                    }
                }
                match self.tensors.v {
                    Source::Plain { fresh, cache } => {
                        block.values((fresh, cache), weights, range, sums, prefetcher);
                    }
                    Source::Four { fresh, cache } => {
                        block.four_values((fresh, cache), weights, range, sums, prefetcher);
                    }
                }
                if added {
                    block.add_sums(sums, totals, chunk);
                }
            }
            if self.part == Part::Finish {
                for chunk in first + 1..all.end {
                    block.add_sums(results(chunk), totals, chunk);
                }
            }
            if whole || self.part == Part::Finish {
                match self.tensors.v {
                    Source::Plain { .. } => block.store_heads(totals, self.tensors.out),
                    Source::Four { .. } => block.store_four_heads(totals, self.tensors.out),
                }
            }
        }
    }
}
