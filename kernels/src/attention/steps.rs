//! The three steps of attention for a block of rows of one unit.
//!
//! A *query* is one (row, head of the group); queries of a block are numbered row by row. Query `r`
//! sees positions `0..limit(r)`: all cached ones and the fresh ones up to its own row.

use super::{AttentionShape, Unit, head_stride};
use crate::element::Element;
use crate::linear::tile::{TileShape, pack_row, tile};
use crate::linear::{load_up_to, store_up_to};
use crate::simd::{MAX_LANES, Simd, math};

/// Positions whose V stays in L1 while all queries of a block pass over it.
const BLOCK_POSITIONS: usize = 64;

/// Fresh rows `rows` of a unit.
#[derive(Debug)]
pub struct UnitBlock {
    pub unit: Unit,
    pub rows: std::ops::Range<usize>,
}

/// A run of positions that lie at one stride in memory: the cached or the fresh ones.
#[derive(Clone, Copy)]
struct Segment<T> {
    first: usize,
    end: usize,
    /// Position `first`.
    base: *const T,
    stride: usize,
}

pub(super) struct Steps<'a, S> {
    pub s: S,
    pub shape: &'a AttentionShape,
    pub block: &'a UnitBlock,
    /// One head per query of the block, `head_stride` apart: packed queries, then weighted values.
    pub heads_scratch: *mut f32,
}

