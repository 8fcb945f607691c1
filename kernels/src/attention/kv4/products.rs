//! Weighted values over V in 4 bits: vector lanes are bytes of four positions, sums are exact
//! integers (`values.rs` documents the order of the remaining sums).

#![allow(
    clippy::needless_range_loop,
    reason = "a register tile is clearer, and surer to stay in registers, by index"
)]

use model::quantized_format::kv4_groups;

use super::super::prefetch::Prefetcher;
use super::super::strided::Strided;
use super::halves::{half_places, is_half};
use super::keys::GROUP_BYTES;
use super::nibbles::add_products;
use super::values::{BLOCK, Kv4Values, WEIGHTS};
use crate::simd::Simd;

/// Number of groups of four positions from one prefetch to the next.
const PREFETCH_QUADS: usize = 2;

/// Integer weights of a block, and the two groups whose bytes are in a vector.
#[derive(Clone, Copy)]
struct GroupWeights {
    base: *const f32,
    low: usize,
    high: usize,
}

impl Kv4Values {
    /// Adds the block to `MR` heads of sums, in the order of the vectors; see [`sum_places`].
    ///
    /// # Safety
    /// The records are readable; `weights` of `MR` queries are `groups * WEIGHTS` apart, and there
    /// are `sums` of each; `prefetcher` is present if this is the first tile to read the records;
    /// `FAST` requires that the machine has fast dot products.
    #[inline(always)]
    pub(super) unsafe fn add<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        weights: *const f32,
        sums: Strided<*mut f32>,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        if const { !S::IS_PORTABLE } && is_half::<S>(self.head_dim) {
            // SAFETY: the caller's promise.
            unsafe { self.add_halves::<S, MR, FAST>(s, weights, sums, prefetcher) };
            return;
        }
        let groups = kv4_groups(self.head_dim);
        let bytes = self.head_dim / 2;
        let stride_if_whole = self.stride.filter(|_| groups == 2 && bytes == 2 * GROUP_BYTES);
        for first in (0..bytes).step_by(4 * S::LANES) {
            // A vector of sixteen lanes has two groups, one of eight has one.
            let low = first / GROUP_BYTES;
            let high = (low + S::LANES / 8 - 1).min(groups - 1);
            for half in 0..2 {
                // Both halves of the first vector prefetch half of what follows the records.
                let prefetcher = if first == 0 { prefetcher.as_deref_mut() } else { None };
                let mut accumulators = [[s.splat_dword(0); 4]; MR];
                // SAFETY: the caller's promise.
                unsafe {
                    let weights = GroupWeights { base: weights, low, high };
                    match (stride_if_whole, half) {
                        (Some(stride), 0) => {
                            let whole = Strided { base: self.records[0].add(first), stride };
                            let sums = &mut accumulators;
                            multiply_whole::<S, MR, FAST, 0>(s, whole, weights, prefetcher, sums);
                        }
                        (Some(stride), _) => {
                            let whole = Strided { base: self.records[0].add(first), stride };
                            let sums = &mut accumulators;
                            multiply_whole::<S, MR, FAST, 1>(s, whole, weights, prefetcher, sums);
                        }
                        (None, _) => {
                            let sums = &mut accumulators;
                            self.multiply::<S, MR, FAST>(s, first, half, weights, prefetcher, sums);
                        }
                    }
                }
                for i in 0..MR {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let of = |group: usize, index: usize| {
                            let at = (i * groups + group) * WEIGHTS + BLOCK / 4 + index;
                            (*weights.add(at)).to_bits()
                        };
                        let unit = s.bits(s.two_dwords(of(low, 0), of(high, 0)));
                        let minimum = s.bits(s.two_dwords(of(low, 1), of(high, 1)));
                        for j in 0..4 {
                            let at = (first / 4 / S::LANES * 8 + half * 4 + j) * S::LANES;
                            let sum = sums.base.add(i * sums.stride + at);
                            let block = s.dwords_to_f32(accumulators[i][j]);
                            let value = s.fma(unit, block, s.load(sum));
                            s.store(sum, s.add(value, minimum));
                        }
                    }
                }
            }
        }
    }

    /// Computes the products of a half of the bytes of every four records, at any addresses.
    ///
    /// # Safety
    /// Same contract as [`Kv4Values::add`]; the two groups exist.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        first: usize,
        half: usize,
        weights: GroupWeights,
        mut prefetcher: Option<&mut Prefetcher<'_>>,
        accumulators: &mut [[S::D; 4]; MR],
    ) {
        let GroupWeights { base: weights, low, high } = weights;
        let groups = kv4_groups(self.head_dim);
        let bytes = self.head_dim / 2;
        let count = (bytes - first).min(4 * S::LANES);
        for quad in self.skipped / 4..self.count.div_ceil(4) {
            if let Some(prefetcher) = &mut prefetcher {
                prefetcher.read(s, 2 * (bytes + 4 * groups));
            }
            // SAFETY: the caller's promise covers every offset used here.
            unsafe {
                let of = |place| load_bytes(s, self.record(4 * quad + place).add(first), count);
                let dwords = s.interleave_bytes([of(0), of(1), of(2), of(3)], half);
                let mut w = [s.splat_dword(0); MR];
                for i in 0..MR {
                    let of = |group| weights.add((i * groups + group) * WEIGHTS + quad).cast();
                    w[i] = s.two_dwords_at(of(low), of(high));
                }
                add_products::<S, MR, FAST>(s, dwords, w, accumulators);
            }
        }
    }
}

