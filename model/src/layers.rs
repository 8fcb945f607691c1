//! Differences between the layers of a model: attention to a window or to all positions, with or
//! without rotary positions, or a recurrent state; a dense feed-forward network or experts; sizes.

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::compression::PositionCompression;
use crate::indexer::PositionSelection;
use crate::rope::Rope;

/// A kind of layer. Sizes belong to the model and are equal for all layers, except those in
/// `sizes`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerKind {
    pub mixing: TokenMixer,
    /// Rotary embedding; `None` if q and k are not rotated.
    pub rope: Option<Rope>,
    /// Number of positions that a row attends to, including its own; `None` for all previous ones.
    pub window: Option<usize>,
    pub feed_forward: FeedForward,
    /// Sizes in place of the model's; `None` if the model's apply.
    pub sizes: Option<LayerSizes>,
    /// Keys and values that the layer attends to.
    pub caches: CacheSharing,
    /// Positions that the layer attends to.
    #[serde(default)]
    pub selection: PositionSelection,
    #[serde(default)]
    pub limits: ActivationLimits,
    /// Maximum number of drafted tokens of a step. Caches keep as many positions in addition to the
    /// window, and slots with states as many rows, so that nothing is lost if they are refused. A
    /// property of the run, not of the model.
    #[serde(default)]
    pub draft_positions: usize,
    #[serde(default)]
    pub routing: ExpertRouting,
    /// Entries to which the layer attends in addition to a window; `None` if there are none.
    #[serde(default)]
    pub compression: Option<PositionCompression>,
}

/// Selection of the experts of a layer's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertRouting {
    /// By the rules of the model's experts.
    #[default]
    ByScores,
    /// A table has the experts of each token. Their weights are those of their scores.
    ByToken,
}

/// Limits of the networks' gates, after their SiLU or before it as the activation says, and of the
/// absolute values of the linears that these multiply; `None` for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ActivationLimits {
    pub experts: Option<f32>,
    /// Limit in the networks that compute every row: a shared expert, or a layer's only network.
    pub network: Option<f32>,
}

/// Sizes of a layer in a model whose layers differ in them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerSizes {
    /// Number of heads of q; `None` for the model's.
    #[serde(default)]
    pub num_heads: Option<usize>,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub ffn_size: usize,
}

/// Keys and values that a layer attends to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheSharing {
    /// Its own, which no other layer reads.
    #[default]
    Own,
    /// Its own, which later layers read too. Its caches keep all positions, also if it has a
    /// window: rows of later chunks are appended before the last layer has read those of earlier
    /// ones.
    Source,
    /// Those of the last earlier [`CacheSharing::Source`] with the same window. The layer computes
    /// no keys and values.
    Reader,
}

/// Prints `num_heads` only if the layer has its own number; see [`LayerKind`].
impl Debug for LayerSizes {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let LayerSizes { num_heads, num_kv_heads, head_dim, ffn_size } = self;
        let mut fields = f.debug_struct("LayerSizes");
        if let Some(num_heads) = num_heads {
            fields.field("num_heads", num_heads);
        }
        fields.field("num_kv_heads", num_kv_heads).field("head_dim", head_dim);
        fields.field("ffn_size", ffn_size).finish()
    }
}

/// Prints the fields from `sizes` on only if they differ from the default, and `draft_positions`
/// never, since keys of stored data are derived from this text: a field that a model does not use
/// must not change them.
impl Debug for LayerKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let LayerKind { mixing, rope, window, feed_forward, sizes, .. } = self;
        let LayerKind { caches, selection, limits, routing, compression, .. } = self;
        let mut fields = f.debug_struct("LayerKind");
        fields.field("mixing", mixing).field("rope", rope).field("window", window);
        fields.field("feed_forward", feed_forward);
        if let Some(sizes) = sizes {
            fields.field("sizes", sizes);
        }
        if *caches != CacheSharing::Own {
            fields.field("caches", caches);
        }
        if *selection != PositionSelection::All {
            fields.field("selection", selection);
        }
        if *limits != ActivationLimits::default() {
            fields.field("limits", limits);
        }
        if *routing != ExpertRouting::ByScores {
            fields.field("routing", routing);
        }
        if let Some(compression) = compression {
            fields.field("compression", compression);
        }
        fields.finish()
    }
}

