//! Gemma 3: a norm before and after each half of a layer, gains of 1 + w, GELU in the gate, a
//! scaled embedding, and five layers with a window and their own rope for each layer without a
//! window.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::tensors::TensorSlice;
use super::{layer_types, llama, nested};
use crate::config::{Activation, Family, Features, ModelConfig, QkNorm, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_rope::{RopeDefaults, rope, rope_of_type};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::rope::{Rope, RopeScaling};
use crate::source::{TensorId, TensorPart};

/// Default values of fields that published files leave out.
const HEADS: usize = 8;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 256;
const VOCABULARY: usize = 262_208;
const POSITIONS: usize = 131_072;
const WINDOW: usize = 4096;
const QUERY_SCALAR: f64 = 256.0;
const THETA: f64 = 1e6;
const LOCAL_THETA: f64 = 1e4;
/// Interval of the layers without a window.
const PATTERN: usize = 6;

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    lacks_one: |_| true,
    ..FamilyDescription::new(
        &[
            Architecture { name: "Gemma3ForCausalLM", model_type: "gemma3_text", config },
            Architecture {
                name: "Gemma3ForConditionalGeneration",
                model_type: "gemma3",
                config: |name, fields| {
                    nested::text_config("gemma3_text", fields, |text| config(name, text))
                },
            },
        ],
        |config, id| vec![pieces(config, id)],
        GgufFamily {
            activation: Activation::GeluTanh,
            has_post_norms: true,
            qk_norm: Some(QkNorm::PerHead),
            ..GgufFamily::named(&["gemma3"])
        },
    )
};

/// Parses `Gemma3ForCausalLM`, and the text model of `Gemma3ForConditionalGeneration`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let size = |field, default| -> Result<usize, ConfigError> {
        Ok(fields.optional_size(field)?.unwrap_or(default))
    };
    let hidden = fields.size("hidden_size")?;
    let num_layers = check_layers(fields.size("num_hidden_layers")?)?;
    let head_dim = size("head_dim", HEAD_DIM)?;
    let max_positions = size("max_position_embeddings", POSITIONS)?;
    refuse_variants(fields)?;
    let scalar = fields.positive("query_pre_attn_scalar")?.unwrap_or(QUERY_SCALAR);
    let activations = [("gelu_pytorch_tanh", Activation::GeluTanh)];
    let bias = fields.flag("attention_bias", false)?;
    Ok(ModelConfig {
        name: name.to_owned(),
        family: Family::Gemma3,
        num_layers,
        hidden_size: hidden,
        num_heads: size("num_attention_heads", HEADS)?,
        num_kv_heads: size("num_key_value_heads", KV_HEADS)?,
        head_dim,
        ffn_size: fields.size("intermediate_size")?,
        vocab_size: size("vocab_size", VOCABULARY)?,
        max_positions,
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: fields.activation(
            "hidden_activation",
            Activation::GeluTanh,
            &activations,
            " in this family (supported: gelu_pytorch_tanh)",
        )?,
        learned_positions: None,
        layers: layers(fields, num_layers, head_dim, max_positions)?,
        experts: None,
        qkv_bias: bias,
        out_bias: bias,
        ffn_bias: false,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        qk_norm: Some(QkNorm::PerHead),
        pre_norms: true,
        post_norms: true,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales {
            embedding: (hidden as f32).sqrt(),
            attention: Some(scalar.powf(-0.5) as f32),
            ..Scales::default()
        },
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    })
}

fn refuse_variants(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    // Some files contain two names of the activation; the newer one takes precedence.
    if fields.present("hidden_activation").is_none() {
        fields.only("hidden_act", &Value::from("gelu_pytorch_tanh"))?;
    }
    fields.present("hidden_act");
    fields.only("use_bidirectional_attention", &Value::Bool(false))?;
    for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = fields.positive(field)? {
            let what = format!("a Gemma with {field} = {cap}");
            return Err(ConfigError::Unsupported { what, hint: "" });
        }
    }
    Ok(())
}

fn layers(
    fields: &ConfigFields<'_>,
    num_layers: usize,
    head_dim: usize,
    max_positions: usize,
) -> Result<Layers, ConfigError> {
    let window = fields.optional_size("sliding_window")?.unwrap_or(WINDOW);
    let local_theta = fields.positive("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    let defaults = |theta| RopeDefaults {
        theta,
        head_dim,
        max_positions,
        can_be_partial: false,
        rotated: 1.0,
        has_temperature: false,
    };
    let by_type = |kind, theta| rope_of_type(fields, kind, defaults(theta));
    let (local, global) = match by_type("sliding_attention", local_theta)? {
        Some(local) => {
            let global = by_type("full_attention", THETA)?;
            let missing = ConfigError::Missing { field: "rope_parameters.full_attention" };
            (local, global.ok_or(missing)?)
        }
        None => (Rope::new(local_theta, RopeScaling::None), rope(fields, defaults(THETA))?),
    };
    let windowed = windowed_layers(fields, num_layers)?;
    Ok(Layers::from_kinds(windowed.into_iter().map(|windowed| match windowed {
        true => LayerKind { window: Some(window), ..LayerKind::dense(Some(local.clone())) },
        false => LayerKind::dense(Some(global.clone())),
    })))
}

/// Returns a flag per layer that is true if it has a window: according to `layer_types` if present,
/// else for all layers but every sixth or every `sliding_window_pattern`-th.
fn windowed_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let pattern = [
        fields.optional_size("sliding_window_pattern")?,
        fields.optional_size("_sliding_window_pattern")?,
    ];
    let pattern = pattern.into_iter().flatten().next().unwrap_or(PATTERN);
    let Some(types) = fields.present("layer_types") else {
        return Ok((0..layers).map(|layer| (layer + 1) % pattern != 0).collect());
    };
    layer_types::windowed(types, layers)
}

/// Returns the pieces of a tensor. The norms have different names than LLaMA's.
pub(super) fn pieces(config: &ModelConfig, id: TensorId) -> Vec<TensorSlice> {
    let TensorId::Layer { layer, op, part: TensorPart::Gain } = id else {
        return llama::pieces(config, id);
    };
    let module = match op {
        Op::PostNorm0 => "post_attention_layernorm",
        Op::Norm1 => "pre_feedforward_layernorm",
        Op::PostNorm1 => "post_feedforward_layernorm",
        _ => return llama::pieces(config, id),
    };
    vec![TensorSlice::whole(format!("model.layers.{layer}.{module}.weight"), &[config.hidden_size])]
}
