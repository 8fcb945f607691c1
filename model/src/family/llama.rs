//! LLaMA: RMS norm, rotary positions, grouped KV heads and a gated feed-forward network. Mistral
//! and Qwen2 are small variations with the same tensor names.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::tensors::{Layouts, TensorSlice};
use crate::config::{Activation, Family, Features, ModelConfig, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_rope::{RopeDefaults, rope};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::rope::Rope;
use crate::source::{TensorId, TensorPart};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "LlamaForCausalLM", model_type: "llama", config }],
    layouts,
    GgufFamily { rotates_neighbours: true, ..GgufFamily::named(&["llama"]) },
);

/// Parses `LlamaForCausalLM`. `attention_bias` applies to all four attention linears, `mlp_bias` to
/// the three linears of the feed-forward network.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let attention_bias = fields.flag("attention_bias", false)?;
    fields.only("rope_interleaved", &Value::Bool(false))?;
    Ok(ModelConfig {
        qkv_bias: attention_bias,
        out_bias: attention_bias,
        ffn_bias: fields.flag("mlp_bias", false)?,
        ..base(Family::Llama, name, fields)?
    })
}

/// Parses the fields that families like LLaMA share. The defaults are no biases, no window, untied
/// embeddings and a rope base of 10,000.
pub(super) fn base(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    base_with(family, name, fields, Defaults::of(10_000.0))
}

/// Field names and default values that differ between families.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// Default base of the rope.
    pub(super) theta: f64,
    /// Default fraction of each head that is rotated.
    pub(super) rotated: f64,
    /// The fraction of each head that is rotated can be given by the file.
    pub(super) can_be_partial: bool,
    /// Name of the field with the width of the dense feed-forward network.
    pub(super) ffn_field: &'static str,
    /// Queries are multiplied by a factor of their position.
    pub(super) has_temperature: bool,
}

impl Defaults {
    /// Returns defaults with the given rope base, in which whole heads are rotated.
    pub(super) const fn of(theta: f64) -> Defaults {
        Defaults {
            theta,
            rotated: 1.0,
            can_be_partial: false,
            ffn_field: "intermediate_size",
            has_temperature: false,
        }
    }
}

/// Parses the fields of [`base`] with the given defaults.
pub(super) fn base_with(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    Defaults { theta, rotated, can_be_partial, ffn_field, has_temperature }: Defaults,
) -> Result<ModelConfig, ConfigError> {
    let (_, _, head_dim) = heads(fields)?;
    let max_positions = fields.size("max_position_embeddings")?;
    let defaults =
        RopeDefaults { theta, head_dim, max_positions, can_be_partial, rotated, has_temperature };
    base_with_rope(family, name, fields, ffn_field, rope(fields, defaults)?)
}

/// Returns the hidden size, the number of heads and the size of a head.
pub(super) fn heads(fields: &ConfigFields<'_>) -> Result<(usize, usize, usize), ConfigError> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    match fields.optional_size("head_dim")? {
        Some(head_dim) => Ok((hidden, heads, head_dim)),
        None if hidden.is_multiple_of(heads) => Ok((hidden, heads, hidden / heads)),
        None => Err(ConfigError::HiddenByHeads { hidden, heads }),
    }
}

/// Parses the fields of [`base`] except those of the rope, which is given. `ffn_field` is the field
/// with the width of the dense feed-forward network.
pub(super) fn base_with_rope(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    ffn_field: &'static str,
    rope: Rope,
) -> Result<ModelConfig, ConfigError> {
    let (hidden, count, size) = heads(fields)?;
    let kv_count = fields.optional_size("num_key_value_heads")?.unwrap_or(count);
    let max = fields.size("max_position_embeddings")?;
    let (positions, heads) =
        (Positions { max, rope: Some(rope) }, Heads { hidden, count, kv_count, size });
    base_of_heads(family, name, fields, ffn_field, positions, heads)
}

/// Positions of all layers.
#[derive(Debug, Clone)]
pub(super) struct Positions {
    /// Number of positions before a rope is scaled.
    pub(super) max: usize,
    /// `None` if q and k are not rotated.
    pub(super) rope: Option<Rope>,
}

