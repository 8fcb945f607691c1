//! Operations of models, and formats of caches, that the kernels for CUDA devices lack. The
//! emulated device has them all.

use model::config::{Activation, Features, ModelConfig};
use model::experts::{ExpertScoring, ExpertSelection, Experts};
use model::ops::Op;

use crate::formats::KvFormat;
use crate::map::{ComputeDevice, DeviceMap, OpChunk, layer_list};

/// Work that the kernels lack because of the format of the caches that it reads and appends to.
pub const CACHES_OF_8_BITS: &str = "attention over KV caches of 8 bits";

const ABSENT: [Op; 10] = [
    Op::OutGate,
    Op::DeltaConv,
    Op::Delta,
    Op::DeltaGate,
    Op::ShortConv,
    Op::MambaConv,
    Op::Mamba,
    Op::SharedGate,
    Op::ExpertLatentUp,
    Op::JoinHidden,
];

/// Operations of Gemma 4 alone.
const PARALLEL: [Op; 7] = [
    Op::RouterNorm,
    Op::ExpertNorm,
    Op::SumNorm,
    Op::PerLayerEmbed,
    Op::PerLayerGate,
    Op::PerLayerOut,
    Op::PerLayerNorm,
];

/// Returns true if the kernels can select these experts.
fn is_routed(experts: &Experts) -> bool {
    let is_softmax = match experts.scoring {
        ExpertScoring::SoftmaxTopK { .. } | ExpertScoring::TopKSoftmax => true,
        ExpertScoring::SigmoidTopK { .. } | ExpertScoring::SqrtSoftplusTopK { .. } => false,
    };
    let ExpertSelection { bias, groups, is_f32, scale: _ } = experts.selection;
    is_softmax && !bias && !is_f32 && groups.is_none()
}

/// Returns true if the kernels lack an operation of a model with caches in `kv_format`.
pub fn is_gap(config: &ModelConfig, kv_format: KvFormat, op: Op) -> bool {
    op.is_attention() && kv_format == KvFormat::Eight || is_model_gap(config, op)
}

/// Returns the name of what the kernels lack, given an operation of which [`is_gap`] is true.
pub fn gap_name(config: &ModelConfig, kv_format: KvFormat, op: Op) -> &'static str {
    let is_of_caches = is_gap(config, kv_format, op) && !is_model_gap(config, op);
    if is_of_caches { CACHES_OF_8_BITS } else { op.name(config.family) }
}

/// Returns true if the kernels lack an operation of a model in whatever format its caches are.
fn is_model_gap(config: &ModelConfig, op: Op) -> bool {
    match op {
        // Kernels for devices take the sizes of the model.
        _ if config.has_kind_models() => true,
        // They add to one residual stream, and read two caches.
        _ if config.features.streams.is_some() || config.features.unified_kv.is_some() => true,
        op if is_of_features(config, op) => true,
        Op::Up | Op::DenseUp | Op::ExpertUp if config.layers.has_limits() => true,
        Op::Norm0 | Op::Norm1 => !config.pre_norms,
        Op::Router => config.experts.is_some_and(|experts| !is_routed(&experts)),
        Op::Fc0 | Op::ExpertUp if config.activation == Activation::ReluSquared => true,
        op if config.latent.is_some() && is_of_latents(op) => true,
        Op::Q if has_temperature(config) => true,
        op => ABSENT.contains(&op),
    }
}

/// Returns true for operations that features of few models change.
fn is_of_features(config: &ModelConfig, op: Op) -> bool {
    let Features { value_norm, layer_scale, logit_cap, .. } = config.features;
    match op {
        Op::V => value_norm,
        Op::PostNorm1 => layer_scale,
        Op::Head => logit_cap.is_some(),
        // They add the outputs of experts to the residual stream, in rows of its width.
        Op::ExpertGate | Op::ExpertUp | Op::ExpertDown if config.has_expert_latent() => true,
        op => {
            config.has_parallel_experts() && (op.is_expert() || op == Op::Router)
                || PARALLEL.contains(&op)
        }
    }
}

/// Returns true if queries have a factor of their position in any layer.
fn has_temperature(config: &ModelConfig) -> bool {
    let mut ropes = config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    ropes.any(|rope| rope.temperature.is_some())
}

/// Returns true for the operations of latent attention, whose shapes are not those of heads.
fn is_of_latents(op: Op) -> bool {
    op.is_attention()
        || matches!(op, Op::QDown | Op::Q | Op::QAbsorb | Op::K | Op::VUp)
        || matches!(op, Op::IndexQuery | Op::IndexWeights)
}

/// Returns the first operation of a model's layers, with caches in `kv_format`, that the kernels
/// lack.
pub fn model_gap(config: &ModelConfig, kv_format: KvFormat) -> Option<Op> {
    let ops = (0..config.num_layers).flat_map(|layer| config.layer_ops(layer));
    ops.chain(&[Op::Head]).copied().find(|op| is_gap(config, kv_format, *op))
}

/// Runs operations of prefill that the kernels lack on the CPU if the CPU runs them in decode, and
/// therefore has their weights. Attention is on one device in prefill: it moves as a whole, or not.
pub fn leave_prefill_gaps_to_cpu(config: &ModelConfig, map: &mut DeviceMap) {
    for layer in 0..config.num_layers {
        let decode = map.decode_layer(config, layer);
        let is_on_cpu = |op: Op| {
            let is_same = |other: Op| other == op || (op.is_attention() && other.is_attention());
            let mut entries = decode.iter().filter(|(entry, _)| is_same(entry.op)).peekable();
            entries.peek().is_some() && entries.all(|(_, device)| *device == ComputeDevice::Cpu)
        };
        let gaps = config.layer_ops(layer).iter().enumerate();
        for (place, op) in gaps.filter(|(_, op)| is_gap(config, map.kv_format, **op)) {
            if is_on_cpu(*op) {
                map.prefill.layers[layer][place] = ComputeDevice::Cpu;
            }
        }
    }
}

/// Returns the first operation that a map runs on the device and that the kernels lack.
pub fn map_gap(config: &ModelConfig, map: &DeviceMap) -> Option<Op> {
    let gap_of = |layer: usize| {
        let is_gap = |(entry, on): &(OpChunk, ComputeDevice)| {
            *on == ComputeDevice::Gpu && is_gap(config, map.kv_format, entry.op)
        };
        let prefill = layer_list(config, layer, None).into_iter();
        let prefill = prefill.zip(map.prefill.layers[layer].iter().copied());
        let mut all = prefill.chain(map.decode_layer(config, layer));
        all.find(is_gap).map(|(entry, _)| entry.op)
    };
    let outer = [&map.prefill, &map.decode]
        .into_iter()
        .flat_map(|phase| [(phase.final_norm, Op::FinalNorm), (phase.head, Op::Head)]);
    let mut outer =
        outer.filter(|(on, op)| *on == ComputeDevice::Gpu && is_gap(config, map.kv_format, *op));
    (0..config.num_layers).find_map(gap_of).or_else(|| outer.next().map(|(_, op)| op))
}
