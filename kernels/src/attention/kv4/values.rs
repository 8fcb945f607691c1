//! V in 4 bits, and the integers that weight it, one block of positions at a time.
//!
//! Positions are processed in blocks of [`BLOCK`]. The weights of a block, probability times the
//! position's scale, become bytes `W` and remainders, `w = unit * W + rest`. The bytes of four
//! positions are adjacent, so that one instruction adds four products; the sums of a block are
//! exact. The rests of a block, whose loss would matter if many weights are much smaller than its
//! largest, are added up and multiplied by [`MIDDLE`]. **Order of the remaining sums**: block after
//! block, `sum = fma(unit, sum of W * q, sum)`, then
//! `sum += sum of probability * minimum + MIDDLE * rest`, which takes position `p` in lane
//! `p % LANES`.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

use std::ops::Range;

use model::quantized_format::kv4_groups;

use super::super::segment::Segment;
use super::super::strided::Strided;
use super::keys::load_ranges;
use crate::simd::{OutOfLine, Simd};

/// Number of positions whose weights share one unit.
pub(super) const BLOCK: usize = 64;
/// Largest integer weight.
const MAX_WEIGHT_CODE: f32 = 255.0;
/// Middle of a group's range, in units of its scale: multiplies the sum of a block's rests, in
/// place of the integers that they belong to.
const MIDDLE: f32 = 7.5;

/// Some positions of V, at most a block.
pub(super) struct Kv4Values {
    /// The record of each place; where no query sees the position, the nearest record that is seen.
    /// Only the first is set if there is a stride.
    pub records: [*const u8; BLOCK],
    /// Number of places from the block's first position to the end of those seen.
    pub count: usize,
    /// Number of places before the first one seen.
    pub skipped: usize,
    /// Distance in bytes from each record to the next, if it is constant for a whole block.
    pub stride: Option<usize>,
    pub head_dim: usize,
}

/// Floats of the integer weights of one query for one group of a block: `BLOCK / 4` groups of four,
/// a unit and a sum of minimums.
pub(super) const WEIGHTS: usize = BLOCK / 4 + 2;

/// Returns the floats of scratch for a block with up to `queries` queries.
pub(super) const fn kv4_values_len(head_dim: usize, queries: usize) -> usize {
    kv4_groups(head_dim) * (2 * BLOCK + queries * WEIGHTS)
}

/// The integer weights of a block for `MR` queries: a function of its own, since all ways to
/// multiply them share it. The code that constructs one guarantees the contract of
/// [`Kv4Values::load_weights`].
pub(super) struct LoadWeights<'a, const MR: usize> {
    pub values: &'a Kv4Values,
    pub rows: [(*const f32, Range<usize>); MR],
    pub ranges: *const f32,
    pub weights: *mut f32,
}

impl<S: Simd, const MR: usize> OutOfLine<S> for LoadWeights<'_, MR> {
    #[inline(always)]
    fn run(self, s: S) {
        let LoadWeights { values, rows, ranges, weights } = self;
        // SAFETY: guaranteed by the code that constructs it.
        unsafe { values.load_weights::<S, MR>(s, rows, ranges, weights) };
    }
}

impl Kv4Values {
    /// Returns the floats of one query's weights.
    #[inline(always)]
    pub(super) fn weights_len(&self) -> usize {
        kv4_groups(self.head_dim) * WEIGHTS
    }

    /// Returns an empty block.
    #[inline(always)]
    pub(super) const fn new(head_dim: usize) -> Self {
        let records = [std::ptr::null(); BLOCK];
        Kv4Values { records, count: 0, skipped: 0, stride: None, head_dim }
    }

    /// Starts the block at position `first` with the visible positions `seen`; their records are
    /// added later.
    #[inline(always)]
    pub(super) fn begin(&mut self, first: usize, seen: &Range<usize>) {
        (self.count, self.skipped) = (seen.end - first, seen.start - first);
        self.stride = None;
    }

    /// Adds the records of a segment of the visible positions; `first` is the block's first
    /// position.
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

    /// Completes the block after all records were added.
    #[inline(always)]
    pub(super) fn finish(&mut self) {
        if self.stride.is_none() {
            let last = self.records[self.count - 1];
            self.records[self.count..].fill(last);
            let nearest = self.records[self.skipped];
            self.records[..self.skipped].fill(nearest);
        }
    }

    /// Returns the record of a position, or the last one.
    #[inline(always)]
    pub(super) fn record(&self, position: usize) -> *const u8 {
        match self.stride {
            Some(stride) => self.records[0].wrapping_add(position * stride),
            None => self.records[position],
        }
    }

    /// Returns the addresses of ranges and weights in scratch.
    #[inline(always)]
    pub(super) fn scratch(&self, at: *mut f32) -> (*mut f32, *mut f32) {
        (at, at.wrapping_add(kv4_groups(self.head_dim) * 2 * BLOCK))
    }

