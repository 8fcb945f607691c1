//! The work of one task: scores, weights and weighted values of the part of its block.

use std::ops::Range;

use super::block::{Block, KvSource};
use super::prefetch::Prefetcher;
use super::shape::{chunks_of, head_stride, within_chunk};
use super::steps::{ScoresOf, Softmax, ValuesOf};
use super::strided::Strided;
use super::task::{BlockPart, BlockTask, ScoresPointers, transposed_len};
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::SimdTask;

impl<T: Number> SimdTask for BlockTask<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let group = self.shape.group();
        let head = self.rows.len() * group * head_stride(self.shape.head_dim);
        let transposed = self.scratch.wrapping_add(2 * head);
        let block = Block {
            s,
            shape: self.shape,
            unit: self.unit,
            pages: self.pages,
            rows: self.rows.clone(),
            group,
            window: self.shape.max_seen(),
            packed: self.scratch,
            pairs: self.multiplies_pairs(),
            transposed,
        };
        let scratch_offset = transposed_len(self.shape.head_dim, block.queries());
        let scores = self.scores(transposed.wrapping_add(scratch_offset));
        // SAFETY: units were checked against all slices; scratch was sized for the blocks that the
        // schedule makes.
        unsafe {
            match self.part {
                BlockPart::Chunks(first, end) => {
                    let mut prefetcher = self.prefetcher();
                    prefetcher.fill_pause(s);
                    self.ask_for_rows(s);
                    self.run_chunks(&block, scores, first..end, &mut prefetcher);
                    prefetcher.finish(s);
                }
                BlockPart::Combine => {}
            }
            if self.is_last {
                self.finish(&block, scores, self.scratch.wrapping_add(head));
            }
        }
    }
}

impl<T: Number> BlockTask<'_, T> {
    /// Returns true if scores and weighted values are dot products of pairs: over bf16, on a
    /// machine that supports them. Independent of the batch, so that a row keeps its bits.
    #[inline(always)]
    fn multiplies_pairs(&self) -> bool {
        let is_plain = self.tensors.k.is_plain() && self.tensors.v.is_plain();
        !T::IS_F32 && is_plain && self.variant.multiplies_pairs()
    }

    /// # Safety
    /// Same contract as [`SimdTask::run`].
    #[inline(always)]
    unsafe fn run_chunks<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: ScoresPointers,
        chunks: Range<usize>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let s = block.s;
        if self.steps.scores {
            let to = Strided { base: scores.to, stride: scores.stride_to };
            let positions = self.positions();
            let prefetcher = &mut *prefetcher;
            // SAFETY: the caller's promise: scratch has space for the block's queries.
            unsafe {
                match self.tensors.k {
                    KvSource::Plain(keys) => {
                        block.pack_queries(self.tensors.q);
                        s.out_of_line(ScoresOf { block, keys, to, positions, prefetcher });
                    }
                    KvSource::Kv4(keys) => {
                        block.pack_kv4_queries(self.tensors.q);
                        s.out_of_line(ScoresOf { block, keys, to, positions, prefetcher });
                    }
                    KvSource::Kv8(keys) => {
                        block.pack_queries(self.tensors.q);
                        s.out_of_line(ScoresOf { block, keys, to, positions, prefetcher });
                    }
                }
            }
        }
        if self.steps.softmax || self.steps.values {
            let (chunks, prefetcher) = (&chunks, &mut *prefetcher);
            s.out_of_line(Softmax { task: self, block, scores, chunks, prefetcher });
        }
        if !self.steps.values {
            return;
        }
        let weights = Strided { base: scores.to.cast_const(), stride: scores.stride_to };
        for chunk in chunks {
            let positions = within_chunk(&block.positions(), chunk);
            let sums = self.results(block.queries(), chunk).heads;
            let prefetcher = &mut *prefetcher;
            match self.tensors.v {
                KvSource::Plain(values) => {
                    s.out_of_line(ValuesOf { block, values, weights, positions, sums, prefetcher });
                }
                KvSource::Kv4(values) => {
                    s.out_of_line(ValuesOf { block, values, weights, positions, sums, prefetcher });
                }
                KvSource::Kv8(values) => {
                    s.out_of_line(ValuesOf { block, values, weights, positions, sums, prefetcher });
                }
            }
        }
    }

    /// # Safety
    /// Same contract as [`SimdTask::run`]; `totals` has space for a head of every query.
    #[inline(always)]
    unsafe fn finish<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: ScoresPointers,
        totals: *mut f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.steps.softmax {
                self.run_factors(block, scores);
            }
            if !self.steps.values {
                return;
            }
            self.add_results(block, totals);
            match self.tensors.v {
                KvSource::Plain(_) => block.store_heads(totals, self.tensors.out),
                KvSource::Kv4(_) => block.store_kv4_heads(totals, self.tensors.out),
                KvSource::Kv8(_) => block.store_kv8_heads(totals, self.tensors.out),
            }
        }
    }

    /// Adds up the weighted values of all chunks, in order, each times its factor; those of a chunk
    /// whose factor is 0 may have any value.
    ///
    /// # Safety
    /// Same contract as [`BlockTask::finish`].
    #[inline(always)]
    unsafe fn add_results<S: Simd>(&self, block: &Block<'_, S>, totals: *mut f32) {
        let (s, queries) = (block.s, block.queries());
        let head = head_stride(self.shape.head_dim);
        let used = match self.tensors.v {
            KvSource::Plain(_) | KvSource::Kv8(_) => {
                self.shape.head_dim.next_multiple_of(2 * S::LANES)
            }
            KvSource::Kv4(_) => head,
        };
        for query in 0..queries {
            let totals = totals.wrapping_add(query * head);
            // SAFETY: the caller's promise.
            unsafe {
                std::ptr::write_bytes(totals, 0, used);
                for chunk in chunks_of(&block.seen(query)) {
                    let results = self.results(queries, chunk);
                    let factor = *results.factors.add(query);
                    if factor == 0.0 {
                        continue;
                    }
                    let (factor, sums) = (s.splat(factor), results.heads.add(query * head));
                    for at in (0..used).step_by(S::LANES) {
                        let total = s.load(totals.cast_const().add(at));
                        let total = s.fma(factor, s.load(sums.cast_const().add(at)), total);
                        s.store(totals.add(at), total);
                    }
                }
            }
        }
    }
}
