//! The three steps of attention for a block of rows of one unit.
//!
//! A *query* is one (row, head of the group); queries of a block are numbered row by row. Query `r`
//! sees positions `0..limit(r)`: all cached ones and the fresh ones up to its own row.

use super::tiles::{PREFETCH_BYTES, ScoresTile, ValuesTile, pack_row};
use super::{AttentionShape, Unit, head_stride};
use crate::element::Element;
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
struct Segment<T> {
    first: usize,
    end: usize,
    /// Position `first`.
    base: *const T,
    stride: usize,
}

impl<T> Clone for Segment<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Segment<T> {}

impl<T> Segment<T> {
    /// Positions from one that is read to the one to ask for meanwhile.
    #[inline(always)]
    fn distance(&self) -> usize {
        PREFETCH_BYTES / (self.stride * size_of::<T>()) + 1
    }

    /// What to ask for while `position` is read: a position further on or, behind the end, `next`.
    #[inline(always)]
    fn ahead(&self, position: usize, next: *const T) -> *const T {
        let ahead = position + self.distance();
        if ahead < self.end {
            self.base.wrapping_add((ahead - self.first) * self.stride)
        } else {
            next.wrapping_add((ahead - self.end) * self.stride)
        }
    }
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

    /// Writes the scores of the block's queries, `stride` apart, from `out` on. `after` is the cache
    /// that will be read next, asked for ahead of time.
    ///
    /// # Safety
    /// The unit lies within q and k; `out` has room for every query's visible positions.
    #[inline(always)]
    pub(super) unsafe fn scores<T: Element>(
        &self,
        q: *const T,
        k: (*const T, *const T),
        after: *const T,
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
        let next = after.wrapping_add(self.block.unit.cache_offset);
        for segment in self.segments(k) {
            for first in (segment.first..segment.end).step_by(S::LANES) {
                let end = segment.end.min(first + S::LANES);
                let mut query = 0;
                while query < self.queries() {
                    let height = [1, 1, 2, 2, 4][(self.queries() - query).min(4)];
                    for position in (first..end).step_by(S::LANES / height) {
                        if self.limit(query + height - 1) <= position {
                            break;
                        }
                        let ahead = segment.ahead(position, next);
                        // SAFETY: as for this function; the positions lie within the segment.
                        unsafe {
                            let to = out.add(query * stride + position);
                            self.scores_tile(segment, position, (query, height), ahead, to, stride);
                        }
                    }
                    query += height;
                }
            }
        }
    }

    /// Writes the scores of `height` queries and the `LANES / height` positions from `position` on.
    ///
    /// # Safety
    /// As [`Steps::scores`]; `out` is where the first score belongs.
    #[inline(always)]
    unsafe fn scores_tile<T: Element>(
        &self,
        segment: Segment<T>,
        position: usize,
        (query, height): (usize, usize),
        ahead: *const T,
        out: *mut f32,
        stride: usize,
    ) {
        let s = self.s;
        let head_dim = self.shape.head_dim;
        let wide = S::LANES / height;
        let width = wide.min(segment.end - position);
        // SAFETY: packed queries and keys cover the tile; only visible positions are written.
        unsafe {
            let tile = ScoresTile {
                queries: self.heads_scratch.add(query * head_stride(head_dim)),
                q_stride: head_stride(head_dim),
                keys: segment.base.wrapping_add((position - segment.first) * segment.stride),
                k_stride: segment.stride,
                width,
                head_dim,
                ahead,
            };
            let sums = match (S::LANES, height) {
                (16, 1) => tile.run::<S, 1, 16>(s),
                (16, 2) => tile.run::<S, 2, 8>(s),
                (16, _) => tile.run::<S, 4, 4>(s),
                (_, 1) => tile.run::<S, 1, 8>(s),
                (_, 2) => tile.run::<S, 2, 4>(s),
                (_, _) => tile.run::<S, 4, 2>(s),
            };
            let scores = s.mul(sums, s.splat(self.shape.scale));
            if height == 1 {
                store_up_to(s, out, scores, width.min(self.limit(query) - position));
                return;
            }
            let mut lanes = [0.0f32; MAX_LANES];
            s.store(lanes.as_mut_ptr(), scores);
            for i in 0..height {
                let visible = width.min(self.limit(query + i).saturating_sub(position));
                let from = lanes.as_ptr().add(i * wide);
                copy_short(from, out.add(i * stride), visible);
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
                let call = ValuesCall {
                    first,
                    end,
                    values,
                    v_stride: segment.stride,
                    distance: segment.distance(),
                    segment_end: segment.end,
                };
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
        for query in (0..self.queries()).step_by(tile_queries) {
            let height = tile_queries.min(self.queries() - query);
            // A whole position at a time where the registers allow it.
            let most_pairs = if height * 2 <= tile_queries { 4 } else { 2 };
            // Positions that all queries of the tile see; the first sees the fewest.
            let common = self.limit(query).clamp(call.first, call.end);
            let mut at = 0;
            while at < head_dim {
                let pairs = match (head_dim - at) / pair {
                    left if left >= most_pairs => most_pairs,
                    left => left.min(2),
                };
                let tail = if pairs == 0 { head_dim - at } else { 0 };
                let part = (at, pairs, tail);
                // SAFETY: the caller's promise covers the positions each query sees.
                unsafe {
                    let seen = (call.first, common);
                    self.values_tile(call, seen, (query, height), part, probabilities, stride);
                    for query in query..query + height {
                        let seen = (common, self.limit(query).clamp(common, call.end));
                        self.values_tile(call, seen, (query, 1), part, probabilities, stride);
                    }
                }
                at += (pairs * pair).max(tail);
            }
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
                ahead: call.distance,
                last: call.segment_end - 1 - first,
                tail,
            };
            match (height, pairs) {
                (1, 4) => operands.run::<S, 1, 4>(self.s),
                (2, 4) => operands.run::<S, 2, 4>(self.s),
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
    /// Positions to prefetch ahead, and where they end.
    distance: usize,
    segment_end: usize,
}

impl<T> Clone for ValuesCall<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ValuesCall<T> {}

/// Copies `count` values; the widths of whole tiles without a call.
///
/// # Safety
/// `from` and `to` hold `count` values and do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const f32, to: *mut f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match count {
            2 => std::ptr::copy_nonoverlapping(from, to, 2),
            4 => std::ptr::copy_nonoverlapping(from, to, 4),
            8 => std::ptr::copy_nonoverlapping(from, to, 8),
            _ => std::ptr::copy_nonoverlapping(from, to, count),
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
