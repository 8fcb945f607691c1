//! Scores over K in 4 bits: vector lanes are positions, sums are exact integers.
//!
//! Each group of a query becomes signed bytes, `x = scale * X`; their products with a group of K
//! are summed as integers, so their order does not matter. **Order of the remaining sums**: group
//! after group, `total = fma(scale_k, scale * sum, total)`, then `total = fma(min_k, scale * sum of
//! X, total)`.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

use model::quantized_format::{KV_GROUP, kv4_groups};

use super::super::prefetch::Prefetcher;
use super::super::strided::Strided;
use crate::number::Number;
use crate::simd::{MAX_LANES, Simd};
use crate::unroll::unroll_16;

/// Bytes of the integers of a whole group.
pub(super) const GROUP_BYTES: usize = KV_GROUP / 2;
/// Dwords of the integers of a whole group.
const GROUP_DWORDS: usize = GROUP_BYTES / 4;
/// Maximum dwords of a record's integers for which a wide vector would be half empty.
const NARROW_DWORDS: usize = 8;
const NARROW_BYTES: usize = 4 * NARROW_DWORDS;
/// Number of groups of the longest supported head.
pub(in crate::attention) const MAX_GROUPS: usize = 16;
/// Largest `X`.
const MAX_QUERY_CODE: f32 = 127.0;

/// Returns the two elements of a head that the low and the high nibble of byte `byte` hold.
#[inline(always)]
pub(super) const fn elements_of(byte: usize, head_dim: usize) -> (usize, usize) {
    let first = byte / GROUP_BYTES * KV_GROUP;
    let left = head_dim - first;
    let group = if left < KV_GROUP { left } else { KV_GROUP };
    (first + byte % GROUP_BYTES, first + byte % GROUP_BYTES + group / 2)
}

/// Returns the dwords of a record's integers, rounded up to whole vectors of any width.
const fn dwords(head_dim: usize) -> usize {
    (head_dim / 2).next_multiple_of(4 * MAX_LANES) / 4
}

/// A packed query: for each dword of the record two dwords, with the elements that match its low
/// and its high nibbles, followed by the scale and sum of each group.
#[derive(Clone, Copy)]
pub(super) struct Kv4Queries {
    pub from: *const f32,
    /// Distance in floats from one query to the next.
    pub stride: usize,
    pub head_dim: usize,
}

impl Kv4Queries {
    /// Packs one head.
    ///
    /// # Safety
    /// `q` is a head; `from` has space for `stride` floats.
    #[inline(always)]
    pub(super) unsafe fn pack<T: Number>(self, q: *const T) {
        let head_dim = self.head_dim;
        let bytes = self.from.cast_mut().cast::<[[i8; 4]; 2]>();
        // SAFETY: the caller's promise; two dwords for each of the record's, and a scale and a sum
        // per group, are fewer floats than a padded head.
        unsafe {
            std::ptr::write_bytes(self.from.cast_mut(), 0, self.stride);
            let at = |element: usize| (*q.add(element)).to_f32();
            for group in 0..kv4_groups(head_dim) {
                let elements = group * KV_GROUP..head_dim.min((group + 1) * KV_GROUP);
                let largest = elements.clone().fold(0.0f32, |most, i| most.max(at(i).abs()));
                // NaN and infinities must propagate.
                let poison: f32 = elements.map(|i| at(i) * 0.0).sum();
                let inverse = if largest > 1e-30 { MAX_QUERY_CODE / largest } else { 0.0 };
                let scale = largest / MAX_QUERY_CODE + poison;
                let mut sum = 0;
                for byte in group * GROUP_BYTES..(head_dim / 2).min((group + 1) * GROUP_BYTES) {
                    let (low, high) = elements_of(byte, head_dim);
                    for (nibble, element) in [low, high].into_iter().enumerate() {
                        let x = (at(element) * inverse).round_ties_even() as i8;
                        (*bytes.add(byte / 4))[nibble][byte % 4] = x;
                        sum += i32::from(x);
                    }
                }
                let range = self.range(group).cast_mut();
                *range = scale;
                *range.add(1) = scale * sum as f32;
            }
        }
    }

