//! Hyper-connections: a residual of several streams, which the halves of a layer read and write
//! through mappings that depend on the streams themselves (Xie et al., "mHC: Manifold-Constrained
//! Hyper-Connections", 2025; transformers' `DeepseekV4HyperConnection`).
//!
//! A linear of the norm of all streams (`Op::StreamMap0`, `Op::StreamMap1`) yields a row's
//! mappings: *pre* `[count]`, the weights of the sum of streams that is the half's input
//! (`Op::Norm0`, `Op::Norm1`); *post* `[count]`, the factors by which the half's output is added to
//! each stream; and *comb* `[count, count]`, by which the streams are mixed when it is
//! (`Op::StreamAdd0`, `Op::StreamAdd1`). Comb is made doubly stochastic by Sinkhorn's iterations.
//! `Op::FinalNorm` has a pre mapping of its own.

use serde::{Deserialize, Serialize};

/// Maximum number of streams. Published models have 4.
pub const STREAMS_MAX: usize = 8;

/// The streams of a residual.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ResidualStreams {
    pub count: usize,
    /// Number of times that the columns of comb are divided by their sums; rows are so once less.
    pub iterations: usize,
    /// Number that is added to pre and to comb, and to the sums that comb is divided by.
    pub eps: f32,
}

impl ResidualStreams {
    /// Returns the number of elements of a row's mappings: pre, post and comb.
    pub const fn map_size(&self) -> usize {
        (2 + self.count) * self.count
    }
}
