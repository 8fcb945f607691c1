//! Ranges that a copy moves.

/// A contiguous range, with its offsets in the source and the target buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySpan {
    pub from_bytes: usize,
    pub to_bytes: usize,
    pub size_bytes: usize,
}

impl CopySpan {
    /// Returns a range at the same offset in both buffers.
    pub const fn at(offset_bytes: usize, size_bytes: usize) -> CopySpan {
        CopySpan { from_bytes: offset_bytes, to_bytes: offset_bytes, size_bytes }
    }
}
