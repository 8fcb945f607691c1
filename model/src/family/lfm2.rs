//! LFM2: most layers have a short gated convolution, the others attend, with a norm of each head of
//! q and k; a dense network, or after the first layers experts that are selected by the sigmoids of
//! their logits and a bias.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::layer_types::LayerType;
use super::tensors::{Layouts, TensorSlice, stacked};
use super::{experts, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Default rope base.
const THETA: f64 = 1e6;
const NORM_EPS: f64 = 1e-5;
/// Default number of rows that a convolution covers.
const TAPS: usize = 3;
/// Default number of first layers without experts.
const DENSE: usize = 2;
/// Default divisor of the width of a dense network whose width is adjusted.
const MULTIPLE: usize = 256;
const SCORING: ExpertScoring = ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-6) };

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Lfm2ForCausalLM", model_type: "lfm2", config: dense_config }],
    layouts,
    GgufFamily { names: &["lfm2"], ..GGUF },
);

pub(super) const FAMILY_WITH_EXPERTS: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Lfm2MoeForCausalLM", model_type: "lfm2_moe", config: moe_config }],
    layouts,
    GgufFamily {
        names: &["lfm2moe"],
        experts: Some(GgufExperts { selection_bias: true, ..GgufExperts::scored(SCORING) }),
        keys: &["expert_weights_norm", "expert_weights_scale", "leading_dense_block_count"],
        ..GGUF
    },
);

const GGUF: GgufFamily =
    GgufFamily { qk_norm: Some(QkNorm::PerHead), has_short_convolutions: true, ..GgufFamily::NONE };

/// Parses `Lfm2ForCausalLM`.
fn dense_config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    // An older name, which takes precedence.
    let is_old = fields.present("block_ff_dim").is_some();
    let ffn_field = if is_old { "block_ff_dim" } else { "intermediate_size" };
    fields.present("intermediate_size");
    let model = config(Family::Lfm2, name, fields, ffn_field)?;
    Ok(ModelConfig { ffn_size: adjusted_ffn_size(fields, model.ffn_size)?, ..model })
}

/// Parses `Lfm2MoeForCausalLM`.
fn moe_config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = config(Family::Lfm2Moe, name, fields, "intermediate_size")?;
    let ffn_size = fields.size("moe_intermediate_size")?;
    let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
    let scoring = if fields.flag("norm_topk_prob", true)? {
        SCORING
    } else {
        ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused }
    };
    let experts = Experts {
        selection: ExpertSelection {
            bias: fields.flag("use_expert_bias", true)?,
            groups: None,
            scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
            is_f32: false,
        },
        ..Experts::new(count, per_token, ffn_size, scoring)
    };
    let dense = experts::count_or(fields, "num_dense_layers", DENSE)?;
    let is_dense = experts::dense_layers(fields, model.num_layers, dense)?;
    Ok(experts::with_experts(model, experts, None, &is_dense))
}

/// Parses the fields that both variants share. `ffn_field` is the field with the width of the dense
/// network.
fn config(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    ffn_field: &'static str,
) -> Result<ModelConfig, ConfigError> {
    let defaults = llama::Defaults { ffn_field, ..llama::Defaults::of(THETA) };
    let model = llama::base_with(family, name, fields, defaults)?;
    fields.only("conv_bias", &Value::Bool(false))?;
    fields.only("block_use_swiglu", &Value::Bool(true))?;
    fields.only("use_pos_enc", &Value::Bool(true))?;
    for field in ["block_dim", "conv_dim", "conv_dim_out"] {
        fields.only(field, &Value::from(model.hidden_size))?;
    }
    fields.only("num_heads", &Value::from(model.num_heads))?;
    // transformers reads the norms' epsilon from `norm_eps` alone.
    fields.present("block_norm_eps");
    let taps = fields.optional_size("conv_L_cache")?.unwrap_or(TAPS);
    let attending = model.layers.kind(0).clone();
    let kind = |attends: bool| match attends {
        true => attending.clone(),
        false => LayerKind::short_conv(taps),
    };
    let layers = attending_layers(fields, model.num_layers)?.into_iter().map(kind);
    let is_tied = fields.flag("tie_word_embeddings", true)?;
    Ok(ModelConfig {
        layers: Layers::from_kinds(layers),
        norm_eps: fields.positive("norm_eps")?.unwrap_or(NORM_EPS) as f32,
        qk_norm: Some(QkNorm::PerHead),
        // An older name, which takes precedence.
        tied_embeddings: fields.flag("tie_embedding", is_tied)?,
        ..model
    })
}

