//! A block over K and V in 4 bits: the steps of `block.rs` and `values.rs` on records.
//!
//! `keys` and `values` document the order of every sum.

mod halves;
pub(super) mod keys;
mod nibbles;
mod products;
mod values;

use std::ops::Range;

use model::quantized_format::KvRecordFormat;

use keys::{Kv4Keys, Kv4Queries, elements_of, four_scores, unpacked_len};
use products::sum_places;
use values::{BLOCK, Kv4Values, LoadWeights, kv4_values_len};

use super::block::Block;
use super::prefetch::Prefetcher;
use super::segment::Segment;
use super::shape::{self, head_stride};
use super::strided::{KvPointers, Strided};
use super::values::max_queries;
use crate::number::Number;
use crate::simd::Simd;

/// Returns the bytes of a position.
#[inline(always)]
fn record_bytes(head_dim: usize) -> usize {
    shape::record_bytes(KvRecordFormat::Four, head_dim)
}

/// Maximum number of vectors of positions whose scores are computed together.
const MAX_VECTORS: usize = 2;

/// Returns the floats of scratch for a block of K or V with up to `queries` queries.
pub(super) fn scratch_len(head_dim: usize, queries: usize) -> usize {
    (MAX_VECTORS * unpacked_len(head_dim))
        .max(kv4_values_len(head_dim, queries))
        .next_multiple_of(16)
}