    /// Returns the address of a group's scale, which its sum follows.
    #[inline(always)]
    fn range(self, group: usize) -> *const f32 {
        self.from.wrapping_add(2 * dwords(self.head_dim) + 2 * group)
    }

    /// Adds the sum of a group's products, scaled and offset by the group's scales and minimums, to
    /// the scores of a vector of positions.
    ///
    /// # Safety
    /// The query is packed.
    #[inline(always)]
    unsafe fn add_group<S: Simd>(
        self,
        s: S,
        total: S::F,
        group: usize,
        sum: S::F,
        scale: S::F,
        minimum: S::F,
    ) -> S::F {
        let range = self.range(group);
        // SAFETY: the caller's promise.
        let (q_scale, q_sum) = unsafe { (s.splat(*range), s.splat(*range.add(1))) };
        s.fma(minimum, q_sum, s.fma(scale, s.mul(sum, q_scale), total))
    }

    #[inline(always)]
    fn skip(self, queries: usize) -> Self {
        Kv4Queries { from: self.from.wrapping_add(queries * self.stride), ..self }
    }
}

/// K of some positions as records.
#[derive(Clone, Copy)]
pub(super) struct Kv4Keys {
    pub records: *const u8,
    pub record_bytes: usize,
    /// Positions, at least one.
    pub width: usize,
    pub head_dim: usize,
    /// Number of readable bytes after the last record.
    pub bytes_after: usize,
}

impl Kv4Keys {
    /// Returns true if this is a whole vector of positions whose records are each read as
    /// [`NARROW_DWORDS`].
    #[inline(always)]
    pub(super) fn is_narrow<S: Simd>(&self) -> bool {
        let bytes = self.head_dim / 2;
        S::LANES > NARROW_DWORDS
            && bytes <= NARROW_BYTES
            && self.width == S::LANES
            && bytes + self.bytes_after >= NARROW_BYTES
    }

    /// Returns true if those dwords are all of a record's integers.
    #[inline(always)]
    pub(super) fn fills_narrow<S: Simd>(&self) -> bool {
        self.is_narrow::<S>() && self.head_dim / 2 == NARROW_BYTES
    }

    /// Returns the scores of `MR` queries at narrow records, straight from the registers in which
    /// they are transposed; equal to [`four_scores`] of the output of [`Kv4Keys::unpack`].
    ///
    /// # Safety
    /// Same contract as [`four_scores`]; [`Kv4Keys::fills_narrow`] holds.
    #[inline(always)]
    pub(super) unsafe fn narrow_scores<S: Simd, const MR: usize, const FAST: bool>(
        &self,
        s: S,
        queries: Kv4Queries,
        prefetcher: Option<&mut Prefetcher<'_>>,
    ) -> [[S::F; 1]; MR] {
        let read = S::LANES * self.record_bytes;
        let mut lines =
            prefetcher.and_then(|prefetcher| prefetcher.read_in_steps(s, read, NARROW_DWORDS));
        // Sums of the low nibbles and of the high ones: independent chains.
        let mut sums = [[s.splat_dword(0); 2]; MR];
        let mut totals = [[s.zero(); 1]; MR];
        // SAFETY: the caller's promise.
        unsafe {
            let block = s.transpose_eight(self.records, self.record_bytes);
            unroll_16!(NARROW_DWORDS, P => {
                let dword = block.as_slice()[P];
                let (low, high) = (s.nibble_bytes(dword, false), s.nibble_bytes(dword, true));
                for i in 0..MR {
                    let q = queries.from.add(i * queries.stride + 2 * P).cast::<u32>();
                    sums[i][0] = s.dot_bytes::<FAST>(sums[i][0], low, s.splat_dword(*q));
                    sums[i][1] = s.dot_bytes::<FAST>(sums[i][1], high, s.splat_dword(*q.add(1)));
                }
                if let Some(lines) = &mut lines {
                    lines.prefetch(s);
                }
            });
            // One group of scales and minimums; the bytes before it are discarded.
            let end = self.records.add(self.head_dim / 2 + 4 - NARROW_BYTES);
            let both = s.transpose_eight(end, self.record_bytes)[NARROW_DWORDS - 1];
            let [scale, minimum] = s.halves_f16(both);
            for i in 0..MR {
                // Exact, because each sum is.
                let sum = s.add(s.dwords_to_f32(sums[i][0]), s.dwords_to_f32(sums[i][1]));
                let query = queries.skip(i);
                totals[i][0] = query.add_group(s, totals[i][0], 0, sum, scale, minimum);
            }
        }
        totals
    }