    /// Writes the scales, then the minimums of every group, `BLOCK` of each, to `to`.
    ///
    /// # Safety
    /// The records are readable; `to` has space for all ranges.
    #[inline(always)]
    pub(super) unsafe fn load_ranges<S: Simd>(&self, s: S, to: *mut f32) {
        if let Some(stride) = self.stride {
            for at in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: the caller's promise: a whole block of records at this distance.
                unsafe {
                    let records = Strided { base: self.record(at), stride };
                    load_ranges(s, records, S::LANES, self.head_dim, |i, both| {
                        let to = to.add(2 * i * BLOCK + at);
                        let [low, high] = s.halves_f16(both);
                        s.store(to, low);
                        s.store(to.add(BLOCK), high);
                    });
                }
            }
            return;
        }
        for group in 0..kv4_groups(self.head_dim) {
            let mut dwords = [0u32; BLOCK];
            let records = dwords.iter_mut().zip(&self.records);
            for (dword, record) in records.take(self.count).skip(self.skipped) {
                // SAFETY: the caller's promise; a record ends with this number of dwords.
                *dword = unsafe {
                    record.add(self.head_dim / 2 + 4 * group).cast::<u32>().read_unaligned()
                };
            }
            for at in (0..BLOCK).step_by(S::LANES) {
                // SAFETY: the caller's promise.
                unsafe {
                    let both = s.load_dwords(dwords.as_ptr().add(at).cast());
                    let to = to.add(2 * group * BLOCK + at);
                    let [low, high] = s.halves_f16(both);
                    s.store(to, low);
                    s.store(to.add(BLOCK), high);
                }
            }
        }
    }

    /// Writes the integer weights of `MR` queries to `to`, [`Kv4Values::weights_len`] apart, from
    /// the probabilities at places that each query sees.
    ///
    /// # Safety
    /// `ranges` was written by `load_ranges`; `to` has space for `WEIGHTS` floats of every group
    /// and query.
    #[inline(always)]
    pub(super) unsafe fn load_weights<S: Simd, const MR: usize>(
        &self,
        s: S,
        rows: [(*const f32, Range<usize>); MR],
        ranges: *const f32,
        to: *mut f32,
    ) {
        let groups = kv4_groups(self.head_dim);
        // Invisible places count as zeros and are not read.
        let mut padded;
        let mut from = [std::ptr::null(); MR];
        if rows.iter().all(|(_, visible)| *visible == (0..BLOCK)) {
            for i in 0..MR {
                from[i] = rows[i].0;
            }
        } else {
            padded = [[0.0f32; BLOCK]; MR];
            for i in 0..MR {
                for place in rows[i].1.clone() {
                    // SAFETY: the caller's promise.
                    padded[i][place] = unsafe { *rows[i].0.add(place) };
                }
                from[i] = padded[i].as_ptr();
            }
        }
        for group in 0..groups {
            let mut weights = [[s.zero(); BLOCK / 8]; MR];
            let (mut largest, mut all) = ([s.zero(); MR], [s.zero(); MR]);
            let mut minimums = [s.zero(); MR];
            // SAFETY: the caller's promise: a block of ranges of each group, and of probabilities.
            unsafe {
                for v in 0..BLOCK / S::LANES {
                    let at = v * S::LANES;
                    let scale = s.load(ranges.add(group * BLOCK + at));
                    let minimum = s.load(ranges.add((groups + group) * BLOCK + at));
                    for i in 0..MR {
                        let p = s.load(from[i].add(at));
                        weights[i][v] = s.mul(p, scale);
                        largest[i] = s.max(weights[i][v], largest[i]);
                        all[i] = s.add(all[i], weights[i][v]);
                        minimums[i] = s.fma(p, minimum, minimums[i]);
                    }
                }
                // Each step processes all queries, so that no dependency chain stalls.
                let (mut inverse, mut unit) = ([0.0; MR], [0.0; MR]);
                for i in 0..MR {
                    let largest = s.max_lanes(largest[i]);
                    // Weights this small are negligible compared with any minimum or other block.
                    let there = largest > 1e-30;
                    inverse[i] = if there { MAX_WEIGHT_CODE / largest } else { 0.0 };
                    unit[i] = if there { largest / MAX_WEIGHT_CODE } else { 0.0 };
                }
                for i in 0..MR {
                    let to = to.add(i * self.weights_len() + group * WEIGHTS);
                    let (inverse, mut units) = (s.splat(inverse[i]), s.zero());
                    for v in 0..BLOCK / S::LANES {
                        let integers = s.round_dwords(s.mul(weights[i][v], inverse));
                        units = s.add(units, s.dwords_to_f32(integers));
                        s.store_bytes(to.cast::<u8>().add(v * S::LANES), integers);
                    }
                    let rests = s.sub(all[i], s.mul(s.splat(unit[i]), units));
                    *to.add(BLOCK / 4) = unit[i];
                    *to.add(BLOCK / 4 + 1) =
                        s.sum_lanes(s.fma(s.splat(MIDDLE), rests, minimums[i]));
                }
            }
        }
    }
}
