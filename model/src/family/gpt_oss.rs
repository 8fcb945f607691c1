//! gpt-oss: experts with biases and a clamped SwiGLU, attention with sinks, and a window in every
//! other layer.

use serde_json::json;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::tensors::{Layouts, TensorSlice};
use super::{experts, layer_types, llama};
use crate::config::{Activation, Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Default rope base.
const THETA: f64 = 150_000.0;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "GptOssForCausalLM", model_type: "gpt_oss", config }],
    layouts,
    GgufFamily {
        activation: Activation::ClampedSwiGlu,
        experts: Some(GgufExperts {
            bias: true,
            ..GgufExperts::scored(ExpertScoring::TopKSoftmax)
        }),
        stem: |op, _| (op == Op::Norm1).then_some("post_attention_norm"),
        ..GgufFamily::named(&["gpt-oss"])
    },
);

/// Parses `GptOssForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    for field in ["head_dim", "num_key_value_heads", "sliding_window"] {
        fields.size(field)?;
    }
    if fields.present("rope_scaling").or_else(|| fields.present("rope_parameters")).is_none() {
        return Err(ConfigError::Missing { field: "rope_scaling" });
    }
    let model = llama::base_with(Family::GptOss, name, fields, llama::Defaults::of(THETA))?;
    let bias = fields.flag("attention_bias", true)?;
    fields.only("swiglu_limit", &json!(7.0))?;
    fields.only("swiglu_alpha", &json!(1.702))?;
    // Also contained in the rope's original length.
    fields.present("initial_context_length");
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        model.ffn_size,
        ExpertScoring::TopKSoftmax,
    );
    let experts = Experts { bias: true, ..experts };
    let window = fields.optional_size("sliding_window")?;
    let windowed = match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, model.num_layers)?,
        None => (0..model.num_layers).map(|layer| layer % 2 == 0).collect(),
    };
    let kind = model.layers.kind(0).clone();
    let layers = windowed.into_iter().map(|windowed| LayerKind {
        window: window.filter(|_| windowed),
        feed_forward: FeedForward::Experts,
        ..kind.clone()
    });
    Ok(ModelConfig {
        layers: Layers::from_kinds(layers),
        experts: Some(experts),
        activation: Activation::ClampedSwiGlu,
        qkv_bias: bias,
        out_bias: bias,
        sinks: true,
        ..model
    })
}

/// Returns the layouts of a tensor. Matrices of experts are stored transposed, with gate and up
/// interleaved.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let TensorId::Layer { layer, op, part } = id else {
        return vec![llama::pieces(config, id)];
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let Some(Experts { count, ffn_size, .. }) = config.experts else { return Vec::new() };
    let hidden = config.hidden_size;
    let pieces = match (op, part) {
        (Op::Softmax, TensorPart::Gain) => {
            vec![TensorSlice::whole(at("self_attn.sinks"), &[config.num_heads])]
        }
        (Op::Router, TensorPart::Matrix) => {
            vec![TensorSlice::whole(at("mlp.router.weight"), &[count, hidden])]
        }
        (Op::Router, TensorPart::Bias) => vec![TensorSlice::whole(at("mlp.router.bias"), &[count])],
        (Op::ExpertGate | Op::ExpertUp, _) => {
            let first = usize::from(op == Op::ExpertUp);
            let name = at(match part {
                TensorPart::Matrix => "mlp.experts.gate_up_proj",
                _ => "mlp.experts.gate_up_proj_bias",
            });
            in_turn(name, part, count, hidden, ffn_size, first)
        }
        (Op::ExpertDown, TensorPart::Matrix) => {
            transposed(at("mlp.experts.down_proj"), count, ffn_size, hidden)
        }
        (Op::ExpertDown, TensorPart::Bias) => {
            let piece = TensorSlice::whole(at("mlp.experts.down_proj_bias"), &[count, hidden]);
            vec![TensorSlice { rows: 1, columns: count * hidden, ..piece }]
        }
        _ => llama::pieces(config, id),
    };
    vec![pieces]
}

/// Returns the pieces of matrices `[experts, in, out]`.
fn transposed(name: String, count: usize, input: usize, out: usize) -> Vec<TensorSlice> {
    let piece = |expert: usize| TensorSlice {
        names: vec![name.clone()],
        shape: vec![count, input, out],
        first: expert * input * out,
        rows: out,
        columns: input,
        strides: (1, out),
        is_transposed: false,
    };
    (0..count).map(piece).collect()
}

/// Returns every other column, starting at `first`, of matrices `[experts, in, 2 * out]` or biases
/// `[experts, 2 * out]`.
fn in_turn(
    name: String,
    part: TensorPart,
    count: usize,
    input: usize,
    out: usize,
    first: usize,
) -> Vec<TensorSlice> {
    if part != TensorPart::Matrix {
        let piece = TensorSlice::whole(name, &[count, 2 * out]);
        return vec![TensorSlice {
            first,
            rows: 1,
            columns: count * out,
            strides: (0, 2),
            ..piece
        }];
    }
    let pieces = transposed(name, count, input, 2 * out).into_iter();
    let half = |piece: TensorSlice| TensorSlice {
        first: piece.first + first,
        rows: out,
        strides: (2, piece.strides.1),
        ..piece
    };
    pieces.map(half).collect()
}
