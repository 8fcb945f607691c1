//! Contiguous positions of one unit.

/// Distance in bytes at which fresh K and V, which are stored row by row, are prefetched ahead of
/// reading.
const PREFETCH_DISTANCE_BYTES: usize = 8 << 10;

/// A run of cached or fresh positions that are stored at one stride in memory.
pub(super) struct Segment<T> {
    pub first: usize,
    pub end: usize,
    /// Address of position `first`.
    pub base: *const T,
    pub stride: usize,
    /// True for cached positions, which [`Prefetcher`](super::prefetch::Prefetcher) prefetches.
    pub cached: bool,
}

impl<T> Clone for Segment<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Segment<T> {}

impl<T> Segment<T> {
    /// Returns the distance in positions from a fresh position to the one to prefetch when it is
    /// read.
    #[inline(always)]
    pub(super) fn distance(&self) -> usize {
        PREFETCH_DISTANCE_BYTES / (self.stride * size_of::<T>()) + 1
    }
}
