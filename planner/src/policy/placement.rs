//! A policy together with the decisions that it leaves open: where prompts are computed, where KV
//! is stored, and which weights stay in device memory.

use model::config::ModelConfig;
use program::map::{ComputeDevice, DeviceMap, LayerKv, layer_list};
use program::topology::MemoryId;

use super::map::{place_shared_caches, place_states};
use super::{DefaultTiers, Policy, SlowTierLayers, StagedMatrices, device_map};

/// Device that computes the attention of resident layers in decode, and the location of their
/// cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResidentAttention {
    /// On the GPU; their KV stays in device memory too.
    WithKv,
    /// On the GPU; their KV is streamed from the host.
    Streamed,
    /// On the CPU, from the host.
    OnCpu,
}

impl ResidentAttention {
    pub const ALL: [ResidentAttention; 3] =
        [ResidentAttention::WithKv, ResidentAttention::Streamed, ResidentAttention::OnCpu];
}

/// Weights that stay in device memory: whole layers, which then run on the GPU regardless of the
/// policy for the others, and the weights outside the layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Residency {
    /// Indices, ascending.
    pub layers: Vec<usize>,
    pub attention: ResidentAttention,
    /// Final norm and head stay, and then run on the GPU.
    pub head: bool,
}

impl Residency {
    /// No weights stay.
    pub const NONE: Residency =
        Residency { layers: Vec::new(), attention: ResidentAttention::WithKv, head: false };

    /// Returns true if no weights stay.
    pub const fn is_none(&self) -> bool {
        self.layers.is_empty() && !self.head
    }

    /// Makes the weights of a map resident.
    ///
    /// # Panics
    /// For a layer that the map does not have.
    fn apply(&self, map: &mut DeviceMap, config: &ModelConfig) {
        let kv_tier = match self.attention {
            ResidentAttention::WithKv => MemoryId::VRAM,
            ResidentAttention::Streamed | ResidentAttention::OnCpu => MemoryId::DRAM,
        };
        for &layer in &self.layers {
            let list = layer_list(config, layer, map.chunking);
            let decode = &mut map.decode.layers[layer];
            decode.fill(ComputeDevice::Gpu);
            if self.attention == ResidentAttention::OnCpu {
                let entries = decode.iter_mut().zip(&list);
                let attention = entries.filter(|(_, entry)| entry.op.is_attention());
                attention.for_each(|(device, _)| *device = ComputeDevice::Cpu);
            }
            map.prefill.layers[layer].fill(ComputeDevice::Gpu);
            map.weights[layer].fill(MemoryId::VRAM);
            map.kv[layer] = LayerKv { k: vec![kv_tier], v: vec![kv_tier], device_batches: 0 };
        }
        if self.head {
            map.outer_weights = MemoryId::VRAM;
            (map.decode.final_norm, map.decode.head) = (ComputeDevice::Gpu, ComputeDevice::Gpu);
            (map.prefill.final_norm, map.prefill.head) = (ComputeDevice::Gpu, ComputeDevice::Gpu);
        }
    }

    /// Scales to a model with fewer layers, preserving the fraction and spreading the layers
    /// evenly.
    #[must_use]
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> Residency {
        let count = (self.layers.len() * to_layers + from_layers / 2) / from_layers.max(1);
        Residency { layers: spread_evenly(count, to_layers), ..self.clone() }
    }
}

/// Returns the indices of `count` of `layers` layers, spaced as far apart as possible, so that
/// every streamed layer has the link for about equally long.
pub fn spread_evenly(count: usize, layers: usize) -> Vec<usize> {
    let count = count.min(layers);
    // The middle of each of `count` equal shares.
    (0..count).map(|index| (2 * index + 1) * layers / (2 * count)).collect()
}

/// A policy together with all decisions that it leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub policy: Policy,
    /// Prompts are computed on the CPU regardless of the policy.
    pub prefill_on_cpu: bool,
    /// Memory of the KV that only the GPU reads; `None`: device memory as long as it fits.
    pub kv: Option<MemoryId>,
    /// Number of batches, from the first, whose KV stays in device memory if only the GPU reads it
    /// (Park-Egger keep the KV of one batch there).
    pub device_batches: u16,
    pub residency: Residency,
    /// Weights in additional host memories, out of those that would be in the near one.
    pub slow_tier: SlowTierLayers,
    /// Weights that are read from storages in every step, out of those that would be on the host.
    pub staged: StagedMatrices,
}

impl Placement {
    /// Returns the placement of a policy alone. All policies except those with everything on the
    /// GPU stream KV from the host.
    pub const fn from_policy(policy: Policy) -> Placement {
        let kv = match policy {
            Policy::GpuOnly | Policy::Resident => None,
            _ => Some(MemoryId::DRAM),
        };
        Placement {
            policy,
            prefill_on_cpu: false,
            kv,
            device_batches: 0,
            residency: Residency::NONE,
            slow_tier: SlowTierLayers::NONE,
            staged: StagedMatrices::NONE,
        }
    }

    /// Scales to a model with fewer layers, preserving the fractions of resident, moved and staged
    /// weights.
    #[must_use]
    pub fn scaled(&self, from_layers: usize, to_layers: usize) -> Placement {
        let residency = self.residency.scaled(from_layers, to_layers);
        let staged = self.staged.scaled(from_layers, to_layers);
        let slow_tier = self.slow_tier.scaled(from_layers, to_layers);
        Placement { residency, slow_tier, staged, ..self.clone() }
    }

    /// Returns the device map, with everything in the run's dtype; `defaults` are the tiers that
    /// the placement leaves open.
    pub fn map(
        &self,
        config: &ModelConfig,
        fuse_attention: bool,
        defaults: DefaultTiers,
    ) -> DeviceMap {
        let tiers = DefaultTiers { kv: self.kv.unwrap_or(defaults.kv), ..defaults };
        let mut map = device_map(&self.policy, config, fuse_attention, tiers);
        if self.prefill_on_cpu {
            map.prefill.layers.iter_mut().for_each(|layer| layer.fill(ComputeDevice::Cpu));
            (map.prefill.final_norm, map.prefill.head) = (ComputeDevice::Cpu, ComputeDevice::Cpu);
        }
        for layer in 0..config.num_layers {
            let attention = map.decode_layer(config, layer).into_iter();
            let mut devices = attention.filter(|(entry, _)| entry.op.is_attention());
            if devices.all(|(_, device)| device == ComputeDevice::Gpu) {
                map.kv[layer].device_batches = self.device_batches;
            }
        }
        self.residency.apply(&mut map, config);
        place_states(&mut map, config);
        place_shared_caches(&mut map, config);
        self.slow_tier.apply(&mut map, config);
        self.staged.apply(&mut map, config);
        map
    }
}

#[cfg(test)]
mod tests {
    use super::spread_evenly;

    #[test]
    fn even_layers_are_far_apart() {
        assert_eq!(spread_evenly(3, 12), [2, 6, 10]);
        assert_eq!(spread_evenly(12, 12), (0..12).collect::<Vec<_>>());
        assert!(spread_evenly(0, 4).is_empty());
        for count in 1..=48 {
            let layers = spread_evenly(count, 48);
            assert_eq!(layers.len(), count);
            assert!(layers.windows(2).all(|pair| pair[0] < pair[1]), "{layers:?}");
        }
    }
}
