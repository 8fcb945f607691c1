//! Sizes of the caches of layers, with and without compressed entries (`crate::compression`).

use crate::compression::PositionCompression;
use crate::config::ModelConfig;
use crate::indexer::{Indexer, PositionSelection};
use crate::layers::LayerKind;
use crate::ops::Kv;

impl LayerKind {
    /// Returns the number of places of a sequence of `positions` positions in a cache.
    pub fn kept_places(&self, kv: Kv, positions: usize) -> usize {
        match self.compression.filter(|_| kv == Kv::V) {
            Some(compression) => positions / compression.rate,
            None => self.kept_positions(positions),
        }
    }

    /// Returns true if a cache keeps only the last of `positions` positions.
    pub fn is_ring(&self, kv: Kv, positions: usize) -> bool {
        let has_entries = self.compression.is_some() && kv == Kv::V;
        !has_entries && self.kept_positions(positions) < positions
    }
}

/// Pages of caches have a multiple of this number of positions.
const PAGE_MULTIPLE: usize = 16;

impl ModelConfig {
    /// Returns the number of positions of which a page of the model's caches has a multiple, so
    /// that the compressed groups of every layer fit whole.
    pub fn page_multiple(&self) -> usize {
        let rates = self.layers.kinds().iter().filter_map(|kind| kind.compression);
        rates.fold(PAGE_MULTIPLE, |multiple, compression| {
            (multiple / common_divisor(multiple, compression.rate)).saturating_mul(compression.rate)
        })
    }
}

/// Returns the greatest common divisor of two positive numbers.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Methods of the model of a layer's kind ([`ModelConfig::of_layer`]).
impl ModelConfig {
    /// Returns the compression of a layer; `None` if its caches have no entries.
    pub fn compression(&self) -> Option<PositionCompression> {
        self.layers.kinds()[0].compression
    }

    /// Returns the indexer that selects entries; `None` if a layer attends to all.
    pub fn entry_indexer(&self) -> Option<Indexer> {
        let selects = self.layers.kinds()[0].selection == PositionSelection::Own;
        self.features.indexer.filter(|_| selects && self.compression().is_some())
    }

    /// Returns the sizes of the vectors of an entry, in elements: that which heads attend to, and
    /// the indexer's key.
    pub fn entry_dims(&self) -> [usize; 2] {
        [self.head_dim, self.entry_indexer().map_or(0, |indexer| indexer.head_dim)]
    }

    /// Returns the number of elements of a place in a cache for one KV head.
    pub fn cache_dim(&self, kv: Kv) -> usize {
        let entry_dim: usize = self.entry_dims().iter().sum();
        match (self.compression(), kv) {
            (None, _) => self.head_dim,
            (Some(compression), Kv::K) => self.head_dim + 2 * compression.series() * entry_dim,
            (Some(_), Kv::V) => entry_dim,
        }
    }

    /// Returns the number of positions for which a cache has one place.
    pub fn cache_rate(&self, kv: Kv) -> usize {
        self.compression().filter(|_| kv == Kv::V).map_or(1, |compression| compression.rate)
    }

    /// Returns the number of vectors that a row at `position` attends to, those that an indexer of
    /// positions or a window leaves out included.
    pub fn attended(&self, position: usize) -> usize {
        let Some(compression) = self.compression() else { return position + 1 };
        let window = self.layers.kinds()[0].window.unwrap_or(usize::MAX);
        let entries = compression.entries(position);
        let selected = self.entry_indexer().map_or(entries, |indexer| entries.min(indexer.top_k));
        window.min(position + 1) + selected
    }

    /// Returns the maximum of [`ModelConfig::attended`] over sequences of at most `context`
    /// positions.
    pub fn max_attended(&self, context: usize) -> usize {
        context.checked_sub(1).map_or(0, |last| self.attended(last))
    }
}
