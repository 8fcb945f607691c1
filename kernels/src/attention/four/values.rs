//! Weighted values over V in 4 bits: vector lanes are bytes of four positions, sums are exact
//! integers.
//!
//! Positions are taken in blocks of [`BLOCK`]. The weights of a block, probability times the
//! position's scale, become bytes, `w = unit * W` and a rest. The bytes of four positions lie side
//! by side, so that one instruction adds four products; the sums of a block are exact. The rests of
//! a block, which would be missed where many weights are far below its largest, are added up and
//! meet [`MIDDLE`]. **The order of what is left**: block after block,
//! `sum = fma(unit, sum of W * q, sum)`, then
//! `sum += sum of probability * minimum + MIDDLE * sum of rests`, which takes position `p` in lane
//! `p % LANES`.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

use std::ops::Range;

use model::compressed::kv4_groups;

use super::super::prefetch::Prefetcher;
use super::super::segment::Segment;
use super::keys::{GROUP_BYTES, load_ranges};
use crate::simd::Simd;

/// Positions whose weights have one unit.
pub(super) const BLOCK: usize = 64;
/// Fours of positions from one prefetch to the next.
const PREFETCH_QUADS: usize = 2;
/// Largest integer weight.
const LARGEST: f32 = 255.0;
/// The middle of a group's range, in units of its scale: what rounding takes from the weights of a
/// block, it gets instead.
const MIDDLE: f32 = 7.5;

/// Some positions of V, at most a block.
pub(super) struct FourValues {
    /// The record of each place; where no query sees the position, that of the nearest one seen.
    /// Only the first where there is a stride.
    records: [*const u8; BLOCK],
    /// Places from the block's first position to the last one seen.
    pub count: usize,
    /// Places before the first one seen.
    skipped: usize,
    /// Bytes from each to the next, if that is the same for a whole block.
    stride: Option<usize>,
    pub head_dim: usize,
}

/// The integer weights of a block and of one query, of which group by group there are `BLOCK / 4`
/// fours, a unit and a sum of minimums.
const WEIGHTS: usize = BLOCK / 4 + 2;

/// Floats of scratch for a block with up to `queries` queries.
pub(super) const fn four_values_len(head_dim: usize, queries: usize) -> usize {
    kv4_groups(head_dim) * (2 * BLOCK + queries * WEIGHTS)
}

impl FourValues {
    /// Floats of one query's weights.
    #[inline(always)]
    pub(super) fn weights_len(&self) -> usize {
        kv4_groups(self.head_dim) * WEIGHTS
    }

    /// No positions yet.
    #[inline(always)]
    pub(super) const fn new(head_dim: usize) -> Self {
        let records = [std::ptr::null(); BLOCK];
        FourValues { records, count: 0, skipped: 0, stride: None, head_dim }
    }

    /// Makes it the positions `seen` of the block from position `first` on, whose records are not
    /// there yet.
    #[inline(always)]
    pub(super) fn begin(&mut self, first: usize, seen: &Range<usize>) {
        (self.count, self.skipped) = (seen.end - first, seen.start - first);
        self.stride = None;
    }

    /// Takes the records of a segment of the positions seen; `first` is the block's first.
    #[inline(always)]
    pub(super) fn put(&mut self, segment: &Segment<u8>, first: usize) {
        if segment.end - segment.first == BLOCK {
            self.records[0] = segment.base;
            self.stride = Some(segment.stride);
            return;
        }
        for position in segment.first..segment.end {
            let before = (position - segment.first) * segment.stride;
            self.records[position - first] = segment.base.wrapping_add(before);
        }
    }

    /// All records are there.
    #[inline(always)]
    pub(super) fn finish(&mut self) {
        if self.stride.is_none() {
            let last = self.records[self.count - 1];
            self.records[self.count..].fill(last);
            let nearest = self.records[self.skipped];
            self.records[..self.skipped].fill(nearest);
        }
    }

    /// The record of a position, or the last one.
    #[inline(always)]
    fn record(&self, position: usize) -> *const u8 {
        match self.stride {
            Some(stride) => self.records[0].wrapping_add(position * stride),
            None => self.records[position],
        }
    }

