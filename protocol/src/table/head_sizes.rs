//! Sizes of heads and of their caches.

use model::config::ModelConfig;
use model::ops::Kv;

/// Sizes of the heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadSizes {
    /// Number of heads of k and v.
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Number of query heads that share a KV head.
    pub(super) group: usize,
    /// Elements of a place for one KV head, in the caches of K and of V.
    pub(super) place_dims: [usize; 2],
    /// Number of positions for which the cache of V has one place.
    pub(super) rate: usize,
    /// Maximum number of positions and entries that a row attends to.
    pub(super) attended: usize,
}

impl HeadSizes {
    /// Returns the sizes of a model, or of a layer's, for sequences of `context` positions.
    pub(super) fn new(config: &ModelConfig, context: usize) -> HeadSizes {
        HeadSizes {
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            group: config.group_size(),
            place_dims: [Kv::K, Kv::V].map(|kv| config.cache_dim(kv)),
            rate: config.cache_rate(Kv::V),
            attended: config.max_attended(context),
        }
    }
}
