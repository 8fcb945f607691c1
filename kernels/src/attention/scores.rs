//! Register tiles of scores: vector lanes are positions.
//!
//! K is stored position by position, so the elements of `LANES` positions are transposed in
//! registers into vectors of positions. A few queries use them at once (`few`); many queries share
//! a block of positions that was transposed to scratch (`transpose_block`, `blocked`).
//!
//! **Order of the sum.** A score is the sum of chains of fused multiply-adds along head_dim, padded
//! with zeros to whole slabs. There are two of them, its even and its odd elements, because a
//! single one would stall on its own latency; with AVX-512 and bf16 there are four, each of every
//! fourth dword (`avx512.rs`). `avx512_bf16.rs` defines its own order. Tiles, blocks and neighbours
//! do not influence the order.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::keys::{Keys, Queries, slab};
use super::prefetch::Prefetcher;
use crate::number::Number;
use crate::simd::{MAX_LANES, Simd};
use crate::unroll::unroll_16;

/// Positions of a transposed block, for the widest vectors.
pub(super) const BLOCK_POSITIONS: usize = 2 * MAX_LANES;

/// Returns the number of chains of a score, which are added in order.
#[inline(always)]
pub(super) const fn chains<S: Simd, T: Number>() -> usize {
    if S::LANES == 16 && !T::IS_F32 { 4 } else { 2 }
}

impl<T: Number> Keys<T> {
    /// Returns dword `p` of the elements from `at` of positions `first..first + LANES` as vector
    /// `p`, with zeros for positions and elements that do not exist.
    ///
    /// # Safety
    /// The positions are readable.
    #[inline(always)]
    pub(super) unsafe fn columns<S: Simd>(
        &self,
        s: S,
        first: usize,
        at: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) -> S::Block {
        self.prefetch(s, first, at, prefetcher);
        // SAFETY: the caller's promise; the copy has space for the widest vectors.
        unsafe {
            match self.whole::<S>(first, at) {
                Some((from, stride_bytes)) => s.transpose(from, stride_bytes),
                None => {
                    let rows = self.padded::<S>(first, at);
                    s.transpose(rows.as_ptr().cast(), size_of_val(&rows[0]))
                }
            }
        }
    }

    /// Splits a dword of every position into elements; the second vector is used only if there are
    /// two.
    #[inline(always)]
    fn split<S: Simd>(s: S, dwords: S::D) -> [S::F; 2] {
        if T::IS_F32 {
            [s.bits(dwords), s.zero()]
        } else {
            [s.low_bf16(dwords), s.high_bf16(dwords)]
        }
    }

