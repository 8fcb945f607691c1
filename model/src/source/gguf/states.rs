//! Tensors of layers that keep a state: those of Qwen3.5 and Qwen3-Next, with their attention with
//! a gate, those of Kimi Linear, those of Mamba2, and those of LFM2's short convolutions.

use super::piece::GgufSlice;
use crate::config::{Family, ModelConfig};
use crate::delta::DeltaNet;
use crate::mamba::Mamba;
use crate::ops::Op;
use crate::short_conv::ShortConv;
use crate::source::{TensorId, TensorPart};

/// Transformation of a vector in the file to the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateTransform {
    /// No transformation.
    None,
    /// A matrix `[columns, rows]` is transposed to `[rows, columns]`.
    Transposed { rows: usize, columns: usize },
    /// The first `count` numbers are stored as `-e^x` of the model's `x`.
    Logarithms { count: usize },
}

/// Returns the transformation of a vector in the file.
pub(super) fn state_transform(config: &ModelConfig, id: TensorId) -> StateTransform {
    if let (Some(conv), TensorId::Layer { op: Op::ShortConv, .. }) = (config.short_conv(), id) {
        return StateTransform::Transposed { rows: conv.taps, columns: conv.channels };
    }
    if let (Some(mamba), TensorId::Layer { op, part, .. }) = (config.mamba, id) {
        return match (op, part) {
            (Op::MambaConv, TensorPart::Gain) => {
                StateTransform::Transposed { rows: mamba.taps, columns: mamba.channels() }
            }
            (Op::Mamba, TensorPart::Bias) => StateTransform::Logarithms { count: mamba.heads },
            _ => StateTransform::None,
        };
    }
    match (config.delta, id) {
        (Some(delta), TensorId::Layer { op: Op::DeltaConv, .. }) => {
            StateTransform::Transposed { rows: delta.taps, columns: delta.channels() }
        }
        (Some(delta), TensorId::Layer { op: Op::Delta, part: TensorPart::Bias, .. }) => {
            StateTransform::Logarithms { count: delta.value_heads }
        }
        _ => StateTransform::None,
    }
}

impl StateTransform {
    /// Transforms a whole vector.
    pub(super) fn apply(self, vector: &mut [f32]) {
        match self {
            StateTransform::None => {}
            StateTransform::Transposed { rows, columns } => {
                let stored = vector.to_vec();
                for (index, element) in vector.iter_mut().enumerate() {
                    *element = stored[index % columns * rows + index / columns];
                }
            }
            StateTransform::Logarithms { count } => {
                vector[..count].iter_mut().for_each(|rate| *rate = (-*rate).ln());
            }
        }
    }
}

