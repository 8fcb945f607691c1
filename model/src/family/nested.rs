//! Text models that are published as a part of multimodal models.

use serde_json::Value;

use super::tensors::TensorSlice;
use crate::config::ModelConfig;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_unknown;

/// Words in the names of fields about image and audio input, which is not supported.
const IMAGE_FIELDS: [&str; 13] = [
    "audio",
    "boa",
    "boi",
    "eoa",
    "eoi",
    "image",
    "media",
    "mm",
    "multimodal",
    "projection",
    "projector",
    "video",
    "vision",
];

/// Parses the text model of a multimodal model: its `text_config`, whose `model_type` must be the
/// given one.
pub(super) fn text_config(
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

/// Adds the names that the text's tensors have in the checkpoint of a multimodal model.
pub(super) fn add_multimodal_names(piece: &mut TensorSlice) {
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
pub(super) fn multimodal_embedding(config: &ModelConfig) -> Vec<TensorSlice> {
    let shape = [config.vocab_size, config.hidden_size];
    let mut piece =
        TensorSlice::whole("language_model.model.embed_tokens.weight".to_owned(), &shape);
    piece.names.push("model.language_model.embed_tokens.weight".to_owned());
    vec![piece]
}