/// Returns a flag per layer that is true if it attends: according to `layer_types`, or else to the
/// indices in `full_attn_idxs`. By default all layers attend.
fn attending_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let indices = fields.present("full_attn_idxs");
    if let Some(types) = fields.present("layer_types") {
        let convolves = LayerType::CONVOLUTION.layers(types, layers)?;
        return Ok(convolves.into_iter().map(|convolves| !convolves).collect());
    }
    let Some(indices) = indices else { return Ok(vec![true; layers]) };
    let refused = || wrong("full_attn_idxs", indices, "the indices of layers");
    let mut attending = vec![false; layers];
    for index in indices.as_array().ok_or_else(refused)? {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        *index.and_then(|index| attending.get_mut(index)).ok_or_else(refused)? = true;
    }
    Ok(attending)
}

/// Returns the width of the dense network: unless the file says otherwise, two thirds of the
/// specified width times a factor, rounded up to a multiple.
fn adjusted_ffn_size(fields: &ConfigFields<'_>, specified: usize) -> Result<usize, ConfigError> {
    let multiple = fields.optional_size("block_multiple_of")?.unwrap_or(MULTIPLE);
    let factor = fields.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(specified);
    }
    let scaled = (factor * (specified.saturating_mul(2) / 3) as f64) as usize;
    Ok(scaled.div_ceil(multiple).saturating_mul(multiple))
}

/// Returns the possible layouts of a tensor.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let (layer, op, part) = match id {
        TensorId::Layer { layer, op, part } => (layer, op, part),
        TensorId::FinalNorm { part: TensorPart::Gain } => {
            return vec![llama::whole(config, id, "model.embedding_norm.weight".to_owned())];
        }
        _ => return vec![llama::pieces(config, id)],
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let module = match (op, part) {
        (Op::ShortConv, _) => return vec![convolution(config, at("conv.conv.weight"))],
        (Op::ExpertGate | Op::ExpertUp | Op::ExpertDown, _) => return of_experts(config, op, &at),
        (Op::Router, TensorPart::Gain) => "feed_forward.expert_bias",
        (Op::Router, _) => "feed_forward.gate.weight",
        (Op::Norm0, _) => "operator_norm.weight",
        (Op::Norm1, _) => "ffn_norm.weight",
        (Op::Q, TensorPart::Gain) => "self_attn.q_layernorm.weight",
        (Op::K, TensorPart::Gain) => "self_attn.k_layernorm.weight",
        (Op::Q, _) => "self_attn.q_proj.weight",
        (Op::K, _) => "self_attn.k_proj.weight",
        (Op::V, _) => "self_attn.v_proj.weight",
        (Op::Out, _) => "self_attn.out_proj.weight",
        (Op::ConvIn, _) => "conv.in_proj.weight",
        (Op::ConvOut, _) => "conv.out_proj.weight",
        (Op::Gate | Op::DenseGate, _) => "feed_forward.w1.weight",
        (Op::Up | Op::DenseUp, _) => "feed_forward.w3.weight",
        (Op::Down | Op::DenseDown, _) => "feed_forward.w2.weight",
        _ => return Vec::new(),
    };
    vec![llama::whole(config, id, at(module))]
}

/// Returns the pieces of a convolution, which is stored by channel.
fn convolution(config: &ModelConfig, name: String) -> Vec<TensorSlice> {
    let piece = config.short_conv().map(|conv| TensorSlice {
        names: vec![name],
        shape: vec![conv.channels, 1, conv.taps],
        first: 0,
        rows: conv.taps,
        columns: conv.channels,
        strides: (1, conv.taps),
        is_transposed: false,
    });
    piece.into_iter().collect()
}

/// Returns the layouts of the experts' matrices: one tensor per expert, or one for all experts, in
/// which the rows of the second linear follow those of the gate.
fn of_experts(config: &ModelConfig, op: Op, at: &dyn Fn(&str) -> String) -> Layouts {
    let Some(Experts { count, ffn_size: ffn, .. }) = config.experts else { return Vec::new() };
    let hidden = config.hidden_size;
    let (own, (rows, columns), all, (first, all_rows)) = match op {
        Op::ExpertGate => ("w1", (ffn, hidden), "gate_up_proj", (0, 2 * ffn)),
        Op::ExpertUp => ("w3", (ffn, hidden), "gate_up_proj", (ffn, 2 * ffn)),
        _ => ("w2", (hidden, ffn), "down_proj", (0, hidden)),
    };
    let one = |expert: usize| {
        let name = at(&format!("feed_forward.experts.{expert}.{own}.weight"));
        TensorSlice::whole(name, &[rows, columns])
    };
    let stacked =
        stacked(&at(&format!("feed_forward.experts.{all}")), count, all_rows, columns, first, rows);
    vec![(0..count).map(one).collect(), stacked]
}
