//! Weighted values: vector lanes run along head_dim, sums of a tile of queries stay in registers.
//!
//! Decode reads every V once and is bound by memory bandwidth, which `prefetch` keeps busy.
//!
//! **Order of the sum.** Within a chunk of positions a weighted value adds position after position,
//! from the first that its query sees. The size of a tile does not influence the order. If pairs
//! are multiplied, `pair_values.rs` defines its own order. The chunks are added in order
//! (`run.rs`).

use std::ops::Range;

use super::block::{Block, can_pair};
use super::prefetch::{BURST_BYTES, LINE_BYTES, Next, Prefetcher};
use super::segment::Segment;
use super::shape::head_stride;
use super::strided::{KvPointers, Strided};
use crate::number::Number;
use crate::processor::is_zen_5;
use crate::simd::{Simd, SimdElement};

/// Number of positions whose V stays in L1 while all queries of a block pass over it.
const VALUE_POSITIONS: usize = 64;
/// Number of positions if a tile reads parts of them one after the other and prefetches lines
/// meanwhile: small, so that prefetches are even. Sums are loaded and stored correspondingly more
/// often, which Zen 4, with half the products per cycle, has no time for.
const FEW_POSITIONS: usize = 8;

/// Returns the floats of scratch for a block of pairs of values.
pub(super) fn pairs_len(head_dim: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    let positions = super::pair_values::BLOCK;
    #[cfg(not(target_arch = "x86_64"))]
    let positions = 0;
    positions / 2 * head_dim.next_multiple_of(2 * crate::simd::MAX_LANES)
}

/// Prefetches the cache lines of a pair.
#[inline(always)]
fn prefetch_pair<S: Simd, T: SimdElement>(s: S, at: *const T) {
    s.prefetch(at.cast());
    if 2 * S::LANES * size_of::<T>() > 64 {
        s.prefetch(at.wrapping_add(S::LANES).cast());
    }
}

/// Memory that a tile prefetches ahead of its reading.
#[derive(Clone, Copy)]
pub(super) enum Prefetch {
    /// Nothing, because another tile reads the same positions.
    Nothing,
    /// Cached positions, through [`Prefetcher`].
    Cached,
    /// Fresh positions at that distance.
    Fresh(usize),
}

/// Tile of weighted values, queries times positions: the sums stay in registers.
pub(super) struct ValuesTile<T> {
    pub values: *const T,
    pub v_stride: usize,
    pub weights: *const f32,
    pub w_stride: usize,
    /// Sums in pair order.
    pub sums: *mut f32,
    pub sums_stride: usize,
    pub positions: usize,
    pub prefetch: Prefetch,
    /// Elements of the only, incomplete pair; 0 if pairs are whole.
    pub tail: usize,
}

impl<T: Number> ValuesTile<T> {
    /// Returns the lines to prefetch one by one while `elements` of each position are read. bf16
    /// that is read line by line is multiplied in pairs, elsewhere.
    #[inline(always)]
    fn next_lines<S: Simd>(
        &self,
        s: S,
        elements: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) -> Option<Next> {
        if const { !S::IS_WIDE || !T::IS_F32 } {
            return None;
        }
        match (self.prefetch, prefetcher) {
            (Prefetch::Cached, Prefetcher::Lines(lines)) => {
                Some(lines.next(s, self.positions * elements * size_of::<T>()))
            }
            _ => None,
        }
    }

