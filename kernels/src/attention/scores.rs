//! The register tiles of scores: vector lanes are positions.
//!
//! K lies position by position, so the elements of `LANES` positions are transposed in registers
//! into vectors of positions. A few queries use them at once (`Direct`); many queries share a block
//! of positions that was transposed to scratch (`transpose_block`, `Blocked`).
//!
//! **The order of the sum.** A score is the sum of two chains of fused multiply-adds along head_dim,
//! padded with zeros to whole slabs: its even and its odd elements. Two, because one chain alone
//! would wait for itself. Tiles, blocks and neighbours do not enter.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are clearer, and surer to stay in registers, by index"
)]

use super::ahead::Ahead;
use crate::element::Element;
use crate::simd::{MAX_LANES, Simd};
use crate::unroll::unroll_16;

/// Positions of a transposed block, for the widest vectors.
pub(super) const BLOCK_POSITIONS: usize = 2 * MAX_LANES;

/// Elements of one position that one transposition takes: a dword of them in every vector.
#[inline(always)]
const fn slab<S: Simd, T>() -> usize {
    S::LANES * 4 / size_of::<T>()
}

/// Packed queries: f32, even elements first, padded with zeros.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    pub from: *const f32,
    /// Floats from one to the next.
    pub stride: usize,
    /// Floats from the even elements to the odd ones.
    pub odd: usize,
}

/// K of some positions, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Keys<T> {
    pub from: *const T,
    pub stride: usize,
    /// Positions, at least one.
    pub width: usize,
    pub head_dim: usize,
    /// Elements from a fresh position to the one to ask for meanwhile; cached ones leave it to
    /// [`Ahead`].
    pub fresh_ahead: Option<usize>,
}

impl<T: Element> Keys<T> {
    /// Dword `p` of the elements from `at` on of positions `first..first + LANES`, as vector `p`;
    /// zeros for positions and elements that are not there.
    ///
    /// # Safety
    /// The positions are readable.
    #[inline(always)]
    unsafe fn columns<S: Simd>(
        &self,
        s: S,
        first: usize,
        at: usize,
        ahead: &mut Ahead,
    ) -> S::Block {
        let offset = first * self.stride + at;
        let from = self.from.wrapping_add(offset).cast::<u8>();
        let stride_bytes = self.stride * size_of::<T>();
        let (width, count) = (self.width.saturating_sub(first), self.head_dim - at);
        match self.fresh_ahead {
            Some(distance) => {
                let there = self.from.wrapping_add(offset + distance);
                (0..S::LANES)
                    .for_each(|row| s.prefetch(there.wrapping_add(row * self.stride).cast()));
            }
            None => {
                let elements = width.min(S::LANES) * count.min(slab::<S, T>());
                ahead.read(s, elements * size_of::<T>());
            }
        }
        if width >= S::LANES && count >= slab::<S, T>() {
            // SAFETY: the caller's promise: all rows are there for a whole slab.
            return unsafe { s.transpose(from, stride_bytes) };
        }
        let mut rows = [[0u8; 4 * MAX_LANES]; MAX_LANES];
        let bytes = count.min(slab::<S, T>()) * size_of::<T>();
        for (row, to) in rows.iter_mut().enumerate().take(width.min(S::LANES)) {
            // SAFETY: the caller's promise; a slab is at most as long as a row of the buffer.
            unsafe {
                let from = from.add(row * stride_bytes);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
            }
        }
        // SAFETY: the buffer has room for the widest vectors.
        unsafe { s.transpose(rows.as_ptr().cast(), 4 * MAX_LANES) }
    }

    /// The elements of a dword of every position; the second vector only if there are two.
    #[inline(always)]
    fn split<S: Simd>(s: S, dwords: S::D) -> [S::F; 2] {
        if T::IS_F32 {
            [s.bits(dwords), s.zero()]
        } else {
            [s.low_bf16(dwords), s.high_bf16(dwords)]
        }
    }

    /// Scores of `MR` queries and one vector of positions, straight from K.
    ///
    /// # Safety
    /// The positions are readable; `queries` are `MR` packed heads.
    #[inline(always)]
    pub(super) unsafe fn direct<S: Simd, const MR: usize>(
        &self,
        s: S,
        queries: Queries,
        ahead: &mut Ahead,
    ) -> [[S::F; 1]; MR] {
        let mut even = [s.zero(); MR];
        let mut odd = [s.zero(); MR];
        for at in (0..self.head_dim).step_by(slab::<S, T>()) {
            let q = queries.from.wrapping_add(at / 2);
            // SAFETY: the caller's promise covers all positions.
            let block = unsafe { self.columns(s, 0, at, ahead) };
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

    /// Score of one query and the first position, in every lane.
    ///
    /// # Safety
    /// The position is readable; `queries` is a packed head.
    #[inline(always)]
    pub(super) unsafe fn single<S: Simd>(&self, s: S, queries: Queries) -> S::F {
        let mut sums = [s.zero(); 2];
        for element in 0..2 * self.half_elements::<S>() {
            // SAFETY: the caller's promise; elements behind the head are zeros.
            let (k, q) = unsafe {
                let there = element < self.head_dim;
                let k = if there { (*self.from.add(element)).to_f32() } else { 0.0 };
                (k, *queries.from.add(element % 2 * queries.odd + element / 2))
            };
            sums[element % 2] = s.fma(s.splat(k), s.splat(q), sums[element % 2]);
        }
        s.add(sums[0], sums[1])
    }

    /// Writes two vectors of positions of every element, `2 * LANES` floats each, to `to`: the even
    /// elements, and from `odd` elements on the odd ones.
    ///
    /// # Safety
    /// The positions are readable; `to` has room for `2 * odd` elements, of which head_dim rounded
    /// up to whole slabs are written.
    #[inline(always)]
    pub(super) unsafe fn transpose_block<S: Simd>(
        &self,
        s: S,
        to: *mut f32,
        odd: usize,
        ahead: &mut Ahead,
    ) {
        for at in (0..self.head_dim).step_by(slab::<S, T>()) {
            for j in 0..2 {
                if j * S::LANES >= self.width {
                    continue;
                }
                // SAFETY: the caller's promise covers all positions.
                let block = unsafe { self.columns(s, j * S::LANES, at, ahead) };
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

    /// Even, and odd, elements of a head padded to whole slabs.
    #[inline(always)]
    pub(super) fn half_elements<S: Simd>(&self) -> usize {
        self.head_dim.next_multiple_of(slab::<S, T>()) / 2
    }
}

/// Scores of `MR` queries and the two vectors of a block that was transposed to `keys`.
///
/// # Safety
/// `keys` is what `transpose_block` wrote, `count` what `half_elements` says; `queries` are `MR`
/// packed heads.
#[inline(always)]
pub(super) unsafe fn blocked<S: Simd, const MR: usize>(
    s: S,
    queries: Queries,
    keys: *const f32,
    count: usize,
) -> [[S::F; 2]; MR] {
    let mut out = [[s.zero(); 2]; MR];
    for odd in [0, queries.odd] {
        let mut sums = [[s.zero(); 2]; MR];
        for element in odd..odd + count {
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
        if odd == 0 {
            out = sums;
        } else {
            for i in 0..MR {
                out[i] = [s.add(out[i][0], sums[i][0]), s.add(out[i][1], sums[i][1])];
            }
        }
    }
    out
}
