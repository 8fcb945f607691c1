//! Weighted values over bf16 caches with AVX512-BF16: the weights of two positions are a pair, and
//! so are their values, element by element, so that one instruction adds 32 products.
//!
//! A pair is an even position and the next one. A few queries (decode) multiply values in place in
//! memory; more queries share a block of pairs that were interleaved in scratch.
//!
//! **Order of the sum.** Within a chunk a weighted value adds pair after pair, from the first that
//! its query sees; in a pair of which it sees only one position, the other counts as zeros. Tiles
//! and blocks do not influence the order. Sums have the order of elements that `unpack` defines: in
//! each line of 32 elements first those whose index has bit 2 clear, then those whose index has it
//! set (`store_pair_heads`).

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are surer to stay in registers by index"
)]

use std::ops::Range;

use half::bf16;

use super::block::Block;
pub(super) use super::pair_tiles::BLOCK;
use super::pair_tiles::{
    LINE, Queries, Run, add_run, add_scratch, clear, interleave, last_line, store_head,
};
use super::prefetch::Prefetcher;
use super::shape::{CHUNK, head_stride};
use super::strided::{KvPointers, Strided};
use crate::number::Number;
use crate::simd::Simd;

/// Number of positions that a few queries pass over before the next ones.
const POSITIONS_AT_ONCE: usize = 64;
/// Queries of a tile over values in place in memory, and over a block in scratch.
const FEW_QUERIES: usize = 4;
const MANY_QUERIES: usize = 6;

