//! What differs between the layers of a model: attention that looks back a window or all the way,
//! with rotary positions or without, or a recurrent state; and a dense feed-forward network or
//! experts.

use serde::{Deserialize, Serialize};

use crate::rope::Rope;

/// A kind of layer. Sizes are the model's and the same for all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerKind {
    pub mixing: Mixing,
    /// `None`: q and k are not rotated.
    pub rope: Option<Rope>,
    /// Positions that a row attends to, its own included; `None`: all before it.
    pub window: Option<usize>,
    pub feed_forward: FeedForward,
}

/// The first half of a layer, in which a row sees those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixing {
    Attention,
    /// A recurrent state (`ModelConfig::delta`).
    Delta,
}

/// The second half of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    Dense,
    /// A router and the model's experts (`ModelConfig::experts`).
    Experts,
    /// The same beside a dense network that every row passes, weighed by a gate.
    SharedExpert,
}

impl LayerKind {
    /// Attention to all positions and a dense network.
    pub const fn dense(rope: Option<Rope>) -> LayerKind {
        let mixing = Mixing::Attention;
        LayerKind { mixing, rope, window: None, feed_forward: FeedForward::Dense }
    }

    /// A recurrent state in place of attention.
    pub const fn delta(feed_forward: FeedForward) -> LayerKind {
        LayerKind { mixing: Mixing::Delta, rope: None, window: None, feed_forward }
    }

    /// Whether it keeps a state of fixed size instead of a cache of positions.
    pub fn has_state(&self) -> bool {
        self.mixing == Mixing::Delta
    }

    /// Positions that the cache keeps of a sequence of so many.
    pub fn kept_positions(&self, positions: usize) -> usize {
        self.window.map_or(positions, |window| window.min(positions))
    }
}

/// The kinds of a model's layers, and which layer is of which kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layers {
    /// Each occurs.
    kinds: Vec<LayerKind>,
    /// Index of a layer's kind; begins anew behind its end, so that one entry stands for all
    /// layers.
    of_layer: Vec<u8>,
}

impl Layers {
    /// All layers are of one kind.
    pub fn alike(kind: LayerKind) -> Layers {
        Layers { kinds: vec![kind], of_layer: vec![0] }
    }

    /// A kind for each layer, of at least one layer.
    ///
    /// # Panics
    /// No layer, or more than 256 different ones.
    pub fn each(layers: impl IntoIterator<Item = LayerKind>) -> Layers {
        let mut kinds: Vec<LayerKind> = Vec::new();
        let mut of_layer = Vec::new();
        for kind in layers {
            let known = kinds.iter().position(|known| *known == kind);
            let index = known.unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            of_layer.push(u8::try_from(index).expect("at most 256 kinds of layers"));
        }
        assert!(!of_layer.is_empty(), "a model has layers");
        if kinds.len() == 1 {
            of_layer.truncate(1);
        }
        Layers { kinds, of_layer }
    }

    /// Every kind that occurs.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// The place of a layer's kind in [`Layers::kinds`].
    pub fn kind_index(&self, layer: usize) -> usize {
        usize::from(self.of_layer[layer % self.of_layer.len()])
    }

    /// What a layer is.
    pub fn of(&self, layer: usize) -> &LayerKind {
        &self.kinds[self.kind_index(layer)]
    }

    /// Whether any layer keeps a state: what a sequence has computed is then nobody else's, and
    /// cannot be taken up again in its middle.
    pub fn have_states(&self) -> bool {
        self.kinds.iter().any(LayerKind::has_state)
    }

    /// The different windows shorter than `positions`, ascending: those of layers whose caches keep
    /// a part of a sequence.
    pub fn windows_below(&self, positions: u32) -> Vec<u32> {
        let windows = self.kinds.iter().filter_map(|kind| kind.window);
        let shorter = windows.filter_map(|window| u32::try_from(window).ok());
        let mut windows: Vec<u32> = shorter.filter(|window| *window < positions).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    /// Forgets the layers behind the first `layers` and the kinds that only they have.
    pub(crate) fn keep(&mut self, layers: usize) {
        if self.of_layer.len() > layers.max(1) {
            let kept = (0..layers.max(1)).map(|layer| self.of(layer).clone());
            *self = Layers::each(kept.collect::<Vec<_>>());
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
        let layers = Layers::each([windowed(4), windowed(8), windowed(4)]);
        assert_eq!(layers.kinds(), [windowed(4), windowed(8)]);
        assert_eq!([0, 1, 2].map(|layer| layers.kind_index(layer)), [0, 1, 0]);
        assert_eq!(Layers::each([windowed(4), windowed(4)]), Layers::alike(windowed(4)));
        assert_eq!(Layers::alike(windowed(4)).of(17), &windowed(4));
    }

    #[test]
    fn kinds_of_layers_that_are_not_kept_are_forgotten() {
        let mut layers = Layers::each([windowed(4), windowed(4), windowed(8)]);
        layers.keep(2);
        assert_eq!(layers, Layers::alike(windowed(4)));
    }
}
