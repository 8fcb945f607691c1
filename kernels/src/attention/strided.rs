//! Rows at a constant distance, and the addresses of K or V of a call.

/// Rows at a constant distance in memory.
#[derive(Clone, Copy)]
pub(super) struct Strided<P> {
    /// Address of the first row.
    pub base: P,
    /// Distance in elements from one row to the next.
    pub stride: usize,
}

/// Addresses of K or V of a call: fresh rows `[rows, kv_heads * head_dim]` and the cache.
#[derive(Debug)]
pub(super) struct KvPointers<T> {
    pub fresh: *const T,
    pub cache: *const T,
}

impl<T> Clone for KvPointers<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for KvPointers<T> {}

impl KvPointers<u8> {
    /// Returns the addresses of records that begin with signed bytes.
    pub(super) const fn as_signed(self) -> KvPointers<i8> {
        KvPointers { fresh: self.fresh.cast(), cache: self.cache.cast() }
    }
}
