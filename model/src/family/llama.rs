//! LLaMA: RMS norm, rotary positions, grouped KV heads, gated feed-forward. Mistral and Qwen2 are
//! this with small changes and the same tensor names.

use crate::config::{Activation, Family, ModelConfig, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, Fields};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{Part, TensorId};

/// `LlamaForCausalLM`: `attention_bias` is for all four attention linears, `mlp_bias` for the three
/// of the feed-forward network.
pub(super) fn config(name: &str, fields: &Fields<'_>) -> Result<ModelConfig, ConfigError> {
    let attention_bias = fields.flag("attention_bias", false)?;
    Ok(ModelConfig {
        qkv_bias: attention_bias,
        out_bias: attention_bias,
        ffn_bias: fields.flag("mlp_bias", false)?,
        ..base(Family::Llama, name, fields)?
    })
}

/// What LLaMA, Mistral and Qwen2 share: no biases, no window, embeddings untied unless said.
pub(super) fn base(
    family: Family,
    name: &str,
    fields: &Fields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let head_dim = match fields.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(ConfigError::HiddenByHeads { hidden, heads }),
    };
    let activations = [("silu", Activation::Silu), ("swish", Activation::Silu)];
    Ok(ModelConfig {
        name: name.to_owned(),
        family,
        num_layers: check_layers(fields.size("num_hidden_layers")?)?,
        hidden_size: hidden,
        num_heads: heads,
        num_kv_heads: fields.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn_size: fields.size("intermediate_size")?,
        vocab_size: fields.size("vocab_size")?,
        max_positions: fields.size("max_position_embeddings")?,
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: fields.activation(
            "hidden_act",
            Activation::Silu,
            &activations,
            " in this family (supported: silu)",
        )?,
        learned_positions: None,
        layers: Layers::alike(LayerKind::dense(Some(fields.rope()?))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: fields.flag("tie_word_embeddings", false)?,
        qk_norm: None,
        post_norms: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    })
}

/// Names of the LLaMA family's tensors.
pub(super) fn tensor_names(config: &ModelConfig, id: TensorId) -> Vec<String> {
    let name = match id {
        TensorId::Embedding => "model.embed_tokens.weight".to_owned(),
        TensorId::Head if config.tied_embeddings => "model.embed_tokens.weight".to_owned(),
        TensorId::Head => "lm_head.weight".to_owned(),
        TensorId::FinalNorm { part: Part::Gain } => "model.norm.weight".to_owned(),
        TensorId::Layer { layer, op, part } => match layer_tensor(op, part) {
            Some(tensor) => format!("model.layers.{layer}.{tensor}"),
            None => return Vec::new(),
        },
        TensorId::Positions | TensorId::FinalNorm { .. } => return Vec::new(),
    };
    vec![name]
}

fn layer_tensor(op: Op, part: Part) -> Option<String> {
    let module = match op {
        Op::Norm0 => "input_layernorm",
        Op::Q => "self_attn.q_proj",
        Op::K => "self_attn.k_proj",
        Op::V => "self_attn.v_proj",
        Op::Out => "self_attn.o_proj",
        Op::Norm1 => "post_attention_layernorm",
        Op::Gate => "mlp.gate_proj",
        Op::Up => "mlp.up_proj",
        Op::Down => "mlp.down_proj",
        _ => return None,
    };
    let norm = matches!(op, Op::Norm0 | Op::Norm1);
    match part {
        Part::Gain if norm => Some(format!("{module}.weight")),
        Part::Matrix if !norm => Some(format!("{module}.weight")),
        Part::Bias if !norm => Some(format!("{module}.bias")),
        _ => None,
    }
}
