//! A part of an operation.

use serde::{Deserialize, Serialize};

/// Part `index` of `of` of an operation. Of attention: a contiguous range of units, where a unit is
/// a (sequence, KV head) and ranges are balanced by KV bytes when a group starts. Of a linear: an
/// equal range of its output rows ([`crate::pieces`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    pub index: u16,
    pub of: u16,
}

impl Chunk {
    /// All units.
    pub const WHOLE: Chunk = Chunk { index: 0, of: 1 };
}
