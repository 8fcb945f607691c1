//! OPT: LayerNorm before each half, learned positions with an offset of 2, biases and ReLU.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::llama;
use super::tensors::TensorSlice;
use crate::config::{Activation, Family, Features, ModelConfig, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Number of rows that precede position 0 in the position table, a remnant of padding ids.
pub(crate) const POSITION_OFFSET: usize = 2;
/// Epsilon of `torch.nn.LayerNorm`, which OPT's configuration does not contain.
pub(crate) const NORM_EPS: f32 = 1e-5;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "OPTForCausalLM", model_type: "opt", config }],
    |config, id| vec![pieces(config, id)],
    GgufFamily::NONE,
);

/// Parses `OPTForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let (hidden, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    refuse_variants(hidden, fields)?;
    if !hidden.is_multiple_of(heads) {
        return Err(ConfigError::HiddenByHeads { hidden, heads });
    }
    let bias = fields.flag("enable_bias", true)?;
    let activations = [("relu", Activation::Relu), ("gelu", Activation::Gelu)];
    Ok(ModelConfig {
        name: name.to_owned(),
        family: Family::Opt,
        num_layers: check_layers(fields.size("num_hidden_layers")?)?,
        hidden_size: hidden,
        num_heads: heads,
        num_kv_heads: heads,
        head_dim: hidden / heads,
        ffn_size: fields.size("ffn_dim")?,
        vocab_size: fields.size("vocab_size")?,
        max_positions: fields.size("max_position_embeddings")?,
        norm_eps: NORM_EPS,
        activation: fields.activation(
            "activation_function",
            Activation::Relu,
            &activations,
            " in this family (supported: relu, gelu)",
        )?,
        learned_positions: Some(POSITION_OFFSET),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        qkv_bias: bias,
        out_bias: bias,
        ffn_bias: bias,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
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

/// Refuses variants with different arithmetic: OPT-350m and a few fine-tuned models.
fn refuse_variants(hidden: usize, fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    let refuse = |what: String, hint| Err(ConfigError::Unsupported { what, hint });
    if !fields.flag("do_layer_norm_before", true)? {
        let what = "an OPT with its norms after each half (do_layer_norm_before false), which is \
                    OPT-350m,";
        return refuse(what.to_owned(), "; every other published OPT is");
    }
    let projected = fields.optional_size("word_embed_proj_dim")?.unwrap_or(hidden);
    if projected != hidden {
        let what = format!(
            "an OPT with projected embeddings (word_embed_proj_dim {projected}, hidden_size \
             {hidden}), as OPT-350m has,"
        );
        return refuse(what, "; every other published OPT is");
    }
    if !fields.flag("layer_norm_elementwise_affine", true)? {
        return refuse("an OPT whose norms have no gains".to_owned(), "");
    }
    if fields.flag("_remove_final_layer_norm", false)? {
        return refuse("an OPT without its final norm".to_owned(), "");
    }
    Ok(())
}

/// Returns the pieces of a tensor of OPT. Checkpoints saved from the bare model lack the prefix
/// `model.`.
pub(super) fn pieces(config: &ModelConfig, id: TensorId) -> Vec<TensorSlice> {
    let tensor = match id {
        TensorId::Embedding => "embed_tokens.weight".to_owned(),
        TensorId::Head if config.tied_embeddings => "embed_tokens.weight".to_owned(),
        TensorId::Head => return llama::whole(config, id, "lm_head.weight".to_owned()),
        TensorId::Positions => "embed_positions.weight".to_owned(),
        TensorId::FinalNorm { part: TensorPart::Gain } => "final_layer_norm.weight".to_owned(),
        TensorId::FinalNorm { part: TensorPart::Bias } => "final_layer_norm.bias".to_owned(),
        TensorId::FinalNorm { part: TensorPart::Matrix }
        | TensorId::PerLayerTable
        | TensorId::PerLayerProjection { .. }
        | TensorId::JoinHidden { .. } => return Vec::new(),
        TensorId::Layer { layer, op, part } => match layer_tensor(op, part) {
            Some(tensor) => format!("layers.{layer}.{tensor}"),
            None => return Vec::new(),
        },
    };
    let mut pieces = llama::whole(config, id, format!("model.decoder.{tensor}"));
    pieces.iter_mut().for_each(|piece| piece.names.push(format!("decoder.{tensor}")));
    pieces
}

fn layer_tensor(op: Op, part: TensorPart) -> Option<String> {
    let module = match op {
        Op::Norm0 => "self_attn_layer_norm",
        Op::Q => "self_attn.q_proj",
        Op::K => "self_attn.k_proj",
        Op::V => "self_attn.v_proj",
        Op::Out => "self_attn.out_proj",
        Op::Norm1 => "final_layer_norm",
        Op::Fc0 => "fc1",
        Op::Fc1 => "fc2",
        _ => return None,
    };
    let norm = matches!(op, Op::Norm0 | Op::Norm1);
    match part {
        TensorPart::Gain if norm => Some(format!("{module}.weight")),
        TensorPart::Matrix if !norm => Some(format!("{module}.weight")),
        TensorPart::Bias => Some(format!("{module}.bias")),
        _ => None,
    }
}