    /// The places of ranges and weights in scratch.
    #[inline(always)]
    pub(super) fn scratch(&self, at: *mut f32) -> (*mut f32, *mut f32) {
        (at, at.wrapping_add(kv4_groups(self.head_dim) * 2 * BLOCK))
    }

    /// Writes the scales, then the minimums of every group, `BLOCK` of each, to `to`.
    ///
    /// # Safety
    /// The records are readable; `to` has room.
    #[inline(always)]
    pub(super) unsafe fn load_ranges<S: Simd>(&self, s: S, to: *mut f32) {
        if let Some(stride) = self.stride {
            for at in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: the caller's promise: a whole block of records at this distance.
                unsafe {
                    let rows = (self.record(at), stride, S::LANES);
                    load_ranges(s, rows, self.head_dim, |i, both| {
                        let to = to.add(2 * i * BLOCK + at);
                        s.store(to, s.half_f16(both, false));
                        s.store(to.add(BLOCK), s.half_f16(both, true));
                    });
                }
            }
            return;
        }
        for group in 0..kv4_groups(self.head_dim) {
            let mut dwords = [0u32; BLOCK];
            let records = dwords.iter_mut().zip(&self.records);
            for (dword, record) in records.take(self.count).skip(self.skipped) {
                // SAFETY: the caller's promise; a record ends with as many dwords.
                *dword = unsafe {
                    record.add(self.head_dim / 2 + 4 * group).cast::<u32>().read_unaligned()
                };
            }
            for at in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let both = s.load_dwords(dwords.as_ptr().add(at).cast());
                    let to = to.add(2 * group * BLOCK + at);
                    s.store(to, s.half_f16(both, false));
                    s.store(to.add(BLOCK), s.half_f16(both, true));
                }
            }
        }
    }

    /// Writes the integer weights of the probabilities at places `visible` to `to`.
    ///
    /// # Safety
    /// `ranges` is what `load_ranges` wrote; `to` has room for `WEIGHTS` floats of every group.
    #[inline(always)]
    pub(super) unsafe fn load_weights<S: Simd>(
        &self,
        s: S,
        (probabilities, visible): (*const f32, Range<usize>),
        ranges: *const f32,
        to: *mut f32,
    ) {
        let groups = kv4_groups(self.head_dim);
        // Places before the visible ones count as zeros and are not read.
        let mut padded;
        let from = if visible.start > 0 {
            padded = [0.0f32; BLOCK];
            for place in visible.clone() {
                // SAFETY: the caller's promise.
                padded[place] = unsafe { *probabilities.add(place) };
            }
            padded.as_ptr()
        } else {
            probabilities
        };
        for group in 0..groups {
            let mut weights = [s.zero(); BLOCK / 8];
            let (mut largest, mut all, mut minimums) = (s.zero(), s.zero(), s.zero());
            // SAFETY: the caller's promise; only visible probabilities are read.
            unsafe {
                for i in 0..BLOCK / S::LANES {
                    let at = i * S::LANES;
                    let p = match visible.end.saturating_sub(at) {
                        0 => s.zero(),
                        left if left >= S::LANES => s.load(from.add(at)),
                        left => s.load_partial(from.add(at), left),
                    };
                    weights[i] = s.mul(p, s.load(ranges.add(group * BLOCK + at)));
                    largest = s.max(weights[i], largest);
                    all = s.add(all, weights[i]);
                    let minimum = s.load(ranges.add((groups + group) * BLOCK + at));
                    minimums = s.fma(p, minimum, minimums);
                }
                let largest = s.max_lanes(largest);
                // Weights that small are nothing beside any minimum or other block.
                let there = largest > 1e-30;
                let inverse = s.splat(if there { LARGEST / largest } else { 0.0 });
                let unit = if there { largest / LARGEST } else { 0.0 };
                let mut units = s.zero();
                let to = to.add(group * WEIGHTS);
                for i in 0..BLOCK / S::LANES {
                    let integers = s.round_dwords(s.mul(weights[i], inverse));
                    units = s.add(units, s.dwords_to_f32(integers));
                    s.store_bytes(to.cast::<u8>().add(i * S::LANES), integers);
                }
                *to.add(BLOCK / 4) = unit;
                *to.add(BLOCK / 4 + 1) =
                    s.sum_lanes(minimums) + MIDDLE * (s.sum_lanes(all) - unit * s.sum_lanes(units));
            }
        }
    }
}