/// Returns the pieces of a tensor; `None` for tensors that are stored as in other families.
pub(super) fn pieces(
    config: &ModelConfig,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Option<Vec<GgufSlice>> {
    if let Some(mamba) = &config.mamba {
        return mamba_pieces(config, mamba, layer, op, part);
    }
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    if let Some(ShortConv { channels, taps }) = config.short_conv() {
        let whole = |tensor: &str, shape: &[usize]| GgufSlice::whole(name(tensor), shape.to_vec());
        return Some(vec![match op {
            Op::ConvIn => whole("shortconv.in_proj.weight", &[3 * channels, channels]),
            Op::ConvOut => whole("shortconv.out_proj.weight", &[channels, channels]),
            Op::ShortConv => GgufSlice {
                rows: 1,
                elements: channels * taps,
                ..whole("shortconv.conv.weight", &[channels, taps])
            },
            _ => return None,
        }]);
    }
    let delta = config.delta?;
    if let Some(rank) = delta.decay_rank() {
        return channel_pieces(config, &delta, rank, layer, op, part);
    }
    if matches!(op, Op::Q | Op::OutGate) && part == TensorPart::Matrix {
        return Some(head_slices(config, name("attn_q.weight"), op == Op::OutGate));
    }
    let (hidden, values, heads) = (config.hidden_size, delta.value_size(), delta.value_heads);
    let whole = |tensor: &str, shape: &[usize]| GgufSlice::whole(name(tensor), shape.to_vec());
    Some(match (op, part) {
        (Op::DeltaQkv, _) => vec![whole("attn_qkv.weight", &[delta.channels(), hidden])],
        (Op::DeltaGate, _) => vec![whole("attn_gate.weight", &[values, hidden])],
        (Op::DeltaBa, _) if config.family == Family::Qwen3Next => {
            interleaved(&delta, &whole("ssm_ba.weight", &[2 * heads, hidden]))
        }
        (Op::DeltaBa, _) => {
            ["ssm_beta.weight", "ssm_alpha.weight"].map(|one| whole(one, &[heads, hidden])).into()
        }
        (Op::DeltaConv, _) => {
            let stored = whole("ssm_conv1d.weight", &[delta.channels(), delta.taps]);
            vec![GgufSlice { rows: 1, elements: delta.channels() * delta.taps, ..stored }]
        }
        (Op::Delta, TensorPart::Gain) => vec![whole("ssm_norm.weight", &[delta.value_dim])],
        (Op::Delta, _) => vec![whole("ssm_a", &[heads]), whole("ssm_dt.bias", &[heads])],
        (Op::DeltaOut, _) => vec![whole("ssm_out.weight", &[hidden, values])],
        _ => return None,
    })
}

/// Returns the pieces of a tensor of a layer with a state that decays by channel; `None` for other
/// tensors. `rank` is the number of elements between the linears of the decay and of the gate.
fn channel_pieces(
    config: &ModelConfig,
    delta: &DeltaNet,
    rank: usize,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Option<Vec<GgufSlice>> {
    let (hidden, heads, values) = (config.hidden_size, delta.value_heads, delta.value_size());
    let whole = |tensor: &str, shape: &[usize]| {
        GgufSlice::whole(format!("blk.{layer}.{tensor}"), shape.to_vec())
    };
    let parts = [("q", delta.key_size()), ("k", delta.key_size()), ("v", values)];
    Some(match (op, part) {
        (Op::DeltaQkv, _) => {
            parts.map(|(part, rows)| whole(&format!("attn_{part}.weight"), &[rows, hidden])).into()
        }
        (Op::DeltaBa, _) => vec![whole("ssm_beta.weight", &[heads, hidden])],
        (Op::DeltaDecayDown, _) => vec![whole("ssm_f_a.weight", &[rank, hidden])],
        (Op::DeltaDecay, _) => vec![whole("ssm_f_b.weight", &[delta.decays_len(), rank])],
        (Op::DeltaGateDown, _) => vec![whole("ssm_g_a.weight", &[rank, hidden])],
        (Op::DeltaGate, _) => vec![whole("ssm_g_b.weight", &[values, rank])],
        (Op::DeltaConv, _) => {
            let piece = |(part, channels): (&str, usize)| GgufSlice {
                rows: 1,
                elements: channels * delta.taps,
                ..whole(&format!("ssm_conv1d_{part}.weight"), &[channels, delta.taps])
            };
            parts.map(piece).into()
        }
        (Op::Delta, TensorPart::Gain) => vec![whole("ssm_norm.weight", &[delta.value_dim])],
        (Op::Delta, _) => {
            vec![whole("ssm_a", &[heads]), whole("ssm_dt.bias", &[delta.decays_len()])]
        }
        (Op::DeltaOut, _) => vec![whole("attn_output.weight", &[hidden, values])],
        _ => return None,
    })
}

/// Returns the pieces of a tensor of a layer with Mamba2; `None` for other tensors.
fn mamba_pieces(
    config: &ModelConfig,
    mamba: &Mamba,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Option<Vec<GgufSlice>> {
    let (hidden, inner, heads) = (config.hidden_size, mamba.inner_size(), mamba.heads);
    let whole = |tensor: &str, shape: &[usize]| {
        GgufSlice::whole(format!("blk.{layer}.{tensor}"), shape.to_vec())
    };
    // A vector, whatever the shape of its tensor.
    let flat = |tensor: &str, shape: &[usize]| {
        let elements = shape.iter().product();
        GgufSlice { rows: 1, elements, ..whole(tensor, shape) }
    };
    Some(match (op, part) {
        (Op::MambaIn, _) => vec![whole("ssm_in.weight", &[mamba.input_size(), hidden])],
        (Op::MambaConv, TensorPart::Gain) => {
            vec![flat("ssm_conv1d.weight", &[mamba.channels(), mamba.taps])]
        }
        (Op::MambaConv, _) => vec![whole("ssm_conv1d.bias", &[mamba.channels()])],
        (Op::Mamba, TensorPart::Gain) => {
            vec![flat("ssm_norm.weight", &[mamba.groups, inner / mamba.groups])]
        }
        (Op::Mamba, _) => vec![
            flat("ssm_a", &[heads, 1]),
            whole("ssm_dt.bias", &[heads]),
            flat("ssm_d", &[heads, 1]),
        ],
        (Op::MambaOut, _) => vec![whole("ssm_out.weight", &[hidden, inner])],
        _ => return None,
    })
}

/// Returns each head's rows of q, or those of its gate, which are stored after them.
fn head_slices(config: &ModelConfig, name: String, gates: bool) -> Vec<GgufSlice> {
    let head_dim = config.head_dim;
    let all = GgufSlice::whole(name, vec![2 * config.q_size(), config.hidden_size]);
    let first = |head: usize| (2 * head + usize::from(gates)) * head_dim;
    (0..config.num_heads).map(|head| all.rows_from(first(head), head_dim)).collect()
}

/// Returns the rows of b, followed by those of a. The file stores them together for each head of q
/// and k.
fn interleaved(delta: &DeltaNet, all: &GgufSlice) -> Vec<GgufSlice> {
    let group = delta.group();
    let of = |first: usize| {
        (0..delta.key_heads).map(move |head| all.rows_from(2 * head * group + first, group))
    };
    of(0).chain(of(group)).collect()
}
