//! Weights in additional host memories, slower than the near one: another NUMA node, or CXL (LIA
//! §6).

use model::config::ModelConfig;
use model::ops::Op;
use program::map::{Device, DeviceMap};
use program::topology::{FAR_MAX, MemoryId};

use super::{hosted_layers, spread_evenly};

/// Which of a layer's weights are in additional memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FarWeights {
    /// Those that the GPU multiplies in decode: the link is often slower than such a memory.
    Streamed,
    All,
}

/// Layers whose weights are in additional memories, out of those whose weights would be in the near
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Far {
    /// Number of layers in each of the memories.
    pub layers: [usize; FAR_MAX],
    pub weights: FarWeights,
}

impl Far {
    /// All weights are in the near memory.
    pub const NONE: Far = Far { layers: [0; FAR_MAX], weights: FarWeights::All };

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
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> Far {
        let mut scaled = [0; FAR_MAX];
        let (mut all, mut before) = (0, 0);
        for (count, scaled) in self.layers.iter().zip(&mut scaled) {
            all += count;
            let until = (all * to_layers + from_layers / 2) / from_layers.max(1);
            *scaled = until - before;
            before = until;
        }
        Far { layers: scaled, ..*self }
    }

    /// Returns the layers of `hosted` that are moved, spaced as far apart as possible, with the
    /// number of their memory.
    fn homes(&self, hosted: &[usize]) -> Vec<(usize, u8)> {
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
        for (layer, number) in self.homes(&hosted_layers(map)) {
            let is_far = far_ops(map, config, layer, self.weights);
            for (home, is_far) in map.weights[layer].iter_mut().zip(is_far) {
                if is_far && *home == MemoryId::DRAM {
                    *home = MemoryId::far(number);
                }
            }
        }
    }
}

/// Returns for each operation of a layer whether its weights are moved.
pub(crate) fn far_ops(
    map: &DeviceMap,
    config: &ModelConfig,
    layer: usize,
    weights: FarWeights,
) -> Vec<bool> {
    let decode = map.decode_layer(config, layer);
    let on_gpu =
        |op: Op| decode.iter().any(|(entry, device)| entry.op == op && *device == Device::Gpu);
    let is_far = |op: &Op| weights == FarWeights::All || on_gpu(*op);
    config.layer_ops(layer).iter().map(is_far).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Homes, Placement, Policy};
    use crate::split::Split;

    const HOMES: Homes = Homes { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };

    #[test]
    fn memories_are_filled_one_behind_the_other() {
        let far = Far { layers: [2, 1], weights: FarWeights::All };
        let hosted: Vec<usize> = (4..10).collect();
        assert_eq!(far.homes(&hosted), [(5, 0), (7, 0), (9, 1)]);
        assert_eq!(far.scaled(12, 4).layers, [1, 0]);
        assert_eq!(Far { layers: [6, 6], ..far }.scaled(12, 3).layers, [2, 1]);
        assert_eq!(Far { layers: [48, 0], ..far }.scaled(48, 2).layers, [2, 0]);
        assert!(Far::NONE.is_none() && !far.is_none());
    }

    #[test]
    fn what_the_gpu_multiplies_lives_there_or_everything() {
        let mut config = model::known::known("opt-125m").expect("known").config;
        config.num_layers = 4;
        let split = Policy::TwoSplit { split: Split { start: 8, end: 11 }, chunking: None };
        let far_of = |weights| {
            let far = Far { layers: [4, 0], weights };
            let placement = Placement { far, ..Placement::of(split) };
            let map = placement.map(&config, false, HOMES);
            assert_eq!(map.far_memories(), 1);
            let is_far = |home: &MemoryId| *home == MemoryId::far(0);
            map.weights[2].iter().filter(|home| is_far(home)).count()
        };
        assert_eq!(far_of(FarWeights::Streamed), 3);
        assert_eq!(far_of(FarWeights::All), config.layer_ops(0).len());
    }
}