    /// Extends one chain of additions per element, position after position, from the existing sums.
    ///
    /// # Safety
    /// The operands cover `positions`, `MR` queries and `NP` pairs.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd, const MR: usize, const NP: usize>(
        self,
        s: S,
        prefetcher: &mut Prefetcher<'_>,
    ) {
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
            // Prefetches are outside the inner loop, whose addresses are then plain steps.
            let is_whole = const { NP > 1 } || self.tail == 0;
            let elements = if is_whole { NP * pair } else { self.tail };
            let mut lines = self.next_lines(s, elements, prefetcher);
            let step = match self.prefetch {
                Prefetch::Nothing => self.positions,
                _ if lines.is_some() => self.positions,
                _ => (BURST_BYTES / (elements * size_of::<T>())).max(1),
            };
            for first in (0..self.positions).step_by(step) {
                let end = self.positions.min(first + step);
                match self.prefetch {
                    Prefetch::Cached if lines.is_none() => {
                        prefetcher.read(s, (end - first) * elements * size_of::<T>());
                    }
                    Prefetch::Fresh(distance) => {
                        for position in first + distance..end + distance {
                            let there = self.values.wrapping_add(position * self.v_stride);
                            (0..NP).for_each(|j| prefetch_pair(s, there.wrapping_add(j * pair)));
                        }
                    }
                    _ => {}
                }
                for position in first..end {
                    if let Some(lines) = &mut lines {
                        for _ in 0..elements * size_of::<T>() / LINE_BYTES {
                            lines.prefetch(s);
                        }
                    }
                    let values = self.values.add(position * self.v_stride);
                    let mut v = [(s.zero(), s.zero()); NP];
                    for (j, v) in v.iter_mut().enumerate() {
                        *v = if is_whole {
                            T::load_pair(s, values.add(j * pair))
                        } else {
                            T::load_pair_partial(s, values, self.tail)
                        };
                    }
                    for (i, row) in sums.iter_mut().enumerate() {
                        let p = s.splat(*self.weights.add(i * self.w_stride + position));
                        for (sum, v) in row.iter_mut().zip(v) {
                            *sum = (s.fma(p, v.0, sum.0), s.fma(p, v.1, sum.1));
                        }
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

impl<S: Simd> Block<'_, S> {
    /// Writes `weights · v` over `positions` of one chunk, in pair order, to `sums`, a head per
    /// query.
    ///
    /// # Safety
    /// The unit is within v; `weights` holds every query's visible positions; `sums` has space for
    /// a head of every query.
    #[inline(always)]
    pub(super) unsafe fn values<T: Number>(
        &self,
        v: KvPointers<T>,
        weights: Strided<*const f32>,
        positions: Range<usize>,
        sums: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        #[cfg(target_arch = "x86_64")]
        if const { can_pair::<S, T>() } && self.pairs {
            // SAFETY: only bf16 has pairs, on a machine that multiplies them; the rest is the
            // caller's promise.
            unsafe { self.pair_values(v, weights, positions, sums, prefetcher) };
            return;
        }
        // SAFETY: scratch has space for every query's head in whole pairs.
        unsafe {
            std::ptr::write_bytes(sums, 0, self.queries() * head_stride(self.shape.head_dim));
        }
        let together = self.positions_at_once(prefetcher);
        let Range { start: mut first, end } = positions;
        while first < end {
            let segment = self.segment(v, self.shape.head_dim, &(first..end));
            while first < segment.end {
                let end = segment.end.min(first + together);
                let call = ValuesCall { segment, first, end, weights, sums };
                // SAFETY: as for this function; `call` names positions of the segment.
                unsafe { self.values_block(call, prefetcher) };
                first = end;
            }
        }
    }

    /// Returns the number of positions that all parts of all tiles pass over before the next ones.
    #[inline(always)]
    fn positions_at_once(&self, prefetcher: &Prefetcher<'_>) -> usize {
        match (prefetcher, self.queries()) {
            (Prefetcher::Lines(_), 3..=4) if const { S::IS_WIDE } && is_zen_5() => FEW_POSITIONS,
            _ => VALUE_POSITIONS,
        }
    }

    /// Adds the positions of `call` to every query's sums.
    ///
    /// # Safety
    /// Same contract as [`Block::values`].
    #[inline(always)]
    pub(super) unsafe fn values_block<T: Number>(
        &self,
        call: ValuesCall<T>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let max_rows = const { max_queries::<S>() };
        let (pair, head_dim) = (2 * S::LANES, self.shape.head_dim);
        let queries = self.queries();
        let tiles = queries.div_ceil(max_rows);
        for tile in 0..tiles {
            let (query, end) = (tile * queries / tiles, (tile + 1) * queries / tiles);
            let height = end - query;
            // A whole position at a time if the registers allow it.
            let max_pairs = match height {
                _ if const { S::IS_PORTABLE } => 1,
                1 => 4,
                2 if const { S::IS_WIDE } => 4,
                _ => 2,
            };
            // Positions that all queries of the tile see: from the start of the last one to the end
            // of the first one. There may be none; each query then sees the positions on both
            // sides.
            let start = self.start(end - 1).clamp(call.first, call.end);
            let common = start..self.limit(query).clamp(start, call.end);
            let mut at = 0;
            while at < head_dim {
                let pairs = match (head_dim - at) / pair {
                    left if left >= max_pairs => max_pairs,
                    left => left.min(max_pairs).min(2),
                };
                let tail = if pairs == 0 { head_dim - at } else { 0 };
                let prefetch = match (tile, call.segment.cached) {
                    (0, true) => Prefetch::Cached,
                    (0, false) => Prefetch::Fresh(call.segment.distance()),
                    _ => Prefetch::Nothing,
                };
                let elements = TileElements { at, pairs, tail };
                // Positions that a query sees alone before, that all see, and that a query sees
                // alone after.
                let is_common = common.len() == call.end - call.first;
                let mut behind = is_common;
                loop {
                    // SAFETY: the caller's promise covers the positions each query sees.
                    unsafe {
                        if behind {
                            let (seen, queries) = (common.clone(), query..end);
                            self.values_tile(call, seen, queries, elements, prefetch, prefetcher);
                        }
                        for place in if is_common { end..end } else { query..end } {
                            let seen = if behind {
                                common.end..self.limit(place).min(call.end)
                            } else {
                                let end = common.start.min(self.limit(place));
                                call.first.max(self.start(place))..end
                            };
                            let is_first = place == query && !behind;
                            let prefetch = if is_first { prefetch } else { Prefetch::Nothing };
                            let one = place..place + 1;
                            self.values_tile(call, seen, one, elements, prefetch, prefetcher);
                        }
                    }
                    if behind {
                        break;
                    }
                    behind = true;
                }
                at += (pairs * pair).max(tail);
            }
        }
    }

    /// Adds `positions` to some elements of the sums of `queries`.
    ///
    /// # Safety
    /// Same contract as [`Block::values`]; all these queries see all these positions.
    #[inline(always)]
    unsafe fn values_tile<T: Number>(
        &self,
        call: ValuesCall<T>,
        positions: Range<usize>,
        queries: Range<usize>,
        elements: TileElements,
        prefetch: Prefetch,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        if positions.is_empty() {
            return;
        }
        let (query, height) = (queries.start, queries.len());
        let TileElements { at, pairs, tail } = elements;
        let segment = call.segment;
        let head = head_stride(self.shape.head_dim);
        // SAFETY: positions and queries are within the tensors that the caller guarantees.
        unsafe {
            let operands = ValuesTile {
                values: segment.base.add((positions.start - segment.first) * segment.stride + at),
                v_stride: segment.stride,
                weights: call.weights.base.add(query * call.weights.stride + positions.start),
                w_stride: call.weights.stride,
                sums: call.sums.add(query * head + at),
                sums_stride: head,
                positions: positions.len(),
                tail,
                prefetch,
            };
            macro_rules! choose {
                ($($mr:literal $np:literal)*) => {
                    match (height, pairs.max(1)) {
                        $(
                            ($mr, $np) if const { has_values_tile::<S>($mr, $np) } => {
                                operands.run::<S, $mr, $np>(self.s, prefetcher);
                            }
                        )*
                        _ => unreachable!("no tile has {height} queries and {pairs} pairs"),
                    }
                };
            }
            choose!(1 4 2 4 1 2 2 2 3 2 4 2 1 1 2 1 3 1 4 1);
        }
    }

    /// Writes the sums, in pair order, to the block's heads in `out`, `[rows, heads * head_dim]`.
    ///
    /// # Safety
    /// The unit is within out, and no other task writes these rows of it.
    #[inline(always)]
    pub(super) unsafe fn store_heads<T: Number>(&self, sums: *const f32, out: *mut T) {
        #[cfg(target_arch = "x86_64")]
        if const { can_pair::<S, T>() } && self.pairs {
            // SAFETY: only bf16 has pairs; the rest is the caller's promise.
            unsafe { self.store_pair_heads(sums, out) };
            return;
        }
        let (s, head_dim) = (self.s, self.shape.head_dim);
        let pair = 2 * S::LANES;
        for query in 0..self.queries() {
            // SAFETY: the head is within `out`; sums are whole pairs.
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
}

/// Returns the maximum number of queries in a tile.
pub(super) const fn max_queries<S: Simd>() -> usize {
    if S::IS_PORTABLE {
        1
    } else if S::IS_WIDE {
        4
    } else {
        2
    }
}

/// Returns true if tiles of `queries` queries and `pairs` pairs exist.
const fn has_values_tile<S: Simd>(queries: usize, pairs: usize) -> bool {
    queries <= max_queries::<S>()
        && (pairs == 1 || !S::IS_PORTABLE)
        && (pairs < 4 || S::IS_WIDE || queries == 1)
}

/// Elements of each head that a tile adds up.
#[derive(Clone, Copy)]
struct TileElements {
    /// First element.
    at: usize,
    pairs: usize,
    /// Elements of the only, incomplete pair; 0 if pairs are whole.
    tail: usize,
}

/// Positions `first..end` of one segment, and the operands of their weighted values.
pub(super) struct ValuesCall<T> {
    pub segment: Segment<T>,
    pub first: usize,
    pub end: usize,
    pub weights: Strided<*const f32>,
    pub sums: *mut f32,
}

impl<T> Clone for ValuesCall<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ValuesCall<T> {}
