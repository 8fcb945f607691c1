//! Attention whose single KV head is key and value at once, with queries that are computed from a
//! latent, and an output that passes a linear of each group of heads (DeepSeek V4; transformers'
//! `DeepseekV4Attention`).
//!
//! One vector is cached per position. Since it is rotated as a key, attention's output is rotated
//! back by the position of its row (`Op::Unrotate`). Heads of q have a norm without a gain.

use serde::{Deserialize, Serialize};

/// Sizes of layers with such an attention, in elements. `ModelConfig::head_dim` is the size of a
/// cached vector, of which the rope rotates a part.
///
/// Checkpoints store the rotated elements of a head last, in the order of a rope that rotates
/// neighbours. Queries and cached vectors have them first, in the order of one that rotates halves,
/// and `Op::Unrotate` writes them in the order of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnifiedKv {
    /// Size of the latent that queries are computed from.
    pub q_rank: usize,
    /// Number of consecutive groups of heads, each of which has a linear of its own
    /// (`Op::OutDown`).
    pub out_groups: usize,
    /// Number of outputs of a group's linear.
    pub out_rank: usize,
}

impl UnifiedKv {
    /// Returns the width of the outputs of all groups.
    pub const fn out_size(&self) -> usize {
        self.out_groups * self.out_rank
    }
}
