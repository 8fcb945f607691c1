//! Attention to selected positions: an *indexer* scores every position for a row, and latent
//! attention covers those with the highest scores (DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025;
//! transformers' `DeepseekV32Indexer` and `GlmMoeDsaIndexer`).
//!
//! A score is the sum over the indexer's heads of a weight of the head and row (`Op::IndexWeights`)
//! times the positive part of the product of the head's query (`Op::IndexQuery`) and a key of the
//! position. That key follows the position's latent in its cached vector, so a layer with an
//! indexer has a larger cache instead of another one (`Op::K`). `Op::Select` selects: a row selects
//! all positions up to its own if there are no more than `top_k`, and of equal scores the lowest
//! positions first.
//!
//! The reference multiplies scores by factors that are the same for all positions, `1 /
//! sqrt(head_dim)` and `1 / sqrt(heads)`. They are left out, since only the order of scores
//! matters.

use serde::{Deserialize, Serialize};

use crate::latent::LatentAttention;

/// Epsilon of the norm of the indexer's keys, which the reference does not take from the
/// configuration.
pub const INDEX_NORM_EPS: f32 = 1e-6;

/// Sizes of an indexer, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Indexer {
    pub heads: usize,
    /// Size of a query of a head, and of the key that heads share. The first `rope_dim` elements of
    /// the model's latent attention are rotated.
    pub head_dim: usize,
    /// Maximum number of positions that a row attends to.
    pub top_k: usize,
    /// Checkpoints store rotated rows in the order of a rope that rotates neighbours.
    pub rotates_neighbours: bool,
}

impl Indexer {
    /// Returns the size of all heads' queries.
    pub const fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the size of a cached position: what latent attention caches, followed by the
    /// indexer's key.
    pub const fn place_dim(&self, latent: &LatentAttention) -> usize {
        latent.key_dim() + self.head_dim
    }

    /// Returns the number of elements of the vector that follows the matrix of keys: the gain of
    /// the latent's norm, and the gain and bias of the norm of the indexer's keys.
    pub const fn key_norm_size(&self, latent: &LatentAttention) -> usize {
        latent.kv_rank + 2 * self.head_dim
    }
}

/// Positions that a layer attends to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionSelection {
    /// All up to the row's own.
    #[default]
    All,
    /// Those that the layer's indexer selects.
    Own,
    /// Those that the last earlier layer with an indexer has selected.
    Shared,
}
