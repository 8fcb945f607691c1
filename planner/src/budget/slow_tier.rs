//! Minimum of weights in additional host memories if the near one is too small.

use model::config::{Dtype, ModelConfig};
use model::ops::{Op, align_up};
use program::map::{ComputeDevice, DeviceMap, OpChunk, leading_list};
use program::topology::{MemoryId, SLOW_TIERS_MAX};
use program::weights::Weights;

use crate::policy::{
    Formats, Placement, SlowTierLayers, SlowTierWeights, decode_device, hosted_layers,
    slow_tier_ops, spread_evenly,
};

/// Weights that can be moved there, from each layer with weights on the host.
#[derive(Debug)]
pub(super) struct MovableWeights {
    /// Bytes of each layer.
    layers: Vec<u64>,
    weights: SlowTierWeights,
}

impl MovableWeights {
    pub(super) fn from_map(
        config: &ModelConfig,
        dtype: Dtype,
        map: &DeviceMap,
        weights: SlowTierWeights,
    ) -> MovableWeights {
        let of_layer = |layer: usize| {
            let ops = config.layer_ops(layer).iter().zip(&map.weights[layer]);
            let moved =
                ops.zip(slow_tier_ops(map, config, layer, weights)).filter(|((op, tier), far)| {
                    *far && **tier == MemoryId::DRAM && op.weights(config).is_some()
                });
            let bytes = moved.map(|((op, _), _)| {
                let blob = Weights::Layer { layer: layer as u16, op: *op };
                let format = map.weight_formats.of(config, blob);
                align_up(blob.size_bytes(config, dtype, format)) as u64
            });
            bytes.sum()
        };
        MovableWeights { layers: hosted_layers(map).into_iter().map(of_layer).collect(), weights }
    }

    /// Returns the smallest number of layers that frees the given number of bytes; if even all
    /// layers that fit do not suffice, returns those, if there are any.
    pub(super) fn min_layers(
        &self,
        bytes: u64,
        capacity_bytes: [u64; SLOW_TIERS_MAX],
    ) -> (SlowTierLayers, bool) {
        let mut best = SlowTierLayers::NONE;
        for count in 1..=self.layers.len() {
            let Some((slow_tier, moved_bytes)) = self.fill(count, capacity_bytes) else { break };
            if moved_bytes >= bytes {
                return (slow_tier, true);
            }
            best = slow_tier;
        }
        (best, false)
    }

    /// Returns all layers, or as many as fit in the memories, and the number of bytes moved.
    pub(super) fn max_layers(
        &self,
        capacity_bytes: [u64; SLOW_TIERS_MAX],
    ) -> (SlowTierLayers, u64) {
        let slow_tier = self.min_layers(u64::MAX, capacity_bytes).0;
        (slow_tier, self.fill(slow_tier.count(), capacity_bytes).map_or(0, |(_, bytes)| bytes))
    }

    /// Returns `count` layers, filling one memory after the other, and the number of bytes moved;
    /// `None` if they do not fit.
    fn fill(
        &self,
        count: usize,
        capacity_bytes: [u64; SLOW_TIERS_MAX],
    ) -> Option<(SlowTierLayers, u64)> {
        let mut slow_tier = SlowTierLayers { layers: [0; SLOW_TIERS_MAX], weights: self.weights };
        let (mut number, mut left, mut moved) = (0, capacity_bytes[0], 0);
        for place in spread_evenly(count, self.layers.len()) {
            let bytes = self.layers[place];
            while bytes > left {
                number += 1;
                left = *capacity_bytes.get(number)?;
            }
            left -= bytes;
            moved += bytes;
            slow_tier.layers[number] += 1;
        }
        Some((slow_tier, moved))
    }
}

/// Fractions of a placement's host weights that are in additional memories.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SlowTierShares {
    /// Fraction of the weights that the GPU multiplies in decode, and of the others.
    pub(crate) gpu: f64,
    pub(crate) cpu: f64,
}

impl SlowTierShares {
    /// Estimates the weights in additional memories for a placement that exceeds the near memory by
    /// the given number of bytes.
    pub(crate) fn estimate(
        config: &ModelConfig,
        dtype: Dtype,
        formats: &Formats,
        placement: &Placement,
        bytes: u64,
    ) -> SlowTierShares {
        let Placement { policy, residency, slow_tier, .. } = placement;
        let layers = config.num_layers.saturating_sub(residency.layers.len());
        if !slow_tier.is_none() {
            let share = slow_tier.count() as f64 / layers.max(1) as f64;
            let cpu = if slow_tier.weights == SlowTierWeights::All { share } else { 0.0 };
            return SlowTierShares { gpu: share, cpu };
        }
        let list = leading_list(config, policy.chunking()).into_iter().enumerate();
        let on_gpu = list.filter(|(index, entry)| {
            decode_device(policy, *index, *entry) == ComputeDevice::Gpu && !entry.op.is_attention()
        });
        let (ops, formats) =
            (config.leading_ops(), formats.weights.layers.get(config.leading_layer()));
        let model = config.of_layer(config.leading_layer());
        let of_op = |op: Op| {
            let place = ops.iter().position(|other| *other == op);
            let format = place.zip(formats).and_then(|(place, formats)| formats.get(place));
            format.map_or(0, |format| op.weight_bytes_in(model, dtype, *format))
        };
        let all = |layer: usize| (layers * layer).max(1) as f64;
        let of_entry =
            |entry: OpChunk| of_op(entry.op) / entry.chunk.map_or(1, |chunk| usize::from(chunk.of));
        let gpu = all(on_gpu.map(|(_, entry)| of_entry(entry)).sum());
        let bytes = bytes as f64;
        if bytes <= gpu {
            return SlowTierShares { gpu: bytes / gpu, cpu: 0.0 };
        }
        let share = (bytes / all(ops.iter().map(|op| of_op(*op)).sum())).min(1.0);
        SlowTierShares { gpu: share, cpu: share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_layers_as_make_room_one_memory_behind_the_other() {
        let movable = MovableWeights { layers: vec![10; 6], weights: SlowTierWeights::All };
        let least = |bytes, room| {
            let (far, is_enough) = movable.min_layers(bytes, room);
            (far.layers, is_enough)
        };
        assert_eq!(least(11, [100, 0]), ([2, 0], true));
        assert_eq!(least(30, [25, 10]), ([2, 1], true));
        assert_eq!(least(31, [25, 10]), ([2, 1], false));
        assert_eq!(least(61, [100, 100]), ([6, 0], false));
        assert_eq!(least(1, [5, 0]), ([0, 0], false));
        assert_eq!(movable.max_layers([35, 100]).0.layers, [3, 3]);
        assert_eq!(movable.max_layers([15, 0]).1, 10);
    }
}