impl<S: Simd> Block<'_, S> {
    /// Computes the weighted values of `positions` of one chunk, one head of sums per query.
    ///
    /// # Safety
    /// Same contract as [`Block::values`](super::values); in addition, the machine has AVX512-BF16,
    /// and weights are pairs.
    #[inline(always)]
    pub(super) unsafe fn pair_values<T: Number>(
        &self,
        v: KvPointers<T>,
        weights: Strided<*const f32>,
        positions: Range<usize>,
        sums: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let v = KvPointers { fresh: v.fresh.cast::<bf16>(), cache: v.cache.cast::<bf16>() };
        // Pairs are at the beginning of the space of the chunk's scores.
        let chunk = positions.start / CHUNK * CHUNK;
        let queries = Queries {
            weights: weights.base.wrapping_add(chunk).cast(),
            weights_stride: weights.stride,
            sums,
            sums_stride: head_stride(self.shape.head_dim),
        };
        // SAFETY: the caller's promise.
        unsafe {
            for query in 0..self.queries() {
                clear(queries.from(query, 0), self.shape.head_dim);
            }
            if self.queries() <= FEW_QUERIES {
                self.few_values(v, queries, positions, chunk, prefetcher);
            } else {
                self.many_values(v, queries, positions, chunk, prefetcher);
            }
        }
    }

    /// Returns the longest prefix of the pairs of `positions` at a constant distance.
    #[inline(always)]
    fn pair_run(&self, v: KvPointers<bf16>, positions: Range<usize>) -> Run {
        let size = self.shape.head_dim;
        let (first, end) = (positions.start, positions.end);
        let segment = self.segment(v, size, &positions);
        let at = segment.base;
        let (null, stride, cached) = (std::ptr::null(), segment.stride, segment.cached);
        let one = Run { low: at, high: null, step: 0, count: 1, end: first + 1, cached };
        if !first.is_multiple_of(2) {
            return Run { low: null, high: at, ..one };
        }
        match (segment.end - first) / 2 {
            0 if first + 1 < end => {
                // The segment ends within a pair.
                let next = self.segment(v, size, &(first + 1..end));
                Run { high: next.base, end: first + 2, ..one }
            }
            0 => one,
            count => {
                let high = at.wrapping_add(stride);
                Run { low: at, high, step: 2 * stride, count, end: first + 2 * count, cached }
            }
        }
    }

    /// Adds values to the sums of up to four queries, whose rows may see different positions.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`].
    #[inline(always)]
    unsafe fn few_values(
        &self,
        v: KvPointers<bf16>,
        queries: Queries,
        positions: Range<usize>,
        chunk: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let count = self.queries();
        let seen = |query: usize| {
            let Range { start, end } = self.seen(query);
            let start = start.clamp(positions.start, positions.end);
            start..end.clamp(start, positions.end)
        };
        let mut lines = Some(prefetcher);
        // SAFETY: the caller's promise.
        unsafe {
            if self.rows.len() == 1 {
                self.add_range(v, queries, count, seen(0), chunk, lines);
                return;
            }
            for query in 0..count {
                let queries = queries.from(query, 0);
                self.add_range(v, queries, 1, seen(query), chunk, lines.take());
            }
        }
    }

    /// Adds `positions`, all of which `count` queries see, in place in memory.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`].
    #[inline(always)]
    unsafe fn add_range(
        &self,
        v: KvPointers<bf16>,
        queries: Queries,
        count: usize,
        positions: Range<usize>,
        chunk: usize,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        let mut first = positions.start;
        while first < positions.end {
            let mut run = self.pair_run(v, first..positions.end);
            let pair = (first - chunk) / 2;
            if run.low.is_null() || run.high.is_null() {
                // SAFETY: the caller's promise.
                unsafe { self.add_half(run, queries.from(0, pair), count) };
            } else {
                for at in (0..run.count).step_by(POSITIONS_AT_ONCE / 2) {
                    let pairs = (POSITIONS_AT_ONCE / 2).min(run.count - at);
                    let part = Run { count: pairs, ..run };
                    let queries = queries.from(0, pair + at);
                    // SAFETY: the caller's promise.
                    unsafe { self.add_lines(part, queries, count, prefetcher.as_deref_mut()) };
                    run.low = run.low.wrapping_add(pairs * run.step);
                    run.high = run.high.wrapping_add(pairs * run.step);
                }
            }
            first = run.end;
        }
    }

    /// Adds a pair with only one existing position, and the weights of that position.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`].
    #[inline(always)]
    unsafe fn add_half(&self, run: Run, queries: Queries, count: usize) {
        let mut weights = [0; FEW_QUERIES];
        for query in 0..count {
            // SAFETY: the caller's promise.
            let pair = unsafe { *queries.from(query, 0).weights };
            weights[query] = pair & if run.low.is_null() { 0xffff_0000 } else { 0xffff };
        }
        let queries = Queries { weights: weights.as_ptr(), weights_stride: 1, ..queries };
        // SAFETY: the caller's promise.
        unsafe { self.add_lines(run, queries, count, None) };
    }

    /// Adds the pairs of a run to the sums of `count` queries, some lines of each at a time.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`].
    #[inline(always)]
    unsafe fn add_lines(
        &self,
        run: Run,
        queries: Queries,
        count: usize,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        let head_dim = self.shape.head_dim;
        let all = head_dim.div_ceil(LINE);
        let most = if count <= 2 { 4 } else { 2 };
        let mut line = 0;
        while line < all {
            let lines = match all - line {
                left if left >= most => most,
                left => left.min(2),
            };
            let skipped = line * LINE;
            let part = Run {
                low: if run.low.is_null() { run.low } else { run.low.wrapping_add(skipped) },
                high: if run.high.is_null() { run.high } else { run.high.wrapping_add(skipped) },
                ..run
            };
            let last = if line + lines == all { last_line(head_dim) } else { u32::MAX };
            let next = match prefetcher.as_deref_mut() {
                Some(Prefetcher::Lines(ahead)) if run.cached => {
                    let elements = lines * LINE - last.count_zeros() as usize;
                    let read = 2 * run.count * elements * size_of::<bf16>();
                    Some(ahead.next(self.s, read))
                }
                _ => None,
            };
            let queries = queries.line(line);
            // SAFETY: the caller's promise.
            unsafe {
                match (count, lines) {
                    (1, 4) => add_run::<1, 4>(part, last, queries, next),
                    (2, 4) => add_run::<2, 4>(part, last, queries, next),
                    (1, 2) => add_run::<1, 2>(part, last, queries, next),
                    (2, 2) => add_run::<2, 2>(part, last, queries, next),
                    (3, 2) => add_run::<3, 2>(part, last, queries, next),
                    (4, 2) => add_run::<4, 2>(part, last, queries, next),
                    (1, _) => add_run::<1, 1>(part, last, queries, next),
                    (2, _) => add_run::<2, 1>(part, last, queries, next),
                    (3, _) => add_run::<3, 1>(part, last, queries, next),
                    _ => add_run::<4, 1>(part, last, queries, next),
                }
            }
            line += lines;
        }
    }

    /// Adds values to the sums of many queries, which share blocks of pairs in scratch.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`].
    #[inline(always)]
    unsafe fn many_values(
        &self,
        v: KvPointers<bf16>,
        queries: Queries,
        positions: Range<usize>,
        chunk: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let count = self.queries();
        let head_dim = self.shape.head_dim;
        // SAFETY: the caller's promise; scratch has space for a block of pairs.
        unsafe {
            let begin = positions.start / BLOCK * BLOCK;
            for first in (begin..positions.end).step_by(BLOCK) {
                let block = positions.start.max(first)..positions.end.min(first + BLOCK);
                let mut at = block.start;
                while at < block.end {
                    let run = self.pair_run(v, at..block.end);
                    if run.cached {
                        prefetcher.read(self.s, (run.end - at) * head_dim * size_of::<bf16>());
                    }
                    interleave(run, head_dim, self.transposed, (at - first) / 2);
                    at = run.end;
                }
                let tiles = count.div_ceil(MANY_QUERIES);
                for tile in 0..tiles {
                    let (query, end) = (tile * count / tiles, (tile + 1) * count / tiles);
                    self.add_block(v, queries, query..end, block.clone(), chunk);
                }
            }
        }
    }

    /// Adds a block in scratch to the sums of a tile of queries: the positions that all of them see
    /// together, and those before and after that only some see, query by query.
    ///
    /// # Safety
    /// Same contract as [`Block::pair_values`]; scratch holds the pairs of the block.
    #[inline(always)]
    unsafe fn add_block(
        &self,
        v: KvPointers<bf16>,
        queries: Queries,
        tile: Range<usize>,
        block: Range<usize>,
        chunk: usize,
    ) {
        let Range { start: query, end } = tile;
        let start = self.start(end - 1).clamp(block.start, block.end).next_multiple_of(2);
        let common = start..(self.limit(query).min(block.end) / 2 * 2).max(start);
        let first = block.start / BLOCK * BLOCK;
        // SAFETY: the caller's promise: each query sees all positions that it gets.
        unsafe {
            for place in query..end {
                let behind = common.start.min(self.limit(place)).min(block.end);
                let own = self.start(place).max(block.start)..behind;
                self.add_own(v, queries.from(place, 0), own, chunk, first);
            }
            if !common.is_empty() {
                let queries = queries.from(query, 0);
                self.add_pairs(queries, tile.len(), common.clone(), chunk, first);
            }
            for place in query..end {
                let own = common.end.max(self.start(place))..self.limit(place).min(block.end);
                self.add_own(v, queries.from(place, 0), own, chunk, first);
            }
        }
    }

    /// Adds positions of the block in scratch, starting at position `first`, that one query sees.
    ///
    /// # Safety
    /// Same contract as [`Block::add_block`].
    #[inline(always)]
    unsafe fn add_own(
        &self,
        v: KvPointers<bf16>,
        query: Queries,
        own: Range<usize>,
        chunk: usize,
        first: usize,
    ) {
        if own.is_empty() {
            return;
        }
        let whole = own.start.next_multiple_of(2)..own.end / 2 * 2;
        // SAFETY: the caller's promise.
        unsafe {
            if own.start < whole.start {
                self.add_range(v, query, 1, own.start..whole.start, chunk, None);
            }
            if whole.start < whole.end {
                self.add_pairs(query, 1, whole.clone(), chunk, first);
            }
            if whole.end < own.end {
                self.add_range(v, query, 1, whole.end..own.end, chunk, None);
            }
        }
    }

    /// Adds whole pairs of the block in scratch, starting at position `first`, all of which `count`
    /// queries see.
    ///
    /// # Safety
    /// Same contract as [`Block::add_block`].
    #[inline(always)]
    unsafe fn add_pairs(
        &self,
        queries: Queries,
        count: usize,
        positions: Range<usize>,
        chunk: usize,
        first: usize,
    ) {
        let pairs = (positions.start - first) / 2..(positions.end - first) / 2;
        let queries = queries.from(0, (first - chunk) / 2);
        // SAFETY: the caller's promise.
        unsafe { add_scratch(self.transposed, pairs, self.shape.head_dim, queries, count) };
    }

    /// Writes the sums to the block's heads in `out`, `[rows, heads * head_dim]`.
    ///
    /// # Safety
    /// Same contract as [`Block::store_heads`](super::values).
    #[inline(always)]
    pub(super) unsafe fn store_pair_heads<T: Number>(&self, sums: *const f32, out: *mut T) {
        let head_dim = self.shape.head_dim;
        for query in 0..self.queries() {
            // SAFETY: the head is within `out`; sums are whole lines.
            unsafe {
                let from = sums.add(query * head_stride(head_dim));
                store_head(from, head_dim, out.add(self.head_offset(query)).cast());
            }
        }
    }
}
