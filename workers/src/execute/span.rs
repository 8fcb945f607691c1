//! A range that a copy moves.

/// A contiguous range, and where it is in the one buffer and in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from_bytes: usize,
    pub to_bytes: usize,
    pub size_bytes: usize,
}

impl Span {
    /// At the same place in both.
    pub const fn at(offset_bytes: usize, size_bytes: usize) -> Span {
        Span { from_bytes: offset_bytes, to_bytes: offset_bytes, size_bytes }
    }
}
