//! Multi-head latent attention: all heads share one key per position, whose latent part is also the
//! value (DeepSeek-AI, "DeepSeek-V2", 2024; transformers' `DeepseekV3Attention`).
//!
//! A row's latent `c` `[kv_rank]` and its rotated key `[rope_dim]` are all that is cached, as one
//! KV head `[rope_dim | kv_rank]`. Keys and values of the heads are products of `c` with two
//! matrices of each head. They are never computed: the first matrix multiplies the query instead
//! (`Op::QAbsorb`), and the second one the weighted sum of latents (`Op::VUp`). Rows of prompts and
//! new tokens are computed alike, so their bits do not depend on how a prompt is divided.

use serde::{Deserialize, Serialize};

/// Epsilon of the norms of latents. The reference constructs them without the model's own.
pub const LATENT_NORM_EPS: f32 = 1e-6;

/// Sizes of layers with latent attention, in elements.
///
/// In such a model, `ModelConfig::head_dim` is the size of a cached key, and there is one KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Size of the latent that queries are computed from; `None` if they are computed from the
    /// layer's input.
    pub q_rank: Option<usize>,
    /// Size of the latent of keys and values.
    pub kv_rank: usize,
    /// Elements of a head of q that are not rotated.
    pub nope_dim: usize,
    /// Elements of a head of q that are rotated, and of the rotated key that heads share.
    pub rope_dim: usize,
    /// Size of a head's value.
    pub value_dim: usize,
    /// Checkpoints store rotated rows in the order of a rope that rotates neighbours.
    pub rotates_neighbours: bool,
}

impl LatentAttention {
    /// Returns the size of a cached position: the rotated key, followed by the latent.
    pub const fn key_dim(&self) -> usize {
        self.rope_dim + self.kv_rank
    }

    /// Returns the size of a head of q before it is multiplied into latents.
    pub const fn query_dim(&self) -> usize {
        self.rope_dim + self.nope_dim
    }
}
