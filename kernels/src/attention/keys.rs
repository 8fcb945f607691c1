//! K of some positions, and the queries that it is multiplied with.

use super::prefetch::Prefetcher;
use crate::number::Number;
use crate::simd::{MAX_LANES, Simd};

/// Elements of one position that one transposition takes: one dword per vector.
#[inline(always)]
pub(super) const fn slab<S: Simd, T>() -> usize {
    S::LANES * 4 / size_of::<T>()
}

/// Packed queries: f32, even elements first, padded with zeros.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    pub from: *const f32,
    /// Distance in floats from one query to the next.
    pub stride: usize,
    /// Distance in floats from the even elements to the odd ones.
    pub odd: usize,
}

/// One slab of as many positions as the widest vectors have lanes.
pub(super) type Rows = [[u8; 4 * MAX_LANES]; MAX_LANES];

/// K of some positions, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Keys<T> {
    pub from: *const T,
    pub stride: usize,
    /// Positions, at least one.
    pub width: usize,
    pub head_dim: usize,
    /// Distance in elements from a fresh position to the one to prefetch when it is read; cached
    /// positions are prefetched by [`Prefetcher`].
    pub fresh_distance: Option<usize>,
}

impl<T: Number> Keys<T> {
    /// Prefetches the memory that follows the elements from `at` of positions `first..first +
    /// LANES`.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(
        &self,
        s: S,
        first: usize,
        at: usize,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        match self.fresh_distance {
            Some(distance) => {
                let there = self.from.wrapping_add(first * self.stride + at + distance);
                (0..S::LANES)
                    .for_each(|row| s.prefetch(there.wrapping_add(row * self.stride).cast()));
            }
            None => {
                let positions = self.width.saturating_sub(first).min(S::LANES);
                let elements = positions * (self.head_dim - at).min(slab::<S, T>());
                prefetcher.read(s, elements * size_of::<T>());
            }
        }
    }

    /// Returns a slab of positions `first..first + LANES` starting at element `at`, and the
    /// distance in bytes from one position to the next, if the slab is complete.
    #[inline(always)]
    pub(super) fn whole<S: Simd>(&self, first: usize, at: usize) -> Option<(*const u8, usize)> {
        let there = self.width >= first + S::LANES && self.head_dim >= at + slab::<S, T>();
        let from = self.from.wrapping_add(first * self.stride + at);
        there.then_some((from.cast(), self.stride * size_of::<T>()))
    }

    /// Returns a copy of the incomplete slab of [`Keys::whole`], padded with zeros.
    ///
    /// # Safety
    /// The positions are readable.
    #[inline(always)]
    pub(super) unsafe fn padded<S: Simd>(&self, first: usize, at: usize) -> Rows {
        let mut rows = [[0u8; 4 * MAX_LANES]; MAX_LANES];
        let bytes = (self.head_dim - at).min(slab::<S, T>()) * size_of::<T>();
        let width = self.width.saturating_sub(first).min(S::LANES);
        for (row, to) in rows.iter_mut().enumerate().take(width) {
            let from = self.from.wrapping_add((first + row) * self.stride + at).cast::<u8>();
            // SAFETY: the caller's promise; a slab is at most as long as a row of the buffer.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        }
        rows
    }
}