/// First half of a layer, in which a row depends on previous rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenMixer {
    Attention,
    /// A recurrent state (`ModelConfig::delta`).
    Delta,
    /// A gated convolution of the hidden size that covers `taps` rows, including the current one.
    ShortConv {
        taps: usize,
    },
    /// Mamba2 (`ModelConfig::mamba`).
    Mamba,
}

/// Second half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// The layer is its first half alone.
    None,
    Dense,
    /// A router and the model's experts (`ModelConfig::experts`).
    Experts,
    /// A router and experts, in addition to a dense network that computes every row and whose
    /// output is weighted by a gate.
    SharedExpert,
    /// A router and experts, in addition to a dense network that computes every row.
    UngatedSharedExpert,
    /// A dense network, a router and experts, each with norms of its own before and after it, whose
    /// results are added (Gemma 4).
    ParallelExperts,
}

impl LayerKind {
    /// Returns a layer with attention to all positions and a dense network.
    pub const fn dense(rope: Option<Rope>) -> LayerKind {
        LayerKind::mixed_by(TokenMixer::Attention, FeedForward::Dense, rope)
    }

    const fn mixed_by(
        mixing: TokenMixer,
        feed_forward: FeedForward,
        rope: Option<Rope>,
    ) -> LayerKind {
        LayerKind {
            mixing,
            rope,
            window: None,
            feed_forward,
            sizes: None,
            caches: CacheSharing::Own,
            selection: PositionSelection::All,
            limits: ActivationLimits { experts: None, network: None },
            draft_positions: 0,
            routing: ExpertRouting::ByScores,
            compression: None,
        }
    }

    /// Returns a layer with a recurrent state instead of attention.
    pub const fn delta(feed_forward: FeedForward) -> LayerKind {
        LayerKind::mixed_by(TokenMixer::Delta, feed_forward, None)
    }

    /// Returns a layer with a short convolution instead of attention, and a dense network.
    pub const fn short_conv(taps: usize) -> LayerKind {
        LayerKind::mixed_by(TokenMixer::ShortConv { taps }, FeedForward::Dense, None)
    }

    /// Returns a layer with Mamba2 instead of attention.
    pub const fn mamba(feed_forward: FeedForward) -> LayerKind {
        LayerKind::mixed_by(TokenMixer::Mamba, feed_forward, None)
    }

    /// Returns true if the layer keeps a state of fixed size instead of a cache of positions.
    pub fn has_state(&self) -> bool {
        self.mixing != TokenMixer::Attention
    }

    /// Returns the number of positions that the caches keep at most, the window and
    /// `draft_positions`; `None` if they keep all.
    pub fn cached_window(&self) -> Option<usize> {
        let window = self.window.filter(|_| self.caches == CacheSharing::Own)?;
        Some(window.saturating_add(self.draft_positions))
    }

    /// Returns the number of positions that the cache keeps of a sequence of `positions` positions.
    pub fn kept_positions(&self, positions: usize) -> usize {
        self.cached_window().map_or(positions, |window| window.min(positions))
    }
}

/// The kinds of a model's layers, and the kind of each layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layers {
    /// Kinds, each of which occurs in a layer.
    kinds: Vec<LayerKind>,
    /// Index of each layer's kind. Indices beyond the end wrap around, so that one entry suffices
    /// if all layers are of one kind.
    of_layer: Vec<u8>,
}

impl Layers {
    /// Creates layers of a single kind.
    pub fn uniform(kind: LayerKind) -> Layers {
        Layers { kinds: vec![kind], of_layer: vec![0] }
    }

