//! LIA's table 1: operand sizes and operations of the six sublayers.

use model::config::ModelConfig;
use model::experts::Experts;
use model::ops::Op;

use super::{LiaStage, LiaWorkload};

/// QKV mapping, Q x K^T, S x V, output projection, FC1, FC2.
pub const SUBLAYERS: usize = 6;

/// One row of table 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sublayer {
    /// `D_X`: bytes of the activation.
    pub x_bytes: f64,
    /// `D_Y`: bytes of parameters, or of K or V, that are read.
    pub y_bytes: f64,
    /// `D_Y` of a load over the link, which includes experts to which no row is routed.
    pub loaded_bytes: f64,
    /// `C`: operations.
    pub flops: f64,
    /// `Y` are parameters rather than K or V.
    pub parameters: bool,
}

/// Returns table 1 for a model: for OPT exactly the printed one (`d_m` hidden, `4 d_m` FFN, as many
/// KV heads as heads); with grouped-query attention K and V are smaller, and a gated FFN has its
/// gate in FC1. For experts (LIA §7.1), FC1 and FC2 compute those of each row and read those that
/// are expected to be hit; the router is part of FC1. The equations have no windows and no states:
/// every layer attends to all positions.
pub fn sublayers(
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
) -> [Sublayer; SUBLAYERS] {
    let bytes = workload.dtype.size_bytes() as f64;
    let (batch, length) = (f64::from(workload.batch), f64::from(workload.length));
    let rows = match stage {
        LiaStage::Prefill => batch * length,
        LiaStage::Decode => batch,
    };
    let (q, kv) = (config.q_size() as f64, config.kv_size() as f64);
    let hidden = config.hidden_size as f64;
    let linear = |input: f64, output: f64| Sublayer {
        x_bytes: rows * input * bytes,
        y_bytes: input * output * bytes,
        loaded_bytes: input * output * bytes,
        flops: 2.0 * rows * input * output,
        parameters: true,
    };
    let kv_bytes = batch * length * kv * bytes;
    let attention = Sublayer {
        x_bytes: rows * q * bytes,
        y_bytes: kv_bytes,
        loaded_bytes: kv_bytes,
        flops: 2.0 * rows * length * q,
        parameters: false,
    };
    let [fc1, fc2] = match config.experts {
        Some(experts) => of_experts(config, &experts, rows, bytes),
        None => {
            let ffn = config.ffn_size as f64;
            let first = if config.activation.is_gated() { 2.0 * ffn } else { ffn };
            [linear(hidden, first), linear(ffn, hidden)]
        }
    };
    [linear(hidden, q + 2.0 * kv), attention, attention, linear(q, hidden), fc1, fc2]
}

/// Returns FC1 and FC2 of experts to which rows are routed evenly, with `bytes` per number.
fn of_experts(config: &ModelConfig, experts: &Experts, rows: f64, bytes: f64) -> [Sublayer; 2] {
    let (count, per_token) = (experts.count as f64, experts.per_token as f64);
    let ffn = experts.ffn_size as f64;
    let (hidden, row) = (config.hidden_size as f64, config.expert_row_size() as f64);
    // Parameters of the linear before experts in a latent, and of the one after them.
    let latent = if config.has_expert_latent() { hidden * row } else { 0.0 };
    let distinct = experts.expected_distinct(rows);
    // `each` parameters of an expert, and `all` parameters outside the experts.
    let linear = |input: f64, each: f64, all: f64| Sublayer {
        x_bytes: rows * input * bytes,
        y_bytes: (distinct * each + all) * bytes,
        loaded_bytes: (count * each + all) * bytes,
        flops: 2.0 * rows * (per_token * each + all),
        parameters: true,
    };
    [
        linear(hidden, 2.0 * row * ffn, hidden * count + latent),
        linear(per_token * ffn, ffn * row, latent),
    ]
}

/// Returns `D_KV`: the bytes of K and V that sublayer 1 computes.
pub(super) fn fresh_kv_bytes(config: &ModelConfig, stage: LiaStage, workload: &LiaWorkload) -> f64 {
    let rows = match stage {
        LiaStage::Prefill => f64::from(workload.batch) * f64::from(workload.length),
        LiaStage::Decode => f64::from(workload.batch),
    };
    2.0 * rows * config.kv_size() as f64 * workload.dtype.size_bytes() as f64
}

/// Returns the sublayer of an operation. LIA fuses operations that it does not list with a
/// neighbour: norms with the following operation, softmax with the scores.
pub(crate) const fn sublayer_of(op: Op) -> Option<usize> {
    match op {
        Op::StreamMap0 | Op::Norm0 | Op::QDown | Op::Q | Op::QAbsorb | Op::K | Op::V => Some(0),
        Op::IndexQuery | Op::IndexWeights => Some(0),
        Op::DeltaQkv | Op::DeltaBa | Op::ConvIn | Op::MambaIn => Some(0),
        Op::DeltaDecayDown | Op::DeltaDecay => Some(0),
        Op::Compress | Op::Select | Op::Scores | Op::Softmax | Op::Attention => Some(1),
        Op::DeltaConv | Op::ShortConv | Op::MambaConv => Some(1),
        Op::Wv | Op::Delta | Op::Mamba => Some(2),
        Op::OutGate | Op::VUp | Op::Out | Op::PostNorm0 => Some(3),
        Op::Unrotate | Op::OutDown | Op::StreamAdd0 => Some(3),
        Op::DeltaGateDown | Op::DeltaGate | Op::DeltaOut => Some(3),
        Op::ConvOut | Op::MambaOut => Some(3),
        Op::StreamMap1
        | Op::Norm1
        | Op::Gate
        | Op::Up
        | Op::DenseGate
        | Op::DenseUp
        | Op::Fc0
        | Op::RouterNorm
        | Op::Router
        | Op::ExpertNorm
        | Op::ExpertLatentDown
        | Op::ExpertGate
        | Op::ExpertUp => Some(4),
        Op::ExpertCombine | Op::SumNorm | Op::PerLayerGate | Op::PerLayerOut | Op::PerLayerNorm => {
            Some(5)
        }
        Op::StreamAdd1 | Op::ExpertLatentUp => Some(5),
        Op::SharedGate | Op::Down | Op::DenseDown | Op::Fc1 | Op::PostNorm1 | Op::ExpertDown => {
            Some(5)
        }
        Op::Embed | Op::PerLayerEmbed | Op::JoinHidden | Op::FinalNorm | Op::Head | Op::Sample => {
            None
        }
    }
}