    /// Returns the scores of `MR` queries and one vector of positions.
    ///
    /// # Safety
    /// Same contract as [`Keys::direct`].
    #[inline(always)]
    pub(super) unsafe fn few<S: Simd, const MR: usize>(
        &self,
        s: S,
        queries: Queries,
        prefetcher: &mut Prefetcher<'_>,
    ) -> [[S::F; 1]; MR] {
        #[cfg(target_arch = "x86_64")]
        if const { chains::<S, T>() == 4 } {
            let Keys { stride, width, head_dim, fresh_distance, .. } = *self;
            let keys = Keys { from: self.from.cast(), stride, width, head_dim, fresh_distance };
            // SAFETY: only AVX-512 has four chains, and only of bf16; the rest is the caller's
            // promise.
            unsafe {
                let sums = avx512::scores::<MR>(&keys, queries, prefetcher);
                return sums.map(|of_query| [s.load(of_query.as_ptr())]);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.direct(s, queries, prefetcher) }
    }

    /// Returns the scores of `MR` queries and one vector of positions in two chains, straight from
    /// K.
    ///
    /// # Safety
    /// The positions are readable; `queries` are `MR` packed heads.
    #[inline(always)]
    unsafe fn direct<S: Simd, const MR: usize>(
        &self,
        s: S,
        queries: Queries,
        prefetcher: &mut Prefetcher<'_>,
    ) -> [[S::F; 1]; MR] {
        let mut even = [s.zero(); MR];
        let mut odd = [s.zero(); MR];
        for at in (0..self.head_dim).step_by(slab::<S, T>()) {
            let q = queries.from.wrapping_add(at / 2);
            // SAFETY: the caller's promise covers all positions.
            let block = unsafe { self.columns(s, 0, at, prefetcher) };
            unroll_16!(S::LANES, P => {
                let k = Self::split(s, block.as_ref()[P]);
                for half in 0..4 / size_of::<T>() {
                    let element = P * (4 / size_of::<T>()) + half;
                    let sums = if element.is_multiple_of(2) { &mut even } else { &mut odd };
                    for i in 0..MR {
                        let at = i * queries.stride + element % 2 * queries.odd + element / 2;
                        // SAFETY: the caller's promise covers the padded elements.
                        let q = s.splat(unsafe { *q.add(at) });
                        sums[i] = s.fma(k[half], q, sums[i]);
                    }
                }
            });
        }
        std::array::from_fn(|i| [s.add(even[i], odd[i])])
    }

    /// Returns the score of one query and the first position, in every lane.
    ///
    /// # Safety
    /// The position is readable; `queries` is a packed head.
    #[inline(always)]
    pub(super) unsafe fn single<S: Simd>(&self, s: S, queries: Queries) -> S::F {
        let mut sums = [s.zero(); 4];
        for element in 0..2 * self.half_elements::<S>() {
            // SAFETY: the caller's promise; elements after the head are zeros.
            let (k, q) = unsafe {
                let there = element < self.head_dim;
                let k = if there { (*self.from.add(element)).to_f32() } else { 0.0 };
                (k, *queries.from.add(element % 2 * queries.odd + element / 2))
            };
            let chain = if chains::<S, T>() == 4 { element / 2 % 4 } else { element % 2 };
            sums[chain] = s.fma(s.splat(k), s.splat(q), sums[chain]);
        }
        let sum = s.add(sums[0], sums[1]);
        if chains::<S, T>() == 4 { s.add(s.add(sum, sums[2]), sums[3]) } else { sum }
    }

    /// Writes two vectors of positions of every element, `2 * LANES` floats each, to `to`: the even
    /// elements, and the odd ones from element `odd`.
    ///
    /// # Safety
    /// The positions are readable; `to` has space for `2 * odd` elements, of which head_dim rounded
    /// up to whole slabs are written.
    #[inline(always)]
    pub(super) unsafe fn transpose_block<S: Simd>(
        &self,
        s: S,
        to: *mut f32,
        odd: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        for at in (0..self.head_dim).step_by(slab::<S, T>()) {
            for j in 0..2 {
                if j * S::LANES >= self.width {
                    continue;
                }
                // SAFETY: the caller's promise covers all positions.
                let block = unsafe { self.columns(s, j * S::LANES, at, prefetcher) };
                unroll_16!(S::LANES, P => {
                    let k = Self::split(s, block.as_ref()[P]);
                    for half in 0..4 / size_of::<T>() {
                        let element = P * (4 / size_of::<T>()) + half;
                        let at = at / 2 + element % 2 * odd + element / 2;
                        // SAFETY: the caller's promise covers whole slabs.
                        unsafe { s.store(to.add((2 * at + j) * S::LANES), k[half]) };
                    }
                });
            }
        }
    }

    /// Returns the number of even elements, which equals that of odd ones, of a head padded to
    /// whole slabs.
    #[inline(always)]
    pub(super) fn half_elements<S: Simd>(&self) -> usize {
        self.head_dim.next_multiple_of(slab::<S, T>()) / 2
    }
}

/// Returns the scores of `MR` queries and the two vectors of a block of `T` that was transposed to
/// `keys`.
///
/// # Safety
/// `keys` was written by `transpose_block`, `count` was returned by `half_elements`; `queries` are
/// `MR` packed heads.
#[inline(always)]
pub(super) unsafe fn blocked<S: Simd, T: Number, const MR: usize>(
    s: S,
    queries: Queries,
    keys: *const f32,
    count: usize,
) -> [[S::F; 2]; MR] {
    let mut sums = [[s.zero(); 2]; MR];
    for number in 0..chains::<S, T>() {
        // SAFETY: the caller's promise.
        let chain = unsafe {
            if const { chains::<S, T>() == 4 } {
                chain::<S, MR>(s, queries, keys, number, 4, count, true)
            } else {
                let first = number * queries.odd;
                chain::<S, MR>(s, queries, keys, first, 1, first + count, false)
            }
        };
        if number == 0 {
            sums = chain;
        } else {
            for i in 0..MR {
                sums[i] = [s.add(sums[i][0], chain[i][0]), s.add(sums[i][1], chain[i][1])];
            }
        }
    }
    sums
}

/// Sums the products of elements `first`, `first + apart` and so on below `end`, each followed by
/// its odd neighbour if `both`.
///
/// # Safety
/// Same contract as [`blocked`].
#[inline(always)]
unsafe fn chain<S: Simd, const MR: usize>(
    s: S,
    queries: Queries,
    keys: *const f32,
    first: usize,
    apart: usize,
    end: usize,
    both: bool,
) -> [[S::F; 2]; MR] {
    let mut sums = [[s.zero(); 2]; MR];
    for at in (first..end).step_by(apart) {
        for half in 0..1 + usize::from(both) {
            let element = at + half * queries.odd;
            // SAFETY: the caller's promise.
            unsafe {
                let k = keys.add(2 * element * S::LANES);
                let k = [s.load(k), s.load(k.add(S::LANES))];
                for i in 0..MR {
                    let q = s.splat(*queries.from.add(i * queries.stride + element));
                    sums[i] = [s.fma(k[0], q, sums[i][0]), s.fma(k[1], q, sums[i][1])];
                }
            }
        }
    }
    sums
}