impl FourValues {
    /// Adds the block to `MR` heads of sums, in the order of the vectors; see [`sum_place`].
    ///
    /// # Safety
    /// The records are readable; `weights` of `MR` queries are `groups * WEIGHTS` apart; `sums` of
    /// them are `stride` apart; `prefetcher` where this is the first tile to read them; `FAST` only
    /// where the machine has fast dot products.
    #[inline(always)]
    pub(super) unsafe fn add<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        weights: *const f32,
        (sums, stride): (*mut f32, usize),
        mut prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
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
                    let weights = (weights, [low, high]);
                    match (stride_if_whole, half) {
                        (Some(stride), 0) => {
                            let from = self.records[0].add(first);
                            let whole = (from, stride, prefetcher);
                            multiply_whole::<S, MR, FAST, 0>(s, whole, weights, &mut accumulators);
                        }
                        (Some(stride), _) => {
                            let from = self.records[0].add(first);
                            let whole = (from, stride, prefetcher);
                            multiply_whole::<S, MR, FAST, 1>(s, whole, weights, &mut accumulators);
                        }
                        (None, _) => {
                            let part = (first, half, prefetcher);
                            self.multiply::<S, MR, FAST>(s, part, weights, &mut accumulators);
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
                            let sum = sums.add(i * stride + at);
                            let block = s.dwords_to_f32(accumulators[i][j]);
                            let value = s.fma(unit, block, s.load(sum));
                            s.store(sum, s.add(value, minimum));
                        }
                    }
                }
            }
        }
    }

    /// The products of a half of the bytes of every four records, wherever they lie.
    ///
    /// # Safety
    /// As [`FourValues::add`]; the two groups exist.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        (first, half, mut prefetcher): (usize, usize, Option<&mut Prefetcher<'_>>),
        (weights, [low, high]): (*const f32, [usize; 2]),
        accumulators: &mut [[S::D; 4]; MR],
    ) {
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

/// As [`FourValues::multiply`] for a whole block of records of two groups, `stride` bytes apart,
/// and half `HALF` of their bytes: nothing but the products is left to each step.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply_whole<S: Simd, const MR: usize, const FAST: bool, const HALF: usize>(
    s: S,
    (mut records, stride, mut prefetcher): (*const u8, usize, Option<&mut Prefetcher<'_>>),
    (weights, [low, high]): (*const f32, [usize; 2]),
    accumulators: &mut [[S::D; 4]; MR],
) {
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

/// Adds the products of both nibbles of every byte, four positions side by side, and the weights.
#[inline(always)]
fn add_products<S: Simd, const MR: usize, const FAST: bool>(
    s: S,
    dwords: [S::D; 2],
    w: [S::D; MR],
    sums: &mut [[S::D; 4]; MR],
) {
    for j in 0..4 {
        let nibbles = s.nibble_bytes(dwords[j / 2], j % 2 == 1);
        for i in 0..MR {
            sums[i][j] = s.dot_bytes::<FAST>(sums[i][j], w[i], nibbles);
        }
    }
}

/// `count` bytes, at most a vector; zeros behind them.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load_bytes<S: Simd>(s: S, from: *const u8, count: usize) -> S::D {
    // SAFETY: the caller's promise.
    unsafe { if count == 4 * S::LANES { s.load_dwords(from) } else { s.load_bytes(from, count) } }
}

/// Where the sum of the low nibble of byte `byte` lies among the sums of a head; that of the high
/// one lies `LANES` behind it.
#[inline(always)]
pub(super) fn sum_place<S: Simd>(byte: usize) -> usize {
    let (vector, byte) = (byte / (4 * S::LANES), byte % (4 * S::LANES));
    // Bytes lie in lanes and vectors as `interleave_bytes` puts them, nibbles of a byte in vectors.
    let (vector_of_four, lane) = (byte % 16 / 4, byte / 16 * 4 + byte % 4);
    (vector * 8 + 2 * vector_of_four) * S::LANES + lane
}
