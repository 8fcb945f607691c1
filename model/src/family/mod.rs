//! Differences between decoder families outside the operation table: the meaning of `config.json`
//! and the location of tensors in a checkpoint. Each family has its own file. The callers are
//! `config_json` and `source::safetensors`.

mod expert_tensors;
mod experts;
mod gemma3;
mod gpt_oss;
mod granite;
mod layer_types;
pub mod llama;
pub mod mistral;
mod mixtral;
mod olmoe;
pub mod opt;
mod phi3;
pub mod qwen2;
mod qwen3;
mod qwen3_next;
mod smollm3;
mod tensors;

use serde_json::Value;

pub use tensors::{Layouts, TensorSlice};

use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_unknown;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Parses the configuration of an architecture from its fields. Begin and end tokens are left
/// empty, except for those in the nested text configuration of a multimodal model.
pub(crate) fn config(
    architecture: &str,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    match architecture {
        "Gemma3ForCausalLM" => gemma3::config(name, fields),
        "Gemma3ForConditionalGeneration" => {
            text_config("gemma3_text", fields, |text| gemma3::config(name, text))
        }
        "GptOssForCausalLM" => gpt_oss::config(name, fields),
        "GraniteForCausalLM" => granite::config(name, fields),
        "GraniteMoeForCausalLM" => granite::config_with_experts(name, fields),
        "LlamaForCausalLM" => llama::config(name, fields),
        "Mistral3ForConditionalGeneration" => {
            text_config("mistral", fields, |text| mistral::config(name, text))
        }
        "MistralForCausalLM" => mistral::config(name, fields),
        "MixtralForCausalLM" => mixtral::config(name, fields),
        "OPTForCausalLM" => opt::config(name, fields),
        "OlmoeForCausalLM" => olmoe::config(name, fields),
        "Phi3ForCausalLM" => phi3::config(name, fields),
        "Qwen2ForCausalLM" => qwen2::config(name, fields),
        "Qwen3ForCausalLM" => qwen3::config(name, fields),
        "Qwen3MoeForCausalLM" => qwen3::config_with_experts(name, fields),
        "Qwen3NextForCausalLM" => qwen3_next::next_config(name, fields),
        "Qwen3_5ForCausalLM" => qwen3_next::dense_config(name, fields),
        "Qwen3_5ForConditionalGeneration" => {
            text_config("qwen3_5_text", fields, |text| qwen3_next::dense_config(name, text))
        }
        "Qwen3_5MoeForCausalLM" => qwen3_next::moe_config(name, fields),
        "Qwen3_5MoeForConditionalGeneration" => {
            text_config("qwen3_5_moe_text", fields, |text| qwen3_next::moe_config(name, text))
        }
        "SmolLM3ForCausalLM" => smollm3::config(name, fields),
        other => Err(ConfigError::Architecture { found: other.to_owned() }),
    }
}

/// Words in the names of fields about image and audio input, which is not supported.
const IMAGE_FIELDS: [&str; 9] =
    ["audio", "boi", "eoi", "image", "mm", "multimodal", "projector", "video", "vision"];

/// Parses the text model of a multimodal model: its `text_config`, whose `model_type` must be the
/// given one.
fn text_config(
    model_type: &str,
    fields: &ConfigFields<'_>,
    config: impl FnOnce(&ConfigFields<'_>) -> Result<ModelConfig, ConfigError>,
) -> Result<ModelConfig, ConfigError> {
    fields.pass_over(|name| {
        name == "spatial_merge_size" || name.split('_').any(|word| IMAGE_FIELDS.contains(&word))
    });
    let Some(text) = fields.block("text_config") else {
        return Err(ConfigError::Missing { field: "text_config" });
    };
    text.only("model_type", &Value::from(model_type))?;
    let mut model = config(&text)?;
    // The outer field takes precedence if present. However, transformers 5 writes the default of
    // its class there even if the text's own field is false, and then decides by whether the
    // checkpoint has a head.
    let is_apart = text.present("tie_word_embeddings") == Some(&Value::Bool(false));
    let tied = fields.flag("tie_word_embeddings", model.tied_embeddings)?;
    model.tied_embeddings = tied && !is_apart;
    model.bos_token_id = text.token_ids("bos_token_id")?.first().copied();
    model.eos_token_ids = text.token_ids("eos_token_id")?;
    fields.add_unknown(config_unknown::check(&text)?);
    Ok(model)
}

/// Returns the possible layouts of a tensor in a checkpoint, the usual one first; empty if the
/// family has no such tensor.
pub fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    if id.expected_shape(config).is_none() {
        return Vec::new();
    }
    let mut layouts = match config.family {
        Family::Opt => vec![opt::pieces(config, id)],
        Family::Phi3 => vec![phi3::pieces(config, id)],
        Family::Gemma3 => vec![gemma3::pieces(config, id)],
        Family::GptOss => gpt_oss::layouts(config, id),
        Family::Mixtral | Family::Olmoe | Family::Qwen3Moe | Family::GraniteMoe => {
            expert_tensors::layouts(config, id)
        }
        Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => qwen3_next::layouts(config, id),
        Family::Llama
        | Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::SmolLm3
        | Family::Granite => vec![llama::pieces(config, id)],
    };
    const MULTIMODAL_FAMILIES: [Family; 4] =
        [Family::Gemma3, Family::Mistral, Family::Qwen35, Family::Qwen35Moe];
    if MULTIMODAL_FAMILIES.contains(&config.family) {
        layouts.iter_mut().flatten().for_each(add_multimodal_names);
        if id == TensorId::Head && !config.tied_embeddings {
            layouts.push(multimodal_embedding(config));
        }
    }
    layouts
}

/// Adds the names that the text's tensors have in the checkpoint of a multimodal model.
fn add_multimodal_names(piece: &mut TensorSlice) {
    let names = piece.names.clone();
    for name in names {
        piece.names.push(format!("language_model.{name}"));
        if let Some(inner) = name.strip_prefix("model.") {
            piece.names.push(format!("model.language_model.{inner}"));
        }
    }
}

/// Returns the embedding of a multimodal model, which serves as its head if the checkpoint has
/// none: if the fields of text and outer configuration differ, the configuration alone cannot
/// decide.
fn multimodal_embedding(config: &ModelConfig) -> Vec<TensorSlice> {
    let shape = [config.vocab_size, config.hidden_size];
    let mut piece =
        TensorSlice::whole("language_model.model.embed_tokens.weight".to_owned(), &shape);
    piece.names.push("model.language_model.embed_tokens.weight".to_owned());
    vec![piece]
}

/// Returns the offset that is added to the gains of norms in a checkpoint to obtain the actual
/// factors.
pub fn gain_offset(config: &ModelConfig, id: TensorId) -> f32 {
    let is_gain = matches!(
        id,
        TensorId::FinalNorm { part: TensorPart::Gain }
            | TensorId::Layer { part: TensorPart::Gain, .. }
    );
    // Operations with a gain that is not the gain of such a norm.
    let is_other =
        matches!(id, TensorId::Layer { op: Op::Delta | Op::DeltaConv | Op::SharedGate, .. });
    let lacks_one = match config.family {
        Family::Gemma3 => true,
        Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => !is_other,
        _ => false,
    };
    if lacks_one && is_gain { 1.0 } else { 0.0 }
}