    /// Writes the bytes of the low and of the high nibbles of every dword of a vector of positions
    /// to `to`, followed by every group's scales and minimums; `prefetcher` fetches the memory that
    /// follows the records.
    ///
    /// # Safety
    /// The positions are readable; `to` has space for [`unpacked_len`] floats.
    #[inline(always)]
    pub(super) unsafe fn unpack<S: Simd>(
        &self,
        s: S,
        to: *mut f32,
        prefetcher: Option<&mut Prefetcher<'_>>,
    ) {
        let read = self.width * self.record_bytes;
        let bytes = self.head_dim / 2;
        let is_narrow = self.is_narrow::<S>();
        let steps = if is_narrow { NARROW_DWORDS } else { S::LANES };
        let mut lines = prefetcher.and_then(|prefetcher| prefetcher.read_in_steps(s, read, steps));
        let width = self.width.min(S::LANES);
        // Scales and minimums are written first, so that they have left the store buffer when they
        // are read.
        let ranges = to.wrapping_add(dwords(self.head_dim) * 2 * S::LANES);
        // SAFETY: the caller's promise; `ranges` has space for two vectors of every group.
        unsafe {
            let records = Strided { base: self.records, stride: self.record_bytes };
            load_ranges(s, records, width, self.head_dim, |i, both| {
                let [low, high] = s.halves_f16(both);
                s.store(ranges.add(2 * i * S::LANES), low);
                s.store(ranges.add((2 * i + 1) * S::LANES), high);
            });
        }
        macro_rules! store_nibbles {
            ($block:expr, $dwords:expr, $first:expr) => {{
                let to = to.wrapping_add($first / 4 * 2 * S::LANES);
                unroll_16!($dwords, P => {
                    let dword = $block[P];
                    // SAFETY: the caller's promise.
                    unsafe {
                        let to = to.add(2 * P * S::LANES);
                        s.store(to, s.bits(s.nibble_bytes(dword, false)));
                        s.store(to.add(S::LANES), s.bits(s.nibble_bytes(dword, true)));
                    }
                    if let (Some(lines), 0) = (&mut lines, $first) {
                        lines.prefetch(s);
                    }
                });
            }};
        }
        if const { S::IS_WIDE } && is_narrow {
            // SAFETY: the caller's promise.
            let block = unsafe { s.transpose_eight(self.records, self.record_bytes) };
            store_nibbles!(block.as_slice(), NARROW_DWORDS, 0);
            return;
        }
        for first in (0..bytes).step_by(4 * S::LANES) {
            // SAFETY: the caller's promise; records that cannot be read as whole vectors go through
            // a buffer. Bytes of a vector after its record meet no query and are ignored.
            let block = unsafe {
                if width == S::LANES && bytes - first + self.bytes_after >= 4 * S::LANES {
                    s.transpose(self.records.add(first), self.record_bytes)
                } else {
                    let mut rows = [[0u8; 4 * MAX_LANES]; MAX_LANES];
                    let count = (bytes - first).min(4 * S::LANES);
                    for (row, to) in rows.iter_mut().enumerate().take(width) {
                        let from = self.records.add(row * self.record_bytes + first);
                        std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), count);
                    }
                    s.transpose(rows.as_ptr().cast(), 4 * MAX_LANES)
                }
            };
            store_nibbles!(block.as_ref(), S::LANES, first);
        }
    }
}

