//! Policies: functions that return a device map. Workers contain none.

use model::config::ModelConfig;
use program::formats::{KvFormat, WeightFormats};
use program::map::{Chunking, Device, DeviceMap, Home, LayerKv, PhaseMap, Schedule, layer_list};

use crate::split::Split;

/// Streamed weights of the layer being computed and of the next one.
const WEIGHT_SLOTS: u16 = 2;
/// Streamed KV being read and the next one.
const KV_SLOTS: u16 = 2;

/// A policy by name, with what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    CpuOnly,
    /// Every layer on the GPU, its weights streamed (ZeRO-Inference style).
    GpuOnly,
    /// Decode: the GPU runs one interval of each layer. Prefill: all layers on the GPU
    /// (Park-Egger §4.2).
    TwoSplit {
        split: Split,
        chunking: Option<Chunking>,
    },
}

impl Policy {
    /// Name on the command line and in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Policy::CpuOnly => "cpu-only",
            Policy::GpuOnly => "gpu-only",
            Policy::TwoSplit { .. } => "two-split",
        }
    }
}

/// What a policy leaves open and memory decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Homes {
    /// KV that only the GPU reads.
    pub kv: Home,
    /// Hidden states of prefill between layers.
    pub prefill_hidden: Home,
}

/// In which form weights and KV are kept; no policy chooses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forms {
    pub weights: WeightFormats,
    pub kv: KvFormat,
}

impl Forms {
    /// Everything in the run's dtype.
    pub fn plain(config: &ModelConfig) -> Forms {
        Forms { weights: WeightFormats::plain(config), kv: KvFormat::Plain }
    }

    /// Keeps the weights and the KV cache of a map in these forms.
    pub fn apply(&self, map: &mut DeviceMap) {
        map.weight_formats.clone_from(&self.weights);
        map.kv_format = self.kv;
    }
}

/// The device map of a policy, with everything in the run's dtype; [`Forms::apply`] changes that.
pub fn device_map(
    policy: &Policy,
    config: &ModelConfig,
    fuse_attention: bool,
    homes: Homes,
) -> DeviceMap {
    let (prefill, decode, chunking) = match policy {
        Policy::CpuOnly => (Device::Cpu, None, None),
        Policy::GpuOnly => (Device::Gpu, None, None),
        Policy::TwoSplit { split, chunking } => (Device::Gpu, Some(*split), *chunking),
    };
    let layers = config.num_layers;
    let prefill_layer = vec![prefill; layer_list(config, None).len()];
    let decode_layer: Vec<Device> = match decode {
        None => vec![prefill; layer_list(config, chunking).len()],
        Some(Split { start, end }) => (0..layer_list(config, chunking).len())
            .map(|i| if (start..end).contains(&i) { Device::Gpu } else { Device::Cpu })
            .collect(),
    };
    let head = if *policy == Policy::GpuOnly { Device::Gpu } else { Device::Cpu };
    let mut map = DeviceMap {
        policy: policy.name().to_owned(),
        chunking,
        prefill: PhaseMap {
            embed: Device::Cpu,
            layers: vec![prefill_layer; layers],
            // Only the last rows cross to a head on the CPU.
            final_norm: prefill,
            head,
        },
        decode: PhaseMap {
            embed: Device::Cpu,
            layers: vec![decode_layer; layers],
            final_norm: head,
            head,
        },
        weights: vec![vec![Home::Host; config.layer_ops().len()]; layers],
        outer_weights: Home::Host,
        kv: Vec::new(),
        fuse_attention,
        weight_slots: WEIGHT_SLOTS,
        kv_slots: KV_SLOTS,
        prefill_hidden: homes.prefill_hidden,
        weight_formats: WeightFormats::plain(config),
        kv_format: KvFormat::Plain,
        schedule: Schedule::Overlapped,
    };
    let home = if *policy == Policy::GpuOnly { homes.kv } else { Home::Host };
    map.kv = (0..layers)
        .map(|layer| {
            let chunking = map.layer_chunking(config, layer);
            let homes = |kv| vec![home; usize::from(chunking.map_or(1, |c| c.parts(kv)))];
            LayerKv { k: homes(model::ops::Kv::K), v: homes(model::ops::Kv::V) }
        })
        .collect();
    map
}
