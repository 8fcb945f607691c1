//! Positions of one unit that lie one behind the other.

/// How far ahead of the reading fresh K and V, which lie row by row, are prefetched.
const PREFETCH_DISTANCE_BYTES: usize = 8 << 10;

/// A run of positions that lie at one stride in memory: cached or fresh ones.
pub(super) struct Segment<T> {
    pub first: usize,
    pub end: usize,
    /// Position `first`.
    pub base: *const T,
    pub stride: usize,
    /// Cached positions, which [`Prefetcher`](super::prefetch::Prefetcher) prefetches.
    pub cached: bool,
}

impl<T> Clone for Segment<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Segment<T> {}

impl<T> Segment<T> {
    /// Positions from a fresh one that is read to the one to prefetch meanwhile.
    #[inline(always)]
    pub(super) fn distance(&self) -> usize {
        PREFETCH_DISTANCE_BYTES / (self.stride * size_of::<T>()) + 1
    }
}
