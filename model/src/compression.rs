//! Compressed entries of a layer's cache: attention covers a window of positions and, of all
//! earlier positions, one vector for each group of them (DeepSeek V4; transformers'
//! `DeepseekV4HCACompressor` and `DeepseekV4CSACompressor`).
//!
//! Linears compute, for each position and channel, values and gates. `Op::Compress` sums the values
//! of a group, weighted by the softmax of their gates plus a bias for each place in the group, and
//! norms and rotates the sum, by the group's first position. Values and gates of a position follow
//! its vector in the cache of the window (`Kv::K`), which therefore holds unfinished groups too.
//! Entries are in a second cache (`Kv::V`), of one place for each `rate` positions. A row attends
//! to the entries of the groups that end at or before its position.
//!
//! Where groups overlap, a position has two series of values and gates. An entry then sums the
//! second series of its own group and the first series of the group before. Such layers have an
//! indexer, whose keys are compressed alike and follow the vector in an entry. It selects the
//! entries that a row attends to (`Op::Select`), like `crate::indexer` positions.

use serde::{Deserialize, Serialize};

/// Compression of the positions of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PositionCompression {
    /// Number of positions of a group, at least 2.
    pub rate: usize,
    /// Entries include the group before their own.
    pub overlaps: bool,
}

impl PositionCompression {
    /// Returns the number of series of values, and of gates, of a position.
    pub const fn series(&self) -> usize {
        if self.overlaps { 2 } else { 1 }
    }

    /// Returns the number of positions that an entry summarises, at most.
    pub const fn positions(&self) -> usize {
        self.rate * self.series()
    }

    /// Returns the number of entries that a row at `position` may attend to.
    pub const fn entries(&self, position: usize) -> usize {
        (position + 1) / self.rate
    }
}
