//! A part of an operation.

use serde::{Deserialize, Serialize};

/// Part `index` of `of` parts of an operation. For attention: a contiguous range of units, where a
/// unit is a (sequence, KV head) pair and ranges are balanced by KV bytes when a group starts. For
/// a linear: an equal range of its output rows ([`crate::pieces`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    pub index: u16,
    pub of: u16,
}

impl Chunk {
    /// All units of the operation.
    pub const WHOLE: Chunk = Chunk { index: 0, of: 1 };
}
