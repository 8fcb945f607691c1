//! Weighted values over records whose bytes fill half a vector, as those of heads of 64 elements do
//! in vectors of sixteen lanes. Eight positions are processed at a time, four in each half, and the
//! halves are added at the end of the block. The sums are integers, so they equal those of any
//! other order.

#![allow(
    clippy::needless_range_loop,
    reason = "a register tile is clearer, and surer to stay in registers, by index"
)]

use super::super::prefetch::Prefetcher;
use super::super::strided::Strided;
use super::nibbles::add_products;
use super::values::{BLOCK, Kv4Values, WEIGHTS};
use crate::simd::Simd;

/// Number of groups of eight positions from one prefetch to the next.
const PREFETCH_EIGHTS: usize = 2;

/// Returns the bytes to prefetch each time: each half of the bytes prefetches half of what follows
/// the records.
const fn prefetched_bytes<S: Simd>() -> usize {
    PREFETCH_EIGHTS * 4 * (2 * S::LANES + 4)
}

/// Returns true if the integers of a record fill half a vector of bytes; portable code has no use
/// for that.
#[inline(always)]
pub(super) const fn is_half<S: Simd>(head_dim: usize) -> bool {
    !S::IS_PORTABLE && head_dim / 2 == 2 * S::LANES
}

/// Returns the places of [`sum_places`](super::products::sum_places) for such a head: the sums of
/// the high nibbles are in the second half of each vector.
#[inline(always)]
pub(super) const fn half_places<S: Simd>(byte: usize) -> [usize; 2] {
    // `interleave_bytes` determines the lane and vector of each byte.
    let low = byte % 16 / 4 * S::LANES + byte / 16 * 4 + byte % 4;
    [low, low + S::LANES / 2]
}

impl Kv4Values {
    /// Implements [`Kv4Values::add`] for such a head.
    ///
    /// # Safety
    /// Same contract as [`Kv4Values::add`].
    #[inline(always)]
    pub(super) unsafe fn add_halves<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        weights: *const f32,
        sums: Strided<*mut f32>,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        for half in 0..2 {
            let prefetcher = prefetcher.as_deref_mut();
            // SAFETY: the caller's promise.
            unsafe {
                let accumulators = match (self.stride, half) {
                    (Some(stride), 0) => {
                        let whole = Strided { base: self.records[0], stride };
                        multiply_whole::<S, MR, FAST, 0>(s, whole, weights, prefetcher)
                    }
                    (Some(stride), _) => {
                        let whole = Strided { base: self.records[0], stride };
                        multiply_whole::<S, MR, FAST, 1>(s, whole, weights, prefetcher)
                    }
                    (None, _) => self.multiply_eights::<S, MR, FAST>(s, half, weights, prefetcher),
                };
                for i in 0..MR {
                    let of = weights.add(i * WEIGHTS + BLOCK / 4);
                    let (unit, minimum) = (s.splat(*of), s.splat(*of.add(1)));
                    for j in 0..2 {
                        let both =
                            s.fold_halves(accumulators[i][2 * j], accumulators[i][2 * j + 1]);
                        let at = i * sums.stride + (2 * half + j) * S::LANES;
                        let sum = sums.base.add(at);
                        let value = s.fma(unit, s.dwords_to_f32(both), s.load(sum));
                        s.store(sum, s.add(value, minimum));
                    }
                }
            }
        }
    }

    /// Computes the products of a half of the bytes of all records, at any addresses; each half of
    /// the lanes holds those of every other group of four.
    ///
    /// # Safety
    /// Same contract as [`Kv4Values::add`].
    #[inline(always)]
    unsafe fn multiply_eights<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        half: usize,
        weights: *const f32,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) -> [[S::D; 4]; MR] {
        let mut sums = [[s.splat_dword(0); 4]; MR];
        for eight in self.skipped / 8..self.count.div_ceil(8) {
            if let (Some(prefetcher), 0) = (&mut prefetcher, eight % PREFETCH_EIGHTS) {
                prefetcher.read(s, prefetched_bytes::<S>());
            }
            // SAFETY: the caller's promise: every place of the block has a record.
            unsafe {
                let records = &self.records[8 * eight..8 * eight + 8];
                let of = |i: usize| s.load_halves(records[i], records[4 + i]);
                let dwords = s.interleave_bytes([of(0), of(1), of(2), of(3)], half);
                let w = weights_of::<S, MR>(s, weights.add(2 * eight));
                add_products::<S, MR, FAST>(s, dwords, w, &mut sums);
            }
        }
        sums
    }
}

/// Specialises [`Kv4Values::multiply_eights`] for a whole block of records at a constant distance
/// and half `HALF` of their bytes, so that each step consists of products only.
///
/// # Safety
/// Same contract as [`Kv4Values::multiply_eights`].
#[inline(always)]
unsafe fn multiply_whole<S: Simd, const MR: usize, const FAST: bool, const HALF: usize>(
    s: S,
    records: Strided<*const u8>,
    mut weights: *const f32,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
) -> [[S::D; 4]; MR] {
    let Strided { base: mut records, stride } = records;
    let mut sums = [[s.splat_dword(0); 4]; MR];
    for _ in 0..BLOCK / (8 * PREFETCH_EIGHTS) {
        if let Some(prefetcher) = &mut prefetcher {
            prefetcher.read(s, prefetched_bytes::<S>());
        }
        for _ in 0..PREFETCH_EIGHTS {
            // SAFETY: the caller's promise covers every offset used here.
            unsafe {
                let behind = records.add(4 * stride);
                let of = |i: usize| s.load_halves(records.add(i * stride), behind.add(i * stride));
                let dwords = s.interleave_bytes([of(0), of(1), of(2), of(3)], HALF);
                let w = weights_of::<S, MR>(s, weights);
                add_products::<S, MR, FAST>(s, dwords, w, &mut sums);
                records = behind.add(4 * stride);
                weights = weights.add(2);
            }
        }
    }
    sums
}

/// Loads, for each query, the weights of four positions into the first half of the lanes and those
/// of the next four into the other half.
///
/// # Safety
/// The weights are readable; those of consecutive queries are [`WEIGHTS`] apart.
#[inline(always)]
unsafe fn weights_of<S: Simd, const MR: usize>(s: S, weights: *const f32) -> [S::D; MR] {
    let mut w = [s.splat_dword(0); MR];
    for i in 0..MR {
        // SAFETY: the caller's promise.
        unsafe {
            let of = weights.add(i * WEIGHTS).cast::<u32>();
            w[i] = s.two_dwords_at(of, of.add(1));
        }
    }
    w
}
