//! Policies: functions that return a device map. Workers contain none.

mod map;
pub mod name;
mod placement;
mod slow_tier;
mod staged;
#[cfg(test)]
mod tests;

pub use map::{decode_device, device_map};
pub use placement::{Placement, Residency, ResidentAttention, spread_evenly};
pub(crate) use slow_tier::slow_tier_ops;
pub use slow_tier::{SlowTierLayers, SlowTierWeights};
pub use staged::StagedMatrices;
pub(crate) use staged::{StagedLayers, hosted_layers};

use model::config::ModelConfig;
use program::formats::{KvFormat, WeightFormats};
use program::map::{Chunking, DeviceMap};
use program::select::KvSelect;
use program::topology::MemoryId;

use crate::lia::OffloadVector;
use crate::split::Split;

/// FlexGen's loop over layers and batches. All lanes meet at a barrier after each batch; all
/// weights of the next layer are streamed while a layer's first batch is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flexgen {
    /// The next layer's weights are spread evenly over the batches instead.
    pub spread: bool,
    pub cpu_attention: bool,
}

/// A policy with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    CpuOnly,
    /// eLLM: like `CpuOnly`, with the caches of each sequence contiguous also in a serving run. All
    /// tensors are sized for the maximum shape and allocated once (eLLM §5.1), and the heads of a
    /// group read their keys and values on one core (§5.2), as in every run.
    Ellm,
    /// Every layer on the GPU, with its weights streamed (ZeRO-Inference style).
    GpuOnly,
    /// Everything on the GPU, with its weights in device memory: an ordinary run on a GPU.
    Resident,
    /// Decode: the GPU runs one interval of each layer. Prefill: all layers on the GPU
    /// (Park-Egger §4.2).
    TwoSplit {
        split: Split,
        chunking: Option<Chunking>,
    },
    /// Like `TwoSplit`, with the interval at the layer's end (Park-Egger fig. 14).
    OneSplit {
        start: usize,
        chunking: Option<Chunking>,
    },
    /// LIA's offload vectors. Attention of prefill is never split: a vector that splits it does not
    /// compile.
    Lia {
        prefill: OffloadVector,
        decode: OffloadVector,
        /// Layers that stay in device memory are spread among the others, so that each streamed
        /// layer has the link for longer. LIA keeps the first ones (§5.2, optimisation 1).
        spread: bool,
    },
    /// FlexGen's own loop, with everything on the GPU, optionally except attention.
    Flexgen(Flexgen),
}

impl Policy {
    /// Returns the name on the command line and in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Policy::CpuOnly => "cpu-only",
            Policy::Ellm => "ellm",
            Policy::GpuOnly => "gpu-only",
            Policy::Resident => "resident",
            Policy::TwoSplit { .. } => "two-split",
            Policy::OneSplit { .. } => "one-split",
            Policy::Lia { spread: false, .. } => "lia",
            Policy::Lia { spread: true, .. } => "lia:spread",
            Policy::Flexgen(Flexgen { spread: false, .. }) => "flexgen",
            Policy::Flexgen(Flexgen { spread: true, .. }) => "flexgen:spread",
        }
    }

    /// Returns the split of attention in decode.
    pub const fn chunking(&self) -> Option<Chunking> {
        match self {
            Policy::TwoSplit { chunking, .. } | Policy::OneSplit { chunking, .. } => *chunking,
            _ => None,
        }
    }
}

/// Tiers that a policy leaves open and memory determines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultTiers {
    /// Memory of the KV that only the GPU reads.
    pub kv: MemoryId,
    /// Memory of prefill's hidden states between layers.
    pub prefill_hidden: MemoryId,
}

/// Formats in which weights and KV are stored; no policy chooses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats {
    pub weights: WeightFormats,
    pub kv: KvFormat,
    /// See [`DeviceMap::kv_select`].
    pub kv_select: Option<KvSelect>,
}

impl Formats {
    /// Returns formats that store everything in the run's dtype.
    pub fn plain(config: &ModelConfig) -> Formats {
        let weights = WeightFormats::plain(config);
        Formats { weights, kv: KvFormat::Plain, kv_select: None }
    }

    /// Sets the formats of the weights and the KV cache of a map.
    pub fn apply(&self, map: &mut DeviceMap) {
        map.weight_formats.clone_from(&self.weights);
        map.kv_format = self.kv;
        map.kv_select = self.kv_select;
    }
}