impl<S: Simd> Steps<'_, S> {
    #[inline(always)]
    fn queries(&self) -> usize {
        self.block.rows.len() * self.shape.group()
    }

    /// Positions that query `query` sees.
    #[inline(always)]
    fn limit(&self, query: usize) -> usize {
        let row = self.block.rows.start + query / self.shape.group();
        self.block.unit.past as usize + row + 1
    }

    /// Offset of a query's head in a `[rows, heads * head_dim]` tensor.
    #[inline(always)]
    fn head_offset(&self, query: usize) -> usize {
        let AttentionShape { heads, head_dim, .. } = *self.shape;
        let group = self.shape.group();
        let row = self.block.unit.row0 as usize + self.block.rows.start + query / group;
        let head = self.block.unit.kv_head as usize * group + query % group;
        (row * heads + head) * head_dim
    }

    /// The cached and the fresh positions that the block sees, as `(fresh, cache)` pointers.
    #[inline(always)]
    fn segments<T>(&self, (fresh, cache): (*const T, *const T)) -> [Segment<T>; 2] {
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        let Unit { row0, past, kv_head, cache_offset, .. } = self.block.unit;
        let past = past as usize;
        let first_row = row0 as usize * kv_heads + kv_head as usize;
        [
            Segment {
                first: 0,
                end: past,
                base: cache.wrapping_add(cache_offset),
                stride: head_dim,
            },
            Segment {
                first: past,
                end: past + self.block.rows.end,
                base: fresh.wrapping_add(first_row * head_dim),
                stride: kv_heads * head_dim,
            },
        ]
    }

    /// Writes the scores of the block's queries, `stride` apart, from `out` on.
    ///
    /// # Safety
    /// The unit lies within q and k; `out` has room for every query's visible positions.
    #[inline(always)]
    pub(super) unsafe fn scores<T: Element>(
        &self,
        q: *const T,
        k: (*const T, *const T),
        out: *mut f32,
        stride: usize,
    ) {
        let s = self.s;
        let head_dim = self.shape.head_dim;
        let packed = self.heads_scratch;
        for query in 0..self.queries() {
            // SAFETY: the head lies within q; scratch has room for every query's head.
            unsafe {
                let to = packed.add(query * head_stride(head_dim));
                pack_row(s, q.add(self.head_offset(query)), head_dim, to);
            }
        }
        let pair = 2 * S::LANES;
        let (tile_queries, tile_positions) = S::TILE;
        for segment in self.segments(k) {
            let shape = TileShape {
                x_stride: head_stride(head_dim),
                w_stride: segment.stride,
                pairs: head_dim / pair,
                tail: head_dim % pair,
                acc_stride: tile_positions * S::LANES,
                fresh: true,
            };
            for position in (segment.first..segment.end).step_by(tile_positions) {
                let width = tile_positions.min(segment.end - position);
                let keys = segment.base.wrapping_add((position - segment.first) * segment.stride);
                for query in (0..self.queries()).step_by(tile_queries) {
                    let height = tile_queries.min(self.queries() - query);
                    if self.limit(query + height - 1) <= position {
                        continue;
                    }
                    let mut acc = [0.0f32; 4 * 6 * MAX_LANES];
                    // SAFETY: keys and packed queries cover the tile; `acc` has room for the largest
                    // tile; only visible positions are written.
                    unsafe {
                        let x = packed.add(query * head_stride(head_dim));
                        tile(s, (height, width), x, keys, acc.as_mut_ptr(), shape);
                        for i in 0..height {
                            let visible = self.limit(query + i).saturating_sub(position);
                            let to = out.add((query + i) * stride + position);
                            for j in 0..width.min(visible) {
                                let at = i * shape.acc_stride + j * S::LANES;
                                let sum = s.sum_lanes(s.load(acc.as_ptr().add(at)));
                                to.add(j).write(sum * self.shape.scale);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Softmax of every query's visible scores; `out` may be `scores`.
    ///
    /// # Safety
    /// Both hold every query's visible positions, `stride` apart.
    #[inline(always)]
    pub(super) unsafe fn softmax(&self, scores: *const f32, out: *mut f32, stride: usize) {
        for query in 0..self.queries() {
            // SAFETY: the caller's promise.
            unsafe {
                let limit = self.limit(query);
                softmax_row(self.s, scores.add(query * stride), out.add(query * stride), limit);
            }
        }
    }

    /// Writes `probabilities · v` of the block's queries to their heads in `out`,
    /// `[rows, heads * head_dim]`.
    ///
    /// # Safety
    /// The unit lies within v and out; `probabilities` holds every query's visible positions,
    /// `stride` apart.
    #[inline(always)]
    pub(super) unsafe fn values<T: Element>(
        &self,
        probabilities: *const f32,
        stride: usize,
        v: (*const T, *const T),
        out: *mut T,
    ) {
        let s = self.s;
        let head_dim = self.shape.head_dim;
        let pair = 2 * S::LANES;
        let sums = self.heads_scratch;
        // SAFETY: scratch has room for every query's head in whole pairs.
        unsafe { std::ptr::write_bytes(sums, 0, self.queries() * head_stride(head_dim)) };
        for segment in self.segments(v) {
            for first in (segment.first..segment.end).step_by(BLOCK_POSITIONS) {
                let end = segment.end.min(first + BLOCK_POSITIONS);
                let values = segment.base.wrapping_add((first - segment.first) * segment.stride);
                let call = ValuesCall { first, end, values, v_stride: segment.stride };
                // SAFETY: as for this function; `call` names positions of the segment.
                unsafe { self.values_block(call, probabilities, stride) };
            }
        }
        for query in 0..self.queries() {
            // SAFETY: the head lies within `out`, and only this task writes it.
            unsafe {
                let from = sums.add(query * head_stride(head_dim));
                let to = out.add(self.head_offset(query));
                for at in (0..head_dim).step_by(pair) {
                    let sum = (s.load(from.add(at)), s.load(from.add(at + S::LANES)));
                    if head_dim - at >= pair {
                        T::store_pair(s, to.add(at), sum);
                    } else {
                        T::store_pair_partial(s, to.add(at), sum, head_dim - at);
                    }
                }
            }
        }
    }

    /// Adds the positions of `call` to every query's sums.
    ///
    /// # Safety
    /// As [`Steps::values`].
    #[inline(always)]
    unsafe fn values_block<T: Element>(
        &self,
        call: ValuesCall<T>,
        probabilities: *const f32,
        stride: usize,
    ) {
        let tile_queries = if S::LANES == 16 { 4 } else { 2 };
        let pair = 2 * S::LANES;
        let head_dim = self.shape.head_dim;
        let mut at = 0;
        while at < head_dim {
            let pairs = ((head_dim - at) / pair).min(2);
            let tail = if pairs == 0 { head_dim - at } else { 0 };
            for query in (0..self.queries()).step_by(tile_queries) {
                let height = tile_queries.min(self.queries() - query);
                // Positions that all queries of the tile see; the first sees the fewest.
                let common = self.limit(query).clamp(call.first, call.end);
                // SAFETY: the caller's promise covers the positions each query sees.
                unsafe {
                    self.values_tile(
                        call,
                        (call.first, common),
                        (query, height),
                        (at, pairs, tail),
                        probabilities,
                        stride,
                    );
                    for query in query..query + height {
                        let end = self.limit(query).clamp(common, call.end);
                        self.values_tile(
                            call,
                            (common, end),
                            (query, 1),
                            (at, pairs, tail),
                            probabilities,
                            stride,
                        );
                    }
                }
            }
            at += (pairs * pair).max(tail);
        }
    }

    /// Adds positions `first..end` to elements `at..` of the sums of `height` queries.
    ///
    /// # Safety
    /// As [`Steps::values`]; all these queries see all these positions.
    #[inline(always)]
    unsafe fn values_tile<T: Element>(
        &self,
        call: ValuesCall<T>,
        (first, end): (usize, usize),
        (query, height): (usize, usize),
        (at, pairs, tail): (usize, usize, usize),
        probabilities: *const f32,
        stride: usize,
    ) {
        if first >= end {
            return;
        }
        // SAFETY: positions and queries lie within the tensors the caller answers for.
        unsafe {
            let operands = ValuesTile {
                values: call.values.add((first - call.first) * call.v_stride + at),
                v_stride: call.v_stride,
                probabilities: probabilities.add(query * stride + first),
                p_stride: stride,
                sums: self.heads_scratch.add(query * head_stride(self.shape.head_dim) + at),
                sums_stride: head_stride(self.shape.head_dim),
                positions: end - first,
                tail,
            };
            match (height, pairs) {
                (1, 2) => operands.run::<S, 1, 2>(self.s),
                (2, 2) => operands.run::<S, 2, 2>(self.s),
                (3, 2) => operands.run::<S, 3, 2>(self.s),
                (4, 2) => operands.run::<S, 4, 2>(self.s),
                (1, _) => operands.run::<S, 1, 1>(self.s),
                (2, _) => operands.run::<S, 2, 1>(self.s),
                (3, _) => operands.run::<S, 3, 1>(self.s),
                _ => operands.run::<S, 4, 1>(self.s),
            }
        }
    }
}

/// Positions `first..end` of one segment.
struct ValuesCall<T> {
    first: usize,
    end: usize,
    /// V at position `first`.
    values: *const T,
    v_stride: usize,
}

impl<T> Clone for ValuesCall<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ValuesCall<T> {}

struct ValuesTile<T> {
    values: *const T,
    v_stride: usize,
    probabilities: *const f32,
    p_stride: usize,
    sums: *mut f32,
    sums_stride: usize,
    positions: usize,
    /// Elements of the only, incomplete pair; 0 when pairs are whole.
    tail: usize,
}

impl<T: Element> ValuesTile<T> {
    /// One chain of additions per element, position after position, continued from the sums.
    ///
    /// # Safety
    /// The operands cover `positions`, `MR` queries and `NP` pairs.
    #[inline(always)]
    unsafe fn run<S: Simd, const MR: usize, const NP: usize>(self, s: S) {
        let pair = 2 * S::LANES;
        let mut sums = [[(s.zero(), s.zero()); NP]; MR];
        // SAFETY: the caller's promise covers every offset used here.
        unsafe {
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().enumerate() {
                    let from = self.sums.add(i * self.sums_stride + j * pair);
                    *sum = (s.load(from), s.load(from.add(S::LANES)));
                }
            }
            for position in 0..self.positions {
                let values = self.values.add(position * self.v_stride);
                let mut v = [(s.zero(), s.zero()); NP];
                for (j, v) in v.iter_mut().enumerate() {
                    *v = if self.tail == 0 {
                        T::load_pair(s, values.add(j * pair))
                    } else {
                        T::load_pair_partial(s, values, self.tail)
                    };
                }
                for (i, row) in sums.iter_mut().enumerate() {
                    let p = s.splat(*self.probabilities.add(i * self.p_stride + position));
                    for (sum, v) in row.iter_mut().zip(v) {
                        *sum = (s.fma(p, v.0, sum.0), s.fma(p, v.1, sum.1));
                    }
                }
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, sum) in row.iter().enumerate() {
                    let to = self.sums.add(i * self.sums_stride + j * pair);
                    s.store(to, sum.0);
                    s.store(to.add(S::LANES), sum.1);
                }
            }
        }
    }
}

/// # Safety
/// `scores` and `out` hold `len >= 1` values; they may be the same.
#[inline(always)]
unsafe fn softmax_row<S: Simd>(s: S, scores: *const f32, out: *mut f32, len: usize) {
    let whole = len / S::LANES * S::LANES;
    // SAFETY: all offsets are below `len`.
    unsafe {
        let mut largest = s.splat(f32::NEG_INFINITY);
        for at in (0..whole).step_by(S::LANES) {
            largest = s.max(s.load(scores.add(at)), largest);
        }
        let mut highest = s.max_lanes(largest);
        for at in whole..len {
            highest = highest.max(*scores.add(at));
        }
        let highest = s.splat(highest);
        let mut sum = s.zero();
        for at in (0..len).step_by(S::LANES) {
            let width = S::LANES.min(len - at);
            let value = math::exp(s, s.sub(load_up_to(s, scores.add(at), width), highest));
            store_up_to(s, out.add(at), value, width);
            // Lanes behind the end are read back as zeros, so they add nothing.
            sum = s.add(sum, load_up_to(s, out.cast_const().add(at), width));
        }
        let scale = s.splat(1.0 / s.sum_lanes(sum));
        for at in (0..len).step_by(S::LANES) {
            let width = S::LANES.min(len - at);
            let value = s.mul(load_up_to(s, out.cast_const().add(at), width), scale);
            store_up_to(s, out.add(at), value, width);
        }
    }
}