impl<S: Simd> Block<'_, S> {
    /// Returns the packed queries starting at `query`.
    #[inline(always)]
    fn kv4_queries(&self, query: usize) -> Kv4Queries {
        let (stride, head_dim) = (head_stride(self.shape.head_dim), self.shape.head_dim);
        Kv4Queries { from: self.packed.wrapping_add(query * stride), stride, head_dim }
    }

    /// Packs the block's queries as integers.
    ///
    /// # Safety
    /// The unit is within q.
    #[inline(always)]
    pub(super) unsafe fn pack_kv4_queries<T: Number>(&self, q: *const T) {
        for query in 0..self.queries() {
            // SAFETY: the head is within q; scratch has space for every query's head.
            unsafe { self.kv4_queries(query).pack(q.add(self.head_offset(query))) };
        }
    }

    /// Implements [`Block::scores`] over 4-bit records.
    ///
    /// # Safety
    /// Same contract as [`Block::scores`].
    #[inline(always)]
    pub(super) unsafe fn kv4_scores(
        &self,
        k: KvPointers<u8>,
        out: Strided<*mut f32>,
        positions: Range<usize>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let fast = self.s.has_fast_dots();
        let Range { start: mut first, end } = positions;
        while first < end {
            let segment = self.segment(k, record_bytes(self.shape.head_dim), &(first..end));
            while first < segment.end {
                let keys = self.kv4_keys(&segment, first);
                if const { S::IS_WIDE } && self.queries() <= 4 && keys.fills_narrow::<S>() {
                    let prefetcher = segment.cached.then_some(&mut *prefetcher);
                    // SAFETY: the positions are within the segment.
                    unsafe {
                        if const { S::MAY_HAVE_FAST_DOTS } && fast {
                            self.narrow_tile::<true>(&keys, first, out, prefetcher);
                        } else {
                            self.narrow_tile::<false>(&keys, first, out, prefetcher);
                        }
                    }
                    first += keys.width;
                    continue;
                }
                // Machines with narrow vectors have fewer registers, too few for that number of
                // sums.
                let is_full = S::IS_WIDE && first + MAX_VECTORS * S::LANES <= segment.end;
                let mut width = 0;
                // SAFETY: the positions are within the segment; scratch has space for them.
                unsafe {
                    for vector in 0..if is_full { MAX_VECTORS } else { 1 } {
                        let keys = self.kv4_keys(&segment, first + vector * S::LANES);
                        let to = self.transposed.add(vector * unpacked_len(self.shape.head_dim));
                        keys.unpack(self.s, to, segment.cached.then_some(&mut *prefetcher));
                        width += keys.width;
                    }
                    if const { S::IS_WIDE } && is_full {
                        if const { S::MAY_HAVE_FAST_DOTS } && fast {
                            self.kv4_tiles::<MAX_VECTORS, true>(first, width, out);
                        } else {
                            self.kv4_tiles::<MAX_VECTORS, false>(first, width, out);
                        }
                    } else if const { S::MAY_HAVE_FAST_DOTS } && fast {
                        self.kv4_tiles::<1, true>(first, width, out);
                    } else {
                        self.kv4_tiles::<1, false>(first, width, out);
                    }
                }
                first += width;
            }
        }
    }

    /// Writes the scores of the block's queries, at most four, at a vector of narrow records.
    ///
    /// # Safety
    /// Same contract as [`Block::kv4_scores`]; `FAST` requires that the machine has fast dot
    /// products.
    #[inline(always)]
    unsafe fn narrow_tile<const FAST: bool>(
        &self,
        keys: &Kv4Keys,
        first: usize,
        out: Strided<*mut f32>,
        prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        let (s, packed) = (self.s, self.kv4_queries(0));
        macro_rules! tile {
            ($mr:literal) => {{
                let sums = keys.narrow_scores::<S, $mr, FAST>(s, packed, prefetcher);
                self.store_scores(&sums, 0, first, keys.width, out);
            }};
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.queries() {
                1 => tile!(1),
                2 => tile!(2),
                3 => tile!(3),
                _ => tile!(4),
            }
        }
    }

    /// Returns up to a vector of a segment's positions starting at `first`.
    #[inline(always)]
    fn kv4_keys(&self, segment: &Segment<u8>, first: usize) -> Kv4Keys {
        let remaining_bytes = (segment.end - first) * segment.stride;
        Kv4Keys {
            records: segment.base.wrapping_add((first - segment.first) * segment.stride),
            record_bytes: segment.stride,
            width: S::LANES.min(segment.end - first),
            head_dim: self.shape.head_dim,
            bytes_after: remaining_bytes.saturating_sub(S::LANES * segment.stride).min(64),
        }
    }

    /// Writes the scores of all queries and `NV` vectors of unpacked positions.
    ///
    /// # Safety
    /// Same contract as [`Block::kv4_scores`]; `FAST` requires that the machine has fast dot
    /// products.
    #[inline(always)]
    unsafe fn kv4_tiles<const NV: usize, const FAST: bool>(
        &self,
        first: usize,
        width: usize,
        out: Strided<*mut f32>,
    ) {
        let queries = self.queries();
        let tiles = queries.div_ceil(if S::IS_PORTABLE { 1 } else { 4 });
        for tile in 0..tiles {
            let (query, end) = (tile * queries / tiles, (tile + 1) * queries / tiles);
            if !self.sees(query..end, first..first + width) {
                continue;
            }
            let packed = self.kv4_queries(query);
            macro_rules! tile {
                ($mr:literal) => {{
                    let sums = four_scores::<S, $mr, NV, FAST>(self.s, packed, self.transposed);
                    self.store_scores(&sums, query, first, width, out);
                }};
            }
            // SAFETY: the caller's promise.
            unsafe {
                match end - query {
                    1 => tile!(1),
                    _ if const { S::IS_PORTABLE } => unreachable!("tiles have one query"),
                    2 => tile!(2),
                    3 => tile!(3),
                    _ => tile!(4),
                }
            }
        }
    }

    /// Implements [`Block::values`] over 4-bit records, with the sums in the order of `sum_places`.
    ///
    /// # Safety
    /// Same contract as [`Block::values`].
    #[inline(always)]
    pub(super) unsafe fn kv4_values(
        &self,
        v: KvPointers<u8>,
        probabilities: Strided<*const f32>,
        positions: Range<usize>,
        sums: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let head_dim = self.shape.head_dim;
        let head = head_stride(head_dim);
        let fast = self.s.has_fast_dots();
        let mut values = Kv4Values::new(head_dim);
        // SAFETY: scratch has space for every query's head; blocks are within the positions.
        unsafe {
            std::ptr::write_bytes(sums, 0, self.queries() * head);
            for first in (positions.start / BLOCK * BLOCK..positions.end).step_by(BLOCK) {
                let seen = positions.start.max(first)..positions.end.min(first + BLOCK);
                values.begin(first, &seen);
                let mut at = seen.start;
                while at < seen.end {
                    let segment = self.segment(v, record_bytes(head_dim), &(at..seen.end));
                    values.put(&segment, first);
                    at = segment.end;
                }
                values.finish();
                let base = probabilities.base.wrapping_add(first);
                let weights = Strided { base, ..probabilities };
                if const { S::MAY_HAVE_FAST_DOTS } && fast {
                    self.kv4_values_block::<true>(&values, first, weights, sums, prefetcher);
                } else {
                    self.kv4_values_block::<false>(&values, first, weights, sums, prefetcher);
                }
            }
        }
    }

    /// Adds a block starting at position `first` to the sums of all queries.
    ///
    /// # Safety
    /// Same contract as [`Block::kv4_values`]; `FAST` requires that the machine has fast dot
    /// products.
    #[inline(always)]
    unsafe fn kv4_values_block<const FAST: bool>(
        &self,
        values: &Kv4Values,
        first: usize,
        probabilities: Strided<*const f32>,
        sums: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let (s, queries) = (self.s, self.queries());
        let head = head_stride(self.shape.head_dim);
        let (ranges, weights) = values.scratch(self.transposed);
        let tiles = queries.div_ceil(const { max_queries::<S>() });
        // SAFETY: the caller's promise; queries that see no position of the block are omitted.
        unsafe {
            values.load_ranges(s, ranges);
            for tile in 0..tiles {
                let (query, end) = (tile * queries / tiles, (tile + 1) * queries / tiles);
                if !self.sees(query..end, first..first + values.count) {
                    continue;
                }
                let sums = Strided { base: sums.add(query * head), stride: head };
                let prefetcher = (tile == 0).then_some(&mut *prefetcher);
                macro_rules! tile {
                    ($mr:literal) => {{
                        let rows = std::array::from_fn(|i| {
                            let Strided { base, stride } = probabilities;
                            let row = base.wrapping_add((query + i) * stride);
                            (row, self.visible(query + i, first, values.count))
                        });
                        s.out_of_line(LoadWeights::<$mr> { values, rows, ranges, weights });
                        values.add::<S, $mr, FAST>(s, weights, sums, prefetcher);
                    }};
                }
                match end - query {
                    1 => tile!(1),
                    2 if const { max_queries::<S>() >= 2 } => tile!(2),
                    3 if const { max_queries::<S>() >= 3 } => tile!(3),
                    4 if const { max_queries::<S>() >= 4 } => tile!(4),
                    queries => unreachable!("no tile has {queries} queries"),
                }
            }
        }
    }

    /// Implements [`Block::store_heads`] for sums in the order of `sum_places`.
    ///
    /// # Safety
    /// Same contract as [`Block::store_heads`].
    #[inline(always)]
    pub(super) unsafe fn store_kv4_heads<T: Number>(&self, sums: *const f32, out: *mut T) {
        let head_dim = self.shape.head_dim;
        for query in 0..self.queries() {
            // SAFETY: the head is within `out`, every byte's sums within the query's.
            unsafe {
                let from = sums.add(query * head_stride(head_dim));
                let to = out.add(self.head_offset(query));
                for byte in 0..head_dim / 2 {
                    let (low, high) = elements_of(byte, head_dim);
                    let [of_low, of_high] = sum_places::<S>(byte, head_dim);
                    *to.add(low) = T::from_f32(*from.add(of_low));
                    *to.add(high) = T::from_f32(*from.add(of_high));
                }
            }
        }
    }
}
