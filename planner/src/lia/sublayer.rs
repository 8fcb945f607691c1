//! LIA's table 1: operand sizes and operations of the six sublayers.

use model::config::ModelConfig;
use model::ops::Op;

use super::{Case, Stage};

/// QKV mapping, Q x K^T, S x V, output projection, FC1, FC2.
pub const SUBLAYERS: usize = 6;

/// One row of table 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sublayer {
    /// `D_X`: the activation, bytes.
    pub x_bytes: f64,
    /// `D_Y`: parameters, or K or V, bytes.
    pub y_bytes: f64,
    /// `C`.
    pub flops: f64,
    /// `Y` are parameters rather than K or V.
    pub parameters: bool,
}

/// Table 1 for a model: for OPT exactly the printed one (`d_m` hidden, `4 d_m` FFN, as many KV
/// heads as heads); with grouped-query attention K and V are smaller, and a gated FFN has its gate
/// in FC1.
pub fn sublayers(config: &ModelConfig, stage: Stage, case: &Case) -> [Sublayer; SUBLAYERS] {
    let bytes = case.dtype.size_bytes() as f64;
    let (batch, length) = (f64::from(case.batch), f64::from(case.length));
    let rows = match stage {
        Stage::Prefill => batch * length,
        Stage::Decode => batch,
    };
    let (hidden, ffn) = (config.hidden_size as f64, config.ffn_size as f64);
    let (q, kv) = (config.q_size() as f64, config.kv_size() as f64);
    let first = if config.activation.is_gated() { 2.0 * ffn } else { ffn };
    let linear = |input: f64, output: f64| Sublayer {
        x_bytes: rows * input * bytes,
        y_bytes: input * output * bytes,
        flops: 2.0 * rows * input * output,
        parameters: true,
    };
    let attention = Sublayer {
        x_bytes: rows * q * bytes,
        y_bytes: batch * length * kv * bytes,
        flops: 2.0 * rows * length * q,
        parameters: false,
    };
    [
        linear(hidden, q + 2.0 * kv),
        attention,
        attention,
        linear(q, hidden),
        linear(hidden, first),
        linear(ffn, hidden),
    ]
}

/// `D_KV`: K and V that sublayer 1 makes, bytes.
pub(super) fn fresh_kv_bytes(config: &ModelConfig, stage: Stage, case: &Case) -> f64 {
    let rows = match stage {
        Stage::Prefill => f64::from(case.batch) * f64::from(case.length),
        Stage::Decode => f64::from(case.batch),
    };
    2.0 * rows * config.kv_size() as f64 * case.dtype.size_bytes() as f64
}

/// The sublayer that an operation belongs to. LIA fuses what it does not list with a neighbour: the
/// norms with what follows them, softmax with the scores.
pub(crate) const fn sublayer_of(op: Op) -> Option<usize> {
    match op {
        Op::Norm0 | Op::Q | Op::K | Op::V => Some(0),
        Op::Scores | Op::Softmax | Op::Attention => Some(1),
        Op::Wv => Some(2),
        Op::Out | Op::PostNorm0 => Some(3),
        Op::Norm1 | Op::Gate | Op::Up | Op::Fc0 | Op::Router | Op::ExpertGate | Op::ExpertUp => {
            Some(4)
        }
        Op::Down | Op::Fc1 | Op::PostNorm1 | Op::ExpertDown => Some(5),
        Op::Embed | Op::FinalNorm | Op::Head | Op::Sample => None,
    }
}