/// Width of the hidden state, and heads of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) hidden: usize,
    /// Number of heads of q.
    pub(super) count: usize,
    /// Number of heads of k and v.
    pub(super) kv_count: usize,
    /// Number of elements of a head.
    pub(super) size: usize,
}

/// Parses the fields of [`base_with_rope`] except those of the positions and of the heads, which
/// are given.
pub(super) fn base_of_heads(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    ffn_field: &'static str,
    Positions { max, rope }: Positions,
    heads: Heads,
) -> Result<ModelConfig, ConfigError> {
    Ok(ModelConfig {
        name: name.to_owned(),
        family,
        num_layers: check_layers(fields.size("num_hidden_layers")?)?,
        hidden_size: heads.hidden,
        num_heads: heads.count,
        num_kv_heads: heads.kv_count,
        head_dim: heads.size,
        ffn_size: fields.size(ffn_field)?,
        vocab_size: fields.size("vocab_size")?,
        max_positions: rope.as_ref().map_or(max, |rope| rope.scaled_max_positions(max)),
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: activation(fields)?,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(rope)),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    })
}

/// Returns the activation, which some files contain under two names.
fn activation(fields: &ConfigFields<'_>) -> Result<Activation, ConfigError> {
    let known = [("silu", Activation::Silu), ("swish", Activation::Silu)];
    let hint = " in this family (supported: silu)";
    fields.activation("hidden_activation", Activation::Silu, &known, hint)?;
    fields.activation("hidden_act", Activation::Silu, &known, hint)
}

/// Returns the single layout of a tensor of the LLaMA family.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    vec![pieces(config, id)]
}

/// Returns the pieces of a tensor of the LLaMA family; empty for a tensor that it does not have.
pub(super) fn pieces(config: &ModelConfig, id: TensorId) -> Vec<TensorSlice> {
    let name = match id {
        TensorId::Embedding => "model.embed_tokens.weight".to_owned(),
        TensorId::Head if config.tied_embeddings => "model.embed_tokens.weight".to_owned(),
        TensorId::Head => "lm_head.weight".to_owned(),
        TensorId::FinalNorm { part: TensorPart::Gain } => "model.norm.weight".to_owned(),
        TensorId::Layer { layer, op, part } => match layer_tensor(op, part) {
            Some(tensor) => format!("model.layers.{layer}.{tensor}"),
            None => return Vec::new(),
        },
        TensorId::Positions
        | TensorId::PerLayerTable
        | TensorId::PerLayerProjection { .. }
        | TensorId::JoinHidden { .. }
        | TensorId::FinalNorm { .. } => return Vec::new(),
    };
    whole(config, id, name)
}

/// Returns a single piece that is a whole tensor of the checkpoint.
pub(super) fn whole(config: &ModelConfig, id: TensorId, name: String) -> Vec<TensorSlice> {
    let piece = id.expected_shape(config).map(|shape| match shape {
        (1, count) if id.is_vector() => TensorSlice::whole(name, &[count]),
        (rows, columns) => TensorSlice::whole(name, &[rows, columns]),
    });
    piece.into_iter().collect()
}

fn layer_tensor(op: Op, part: TensorPart) -> Option<String> {
    let module = match (op, part) {
        (Op::Q, TensorPart::Gain) => "self_attn.q_norm",
        (Op::K, TensorPart::Gain) => "self_attn.k_norm",
        (Op::Norm0, _) => "input_layernorm",
        (Op::Q, _) => "self_attn.q_proj",
        (Op::K, _) => "self_attn.k_proj",
        (Op::V, _) => "self_attn.v_proj",
        (Op::Out, _) => "self_attn.o_proj",
        (Op::Norm1, _) => "post_attention_layernorm",
        (Op::Gate, _) => "mlp.gate_proj",
        (Op::Up, _) => "mlp.up_proj",
        (Op::Down, _) => "mlp.down_proj",
        _ => return None,
    };
    Some(match part {
        TensorPart::Bias => format!("{module}.bias"),
        TensorPart::Gain | TensorPart::Matrix => format!("{module}.weight"),
    })
}