/// Calls `each` with dword `i` of the scales and minimums of `width` records, at most a vector; the
/// number of dwords is the number of groups.
///
/// # Safety
/// The records are readable.
#[inline(always)]
pub(super) unsafe fn load_ranges<S: Simd>(
    s: S,
    records: Strided<*const u8>,
    width: usize,
    head_dim: usize,
    mut each: impl FnMut(usize, S::D),
) {
    let Strided { base: records, stride } = records;
    let (bytes, groups) = (head_dim / 2, kv4_groups(head_dim));
    let record_bytes = bytes + 4 * groups;
    if width == S::LANES && groups <= 2 && record_bytes >= NARROW_BYTES {
        // Transposes the ends of the records; the compiler drops shuffles that only other
        // columns need.
        // SAFETY: these bytes end with their records.
        let block = unsafe { s.transpose_eight(records.add(record_bytes - NARROW_BYTES), stride) };
        // Constant places keep the values in registers.
        if groups == 2 {
            each(0, block[NARROW_DWORDS - 2]);
            each(1, block[NARROW_DWORDS - 1]);
        } else {
            each(0, block[NARROW_DWORDS - 1]);
        }
        return;
    }
    for group in 0..groups {
        let mut dwords = [0u32; MAX_LANES];
        for (row, dword) in dwords.iter_mut().enumerate().take(width) {
            // SAFETY: the caller's promise; a record ends with this number of dwords.
            *dword = unsafe {
                records.add(row * stride + bytes + 4 * group).cast::<u32>().read_unaligned()
            };
        }
        // SAFETY: the buffer has space for the widest vectors.
        each(group, unsafe { s.load_dwords(dwords.as_ptr().cast()) });
    }
}

/// Returns the number of floats that [`Kv4Keys::unpack`] writes.
pub(super) const fn unpacked_len(head_dim: usize) -> usize {
    2 * MAX_LANES * (dwords(head_dim) + kv4_groups(head_dim))
}

/// Returns the scores of `MR` queries and `NV` vectors of positions that were unpacked to `keys`,
/// [`unpacked_len`] apart: the query's factors are loaded once for all of them.
///
/// # Safety
/// `keys` was written by `unpack`; `queries` are `MR` packed queries; `FAST` requires that the
/// machine has fast dot products.
#[inline(always)]
pub(super) unsafe fn four_scores<S: Simd, const MR: usize, const NV: usize, const FAST: bool>(
    s: S,
    queries: Kv4Queries,
    keys: *const f32,
) -> [[S::F; NV]; MR] {
    let head_dim = queries.head_dim;
    let groups = kv4_groups(head_dim);
    let all = (head_dim / 2).div_ceil(4);
    let ranges = keys.wrapping_add(dwords(head_dim) * 2 * S::LANES);
    let vector = unpacked_len(head_dim);
    let mut totals = [[s.zero(); NV]; MR];
    // SAFETY: the caller's promise covers every offset used here.
    unsafe {
        for group in 0..groups {
            let mut sums = [[s.splat_dword(0); NV]; MR];
            for dword in group * GROUP_DWORDS..all.min((group + 1) * GROUP_DWORDS) {
                for nibble in 0..2 {
                    let at = keys.add((2 * dword + nibble) * S::LANES);
                    let mut nibbles = [s.splat_dword(0); NV];
                    for v in 0..NV {
                        nibbles[v] = s.load_dwords(at.add(v * vector).cast());
                    }
                    for i in 0..MR {
                        let q = queries.from.add(i * queries.stride + 2 * dword + nibble);
                        let q = s.splat_dword(*q.cast::<u32>());
                        for v in 0..NV {
                            sums[i][v] = s.dot_bytes::<FAST>(sums[i][v], nibbles[v], q);
                        }
                    }
                }
            }
            for v in 0..NV {
                let ranges = ranges.add(v * vector);
                let scale = s.load(ranges.add(group * S::LANES));
                let minimum = s.load(ranges.add((groups + group) * S::LANES));
                for i in 0..MR {
                    // Exact: a group's sum stays below 2^24.
                    let sum = s.dwords_to_f32(sums[i][v]);
                    let query = queries.skip(i);
                    totals[i][v] = query.add_group(s, totals[i][v], group, sum, scale, minimum);
                }
            }
        }
    }
    totals
}
