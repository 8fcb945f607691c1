//! Policies: functions that return a device map. Workers contain none.

pub mod by_name;
mod far;
mod map;
mod placement;
mod staged;
#[cfg(test)]
mod tests;

pub(crate) use far::far_ops;
pub use far::{Far, FarWeights};
pub use map::{decode_device, device_map};
pub use placement::{Placement, Residency, ResidentAttention, spread_evenly};
pub use staged::Staged;
pub(crate) use staged::{StagedLayers, hosted_layers};

use model::config::ModelConfig;
use program::formats::{KvFormat, WeightFormats};
use program::map::{Chunking, DeviceMap};
use program::select::KvSelect;
use program::topology::MemoryId;

use crate::lia::Vector;
use crate::split::Split;

/// FlexGen's loop over layers and batches. All lanes meet after each batch; while a layer's first
/// batch is computed, all weights of the next layer come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flexgen {
    /// The next layer's weights are spread evenly over the batches instead.
    pub spread: bool,
    pub cpu_attention: bool,
}

/// A policy by name, with what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    CpuOnly,
    /// Every layer on the GPU, its weights streamed (ZeRO-Inference style).
    GpuOnly,
    /// Everything on the GPU, its weights in device memory: a plain run on a GPU.
    Resident,
    /// Decode: the GPU runs one interval of each layer. Prefill: all layers on the GPU
    /// (Park-Egger §4.2).
    TwoSplit {
        split: Split,
        chunking: Option<Chunking>,
    },
    /// The same with the interval at the layer's end (Park-Egger fig. 14).
    OneSplit {
        start: usize,
        chunking: Option<Chunking>,
    },
    /// LIA's offload vectors. Attention of prefill is never cut: a vector that cuts it does not
    /// compile.
    Lia {
        prefill: Vector,
        decode: Vector,
        /// Layers that stay in device memory are spread among the others, so that each that is
        /// streamed has the link for longer. LIA keeps the first ones (§5.2, optimisation 1).
        spread: bool,
    },
    /// FlexGen's own loop, everything on the GPU but, as asked, attention.
    Flexgen(Flexgen),
}

impl Policy {
    /// Name on the command line and in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Policy::CpuOnly => "cpu-only",
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

    /// How decode's attention is cut.
    pub const fn chunking(&self) -> Option<Chunking> {
        match self {
            Policy::TwoSplit { chunking, .. } | Policy::OneSplit { chunking, .. } => *chunking,
            _ => None,
        }
    }
}

/// What a policy leaves open and memory decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Homes {
    /// KV that only the GPU reads.
    pub kv: MemoryId,
    /// Hidden states of prefill between layers.
    pub prefill_hidden: MemoryId,
}

/// In which form weights and KV are kept; no policy chooses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formats {
    pub weights: WeightFormats,
    pub kv: KvFormat,
    /// See [`DeviceMap::kv_select`].
    pub kv_select: Option<KvSelect>,
}

impl Formats {
    /// Everything in the run's dtype.
    pub fn plain(config: &ModelConfig) -> Formats {
        let weights = WeightFormats::plain(config);
        Formats { weights, kv: KvFormat::Plain, kv_select: None }
    }

    /// Keeps the weights and the KV cache of a map in these formats.
    pub fn apply(&self, map: &mut DeviceMap) {
        map.weight_formats.clone_from(&self.weights);
        map.kv_format = self.kv;
        map.kv_select = self.kv_select;
    }
}
