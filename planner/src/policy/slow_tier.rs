//! Weights in additional host memories, slower than the near one: another NUMA node, or CXL (LIA
//! §6).

use model::config::ModelConfig;
use model::ops::Op;
use program::map::{ComputeDevice, DeviceMap};
use program::topology::{MemoryId, SLOW_TIERS_MAX};

use super::{hosted_layers, spread_evenly};

/// Which of a layer's weights are in additional memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlowTierWeights {
    /// Those that the GPU multiplies in decode: the link is often slower than such a memory.
    Streamed,
    All,
}

/// Layers whose weights are in additional memories, out of those whose weights would be in the near
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlowTierLayers {
    /// Number of layers in each of the memories.
    pub layers: [usize; SLOW_TIERS_MAX],
    pub weights: SlowTierWeights,
}

impl SlowTierLayers {
    /// All weights are in the near memory.
    pub const NONE: SlowTierLayers =
        SlowTierLayers { layers: [0; SLOW_TIERS_MAX], weights: SlowTierWeights::All };

    /// Returns true if no weights are in additional memories.
    pub fn is_none(&self) -> bool {
        self.count() == 0
    }

    /// Returns the number of layers in all of the memories.
    pub fn count(&self) -> usize {
        self.layers.iter().sum()
    }

    /// Scales to a model with fewer layers, preserving the fractions.
    #[must_use]
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> SlowTierLayers {
        let mut scaled = [0; SLOW_TIERS_MAX];
        let (mut all, mut before) = (0, 0);
        for (count, scaled) in self.layers.iter().zip(&mut scaled) {
            all += count;
            let until = (all * to_layers + from_layers / 2) / from_layers.max(1);
            *scaled = until - before;
            before = until;
        }
        SlowTierLayers { layers: scaled, ..*self }
    }

    /// Returns the layers of `hosted` that are moved, spaced as far apart as possible, with the
    /// number of their memory.
    fn assign_layers(&self, hosted: &[usize]) -> Vec<(usize, u8)> {
        let places = spread_evenly(self.count(), hosted.len());
        let numbers = (0u8..).zip(self.layers);
        let numbers = numbers.flat_map(|(number, count)| std::iter::repeat_n(number, count));
        places.into_iter().map(|place| hosted[place]).zip(numbers).collect()
    }

    /// Moves the weights of a map to additional host memories; only weights on the host are moved.
    ///
    /// # Panics
    /// For a map of another model.
    pub(super) fn apply(&self, map: &mut DeviceMap, config: &ModelConfig) {
        for (layer, number) in self.assign_layers(&hosted_layers(map)) {
            let is_moved = slow_tier_ops(map, config, layer, self.weights);
            for (tier, is_moved) in map.weights[layer].iter_mut().zip(is_moved) {
                if is_moved && *tier == MemoryId::DRAM {
                    *tier = MemoryId::slow_tier(number);
                }
            }
        }
    }
}

/// Returns for each operation of a layer whether its weights are moved.
pub(crate) fn slow_tier_ops(
    map: &DeviceMap,
    config: &ModelConfig,
    layer: usize,
    weights: SlowTierWeights,
) -> Vec<bool> {
    let decode = map.decode_layer(config, layer);
    let on_gpu = |op: Op| {
        decode.iter().any(|(entry, device)| entry.op == op && *device == ComputeDevice::Gpu)
    };
    let is_moved = |op: &Op| weights == SlowTierWeights::All || on_gpu(*op);
    config.layer_ops(layer).iter().map(is_moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{DefaultTiers, Placement, Policy};
    use crate::split::Split;

    const HOMES: DefaultTiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };

    #[test]
    fn memories_are_filled_one_behind_the_other() {
        let far = SlowTierLayers { layers: [2, 1], weights: SlowTierWeights::All };
        let hosted: Vec<usize> = (4..10).collect();
        assert_eq!(far.assign_layers(&hosted), [(5, 0), (7, 0), (9, 1)]);
        assert_eq!(far.scaled(12, 4).layers, [1, 0]);
        assert_eq!(SlowTierLayers { layers: [6, 6], ..far }.scaled(12, 3).layers, [2, 1]);
        assert_eq!(SlowTierLayers { layers: [48, 0], ..far }.scaled(48, 2).layers, [2, 0]);
        assert!(SlowTierLayers::NONE.is_none() && !far.is_none());
    }

    #[test]
    fn what_the_gpu_multiplies_lives_there_or_everything() {
        let mut config = model::known::find_known("opt-125m").expect("known").config;
        config.num_layers = 4;
        let split = Policy::TwoSplit { split: Split { start: 8, end: 11 }, chunking: None };
        let far_of = |weights| {
            let slow_tier = SlowTierLayers { layers: [4, 0], weights };
            let placement = Placement { slow_tier, ..Placement::from_policy(split) };
            let map = placement.map(&config, false, HOMES);
            assert_eq!(map.slow_tier_count(), 1);
            let is_moved = |home: &MemoryId| *home == MemoryId::slow_tier(0);
            map.weights[2].iter().filter(|home| is_moved(home)).count()
        };
        assert_eq!(far_of(SlowTierWeights::Streamed), 3);
        assert_eq!(far_of(SlowTierWeights::All), config.layer_ops(0).len());
    }
}