/// Specialises [`Kv4Values::multiply`] for a whole block of records of two groups at a constant
/// distance, and half `HALF` of their bytes, so that each step consists of products only.
///
/// # Safety
/// Same contract as [`Kv4Values::multiply`].
#[inline(always)]
unsafe fn multiply_whole<S: Simd, const MR: usize, const FAST: bool, const HALF: usize>(
    s: S,
    records: Strided<*const u8>,
    weights: GroupWeights,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
    accumulators: &mut [[S::D; 4]; MR],
) {
    let Strided { base: mut records, stride } = records;
    let GroupWeights { base: weights, low, high } = weights;
    let mut sums = *accumulators;
    let (mut low, mut high) =
        (weights.wrapping_add(low * WEIGHTS), weights.wrapping_add(high * WEIGHTS));
    for _ in 0..BLOCK / (4 * PREFETCH_QUADS) {
        if let Some(prefetcher) = &mut prefetcher {
            prefetcher.read(s, 2 * PREFETCH_QUADS * (2 * GROUP_BYTES + 8));
        }
        for _ in 0..PREFETCH_QUADS {
            // SAFETY: the caller's promise covers every offset used here.
            unsafe {
                let of = |place: usize| s.load_dwords(records.add(place * stride));
                let dwords = s.interleave_bytes([of(0), of(1), of(2), of(3)], HALF);
                let mut w = [s.splat_dword(0); MR];
                for i in 0..MR {
                    let of = |from: *const f32| from.add(i * 2 * WEIGHTS).cast();
                    w[i] = s.two_dwords_at(of(low), of(high));
                }
                add_products::<S, MR, FAST>(s, dwords, w, &mut sums);
                records = records.add(4 * stride);
                (low, high) = (low.add(1), high.add(1));
            }
        }
    }
    *accumulators = sums;
}

/// Loads `count` bytes, at most a vector, followed by zeros.
///
/// # Safety
/// The bytes are readable.
#[inline(always)]
unsafe fn load_bytes<S: Simd>(s: S, from: *const u8, count: usize) -> S::D {
    // SAFETY: the caller's promise.
    unsafe { if count == 4 * S::LANES { s.load_dwords(from) } else { s.load_bytes(from, count) } }
}

/// Returns the indices of the sums of the low and of the high nibble of byte `byte` among the sums
/// of a head.
#[inline(always)]
pub(super) fn sum_places<S: Simd>(byte: usize, head_dim: usize) -> [usize; 2] {
    if is_half::<S>(head_dim) {
        return half_places::<S>(byte);
    }
    let (vector, byte) = (byte / (4 * S::LANES), byte % (4 * S::LANES));
    // `interleave_bytes` determines the lane and vector of each byte; the two nibbles of a byte are
    // in different vectors.
    let (vector_of_four, lane) = (byte % 16 / 4, byte / 16 * 4 + byte % 4);
    let low = (vector * 8 + 2 * vector_of_four) * S::LANES + lane;
    [low, low + S::LANES]
}
