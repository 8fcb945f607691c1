//! A block over K and V in 8 bits: a few positions at a time are decoded to f32 in L1 and then
//! multiplied by the steps for caches in f32.
//!
//! Every result has the bits of attention over a cache in f32 with the decoded values, and its sums
//! the order of those (`scores.rs`, `values.rs`): queries and weights are not rounded, so the only
//! error is that of the records.

use std::ops::Range;

use model::quantized_format::KvRecordFormat;

use super::block::Block;
use super::prefetch::Prefetcher;
use super::scores::BLOCK_POSITIONS;
use super::segment::Segment;
use super::shape::{self, head_stride};
use super::strided::{KvPointers, Strided};
use super::values::ValuesCall;
use crate::number::Number;
use crate::quant::decode_kv8_record;
use crate::simd::Simd;

/// Longest head of which a whole block of decoded positions leaves room in L1 for its transposition
/// and for the queries; of longer heads half as many are decoded at a time.
const SHORT_HEAD: usize = 128;

/// Returns the number of positions that are decoded at a time, whole vectors of any width.
const fn positions_at_once(head_dim: usize) -> usize {
    if head_dim <= SHORT_HEAD { BLOCK_POSITIONS } else { BLOCK_POSITIONS / 2 }
}

/// Returns the floats of scratch for decoded positions.
pub(super) const fn decoded_len(head_dim: usize) -> usize {
    (positions_at_once(head_dim) * head_dim).next_multiple_of(16)
}

/// Returns the bytes of a position.
#[inline(always)]
fn record_bytes(head_dim: usize) -> usize {
    shape::record_bytes(KvRecordFormat::Eight, head_dim)
}

impl<S: Simd> Block<'_, S> {
    /// Implements [`Block::scores`] over 8-bit records.
    ///
    /// # Safety
    /// Same contract as [`Block::scores`].
    #[inline(always)]
    pub(super) unsafe fn kv8_scores(
        &self,
        k: KvPointers<i8>,
        out: Strided<*mut f32>,
        positions: Range<usize>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let size_bytes = record_bytes(self.shape.head_dim);
        let Range { start: mut first, end } = positions;
        while first < end {
            let segment = self.segment(k, size_bytes, &(first..end));
            while first < segment.end {
                // SAFETY: the caller's promise; the positions are within the segment.
                unsafe {
                    let decoded = self.decode(&segment, first, prefetcher);
                    self.segment_scores(decoded, out, &mut Prefetcher::Nothing);
                    first = decoded.end;
                }
            }
        }
    }

    /// Implements [`Block::values`] over 8-bit records; element `i` of a head is sum `i`.
    ///
    /// # Safety
    /// Same contract as [`Block::values`].
    #[inline(always)]
    pub(super) unsafe fn kv8_values(
        &self,
        v: KvPointers<i8>,
        weights: Strided<*const f32>,
        positions: Range<usize>,
        sums: *mut f32,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let size_bytes = record_bytes(self.shape.head_dim);
        // SAFETY: scratch has space for every query's head in whole pairs.
        unsafe {
            std::ptr::write_bytes(sums, 0, self.queries() * head_stride(self.shape.head_dim));
        }
        let Range { start: mut first, end } = positions;
        while first < end {
            let segment = self.segment(v, size_bytes, &(first..end));
            while first < segment.end {
                // SAFETY: the caller's promise; the positions are within the segment.
                unsafe {
                    let segment = self.decode(&segment, first, prefetcher);
                    let Segment { first: at, end, .. } = segment;
                    let call = ValuesCall { segment, first: at, end, weights, sums };
                    self.values_block(call, &mut Prefetcher::Nothing);
                    first = end;
                }
            }
        }
    }

    /// Decodes positions of a segment starting at `first` to scratch.
    ///
    /// # Safety
    /// The positions of the segment are readable.
    #[inline(always)]
    unsafe fn decode(
        &self,
        segment: &Segment<i8>,
        first: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) -> Segment<f32> {
        let head_dim = self.shape.head_dim;
        let size_bytes = record_bytes(head_dim);
        let end = segment.end.min(first + positions_at_once(head_dim));
        let to = self.transposed.wrapping_add(head_stride(head_dim) * BLOCK_POSITIONS);
        for position in first..end {
            if segment.cached {
                prefetcher.read(self.s, size_bytes);
            }
            let from = segment.base.wrapping_add((position - segment.first) * segment.stride);
            let to = to.wrapping_add((position - first) * head_dim);
            // SAFETY: the caller's promise; scratch has space for the decoded positions, and
            // nothing else refers to it now.
            let (record, head) = unsafe {
                (
                    std::slice::from_raw_parts(from.cast::<u8>(), size_bytes),
                    std::slice::from_raw_parts_mut(to, head_dim),
                )
            };
            decode_kv8_record(record, head);
        }
        // As if cached, since it needs no prefetches as fresh rows do.
        Segment { first, end, base: to.cast_const(), stride: head_dim, cached: true }
    }

    /// Implements [`Block::store_heads`] for sums in the order of the elements.
    ///
    /// # Safety
    /// Same contract as [`Block::store_heads`].
    #[inline(always)]
    pub(super) unsafe fn store_kv8_heads<T: Number>(&self, sums: *const f32, out: *mut T) {
        let (s, head_dim) = (self.s, self.shape.head_dim);
        for query in 0..self.queries() {
            // SAFETY: the head is within `out`; sums are whole vectors.
            unsafe {
                let from = sums.add(query * head_stride(head_dim));
                let to = out.add(self.head_offset(query));
                for at in (0..head_dim).step_by(S::LANES) {
                    let sum = s.load(from.add(at));
                    if head_dim - at >= S::LANES {
                        T::store(s, to.add(at), sum);
                    } else {
                        T::store_partial(s, to.add(at), sum, head_dim - at);
                    }
                }
            }
        }
    }
}