    /// Creates layers from the kind of each layer.
    ///
    /// # Panics
    /// No layer, or more than 256 different kinds.
    pub fn from_kinds(layers: impl IntoIterator<Item = LayerKind>) -> Layers {
        Layers::try_from_kinds(layers).expect("at most 256 kinds of layers")
    }

    /// Creates layers like [`Layers::from_kinds`]; `None` if there are more than 256 different
    /// kinds.
    ///
    /// # Panics
    /// No layer.
    pub fn try_from_kinds(layers: impl IntoIterator<Item = LayerKind>) -> Option<Layers> {
        let mut kinds: Vec<LayerKind> = Vec::new();
        let mut of_layer = Vec::new();
        for kind in layers {
            let known = kinds.iter().position(|known| *known == kind);
            let index = known.unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            of_layer.push(u8::try_from(index).ok()?);
        }
        assert!(!of_layer.is_empty(), "a model has layers");
        if kinds.len() == 1 {
            of_layer.truncate(1);
        }
        Some(Layers { kinds, of_layer })
    }

    /// Returns true if gates or linears of any layer have a limit.
    pub fn has_limits(&self) -> bool {
        self.kinds.iter().any(|kind| kind.limits != ActivationLimits::default())
    }

    /// Returns every kind that occurs.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// Returns the index of a layer's kind in [`Layers::kinds`].
    pub fn kind_index(&self, layer: usize) -> usize {
        usize::from(self.of_layer[layer % self.of_layer.len()])
    }

    /// Returns the kind of a layer.
    pub fn kind(&self, layer: usize) -> &LayerKind {
        &self.kinds[self.kind_index(layer)]
    }

    /// Returns true if any layer keeps a state. In this case the results of a sequence cannot be
    /// shared with others, and a sequence cannot be resumed from its middle.
    pub fn has_states(&self) -> bool {
        self.kinds.iter().any(LayerKind::has_state)
    }

    /// Sets the number of drafted tokens that a step may refuse without a loss.
    pub fn set_draft_positions(&mut self, positions: usize) {
        self.kinds.iter_mut().for_each(|kind| kind.draft_positions = positions);
    }

    /// Returns the distinct numbers of positions, less than `positions`, that caches keep, in
    /// ascending order: those of layers whose caches keep only a part of a sequence.
    pub fn windows_below(&self, positions: u32) -> Vec<u32> {
        let windows = self.kinds.iter().filter_map(LayerKind::cached_window);
        let shorter = windows.filter_map(|window| u32::try_from(window).ok());
        let mut windows: Vec<u32> = shorter.filter(|window| *window < positions).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    /// Removes all but the first `layers` layers, and the kinds that only the removed ones have.
    pub(crate) fn truncate(&mut self, layers: usize) {
        if self.of_layer.len() > layers.max(1) {
            let kept = (0..layers.max(1)).map(|layer| self.kind(layer).clone());
            *self = Layers::from_kinds(kept.collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windowed(window: usize) -> LayerKind {
        LayerKind { window: Some(window), ..LayerKind::dense(None) }
    }

    #[test]
    fn layers_of_the_same_kind_share_it() {
        let layers = Layers::from_kinds([windowed(4), windowed(8), windowed(4)]);
        assert_eq!(layers.kinds(), [windowed(4), windowed(8)]);
        assert_eq!([0, 1, 2].map(|layer| layers.kind_index(layer)), [0, 1, 0]);
        assert_eq!(Layers::from_kinds([windowed(4), windowed(4)]), Layers::uniform(windowed(4)));
        assert_eq!(Layers::uniform(windowed(4)).kind(17), &windowed(4));
    }

    #[test]
    fn kinds_of_layers_that_are_not_kept_are_forgotten() {
        let mut layers = Layers::from_kinds([windowed(4), windowed(4), windowed(8)]);
        layers.truncate(2);
        assert_eq!(layers, Layers::uniform(windowed(4)));
    }
}
