//! Conversion of Hugging Face's `config.json` (and `generation_config.json`) to a [`ModelConfig`].
//!
//! `locate` calls it for a directory. This file contains the checks that all families share; the
//! meaning of a family's fields is defined in `family`. Features that the kernels cannot compute
//! exactly are refused by name here, and never approximated.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::ModelConfig;
use crate::config_bounds;
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_unknown;
use crate::experts::Experts;
use crate::family;
use crate::quantization::Quantization;
pub use crate::unknown_field::UnknownField;

/// Error for a context that exceeds a model's positions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    #[error("{model} was made for {max_positions} positions, but prompt + output is {positions}")]
    TooLong { model: String, max_positions: usize, positions: usize },
}

/// Checks that `positions` tokens (prompt + output) fit the model.
///
/// # Errors
/// More positions than the model supports.
pub fn check_context(config: &ModelConfig, positions: usize) -> Result<(), ContextError> {
    let max_positions = config.max_positions;
    if positions > max_positions {
        return Err(ContextError::TooLong { model: config.name.clone(), max_positions, positions });
    }
    Ok(())
}

/// A model's configuration and the unknown fields of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedConfig {
    pub model: ModelConfig,
    /// Unknown fields that were accepted.
    pub unknown_fields: Vec<UnknownField>,
}

/// Reads `config.json` and, if present, `generation_config.json` from a model's directory.
///
/// # Errors
/// Files that cannot be read, or a model that Tandem cannot run.
pub fn load(directory: &Path, name: &str) -> Result<ModelConfig, ConfigError> {
    load_with_unknown(directory, name).map(|parsed| parsed.model)
}

/// Reads the files of [`load`] and returns unknown fields too.
///
/// # Errors
/// See [`load`].
pub fn load_with_unknown(directory: &Path, name: &str) -> Result<ParsedConfig, ConfigError> {
    let config = read_object(&directory.join("config.json"))?;
    let generation_path = directory.join("generation_config.json");
    let generation =
        if generation_path.is_file() { read_object(&generation_path)? } else { Map::new() };
    parse_with_unknown(name, &config, &generation)
}

fn read_object(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let shown = || path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Io { path: shown(), source })?;
    serde_json::from_str(&text)
        .map_err(|error| ConfigError::Json { path: shown(), reason: error.to_string() })
}

/// Parses the configuration in two JSON objects. Token ids that begin and end a text are taken from
/// `generation` (empty if there is none) if it contains them, else from `config`.
///
/// # Errors
/// Missing or impossible values, or a model that Tandem cannot run.
pub fn parse(
    name: &str,
    config: &Map<String, Value>,
    generation: &Map<String, Value>,
) -> Result<ModelConfig, ConfigError> {
    parse_with_unknown(name, config, generation).map(|parsed| parsed.model)
}

/// Parses the objects of [`parse`] and returns unknown fields too.
///
/// # Errors
/// See [`parse`].
pub fn parse_with_unknown(
    name: &str,
    config: &Map<String, Value>,
    generation: &Map<String, Value>,
) -> Result<ParsedConfig, ConfigError> {
    let fields = ConfigFields::new(config);
    let architecture = family::architecture(&fields)?;
    refuse_foreign_storage(&fields)?;
    let mut model = (architecture.config)(name, &fields)?;
    let generation = ConfigFields::new(generation);
    let ids = |field| first_of(|fields| fields.token_ids(field), &generation, &fields);
    // The ids of a multimodal model's text may be stored in its nested text configuration only.
    model.bos_token_id = ids("bos_token_id")?.first().copied().or(model.bos_token_id);
    let ends = ids("eos_token_id")?;
    if !ends.is_empty() {
        model.eos_token_ids = ends;
    }
    check(&model)?;
    let mut unknown_fields = fields.take_unknown();
    unknown_fields.extend(config_unknown::check(&fields)?);
    Ok(ParsedConfig { model, unknown_fields })
}

fn first_of(
    read: impl Fn(&ConfigFields<'_>) -> Result<Vec<u32>, ConfigError>,
    generation: &ConfigFields<'_>,
    config: &ConfigFields<'_>,
) -> Result<Vec<u32>, ConfigError> {
    let found = read(generation)?;
    if found.is_empty() { read(config) } else { Ok(found) }
}

/// Refuses checkpoints whose storage of matrices `source::safetensors` cannot read, before any file
/// is opened.
fn refuse_foreign_storage(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    // The one within a multimodal model's text is checked when its files are opened.
    let outer = |name: &str| (name != "text_config").then(|| fields.present(name)).flatten();
    Quantization::parse_fields(outer).map_err(|error| ConfigError::Unsupported {
        what: error.to_string(),
        hint: "; use the unquantised checkpoint, one in fp8, mxfp4, compressed-tensors, AWQ or \
               GPTQ with 4 bits in order, or a GGUF file",
    })?;
    let stored = ["dtype", "torch_dtype"].into_iter().find_map(|key| fields.text(key));
    match stored.map(|dtype| dtype.trim_start_matches("torch.")) {
        None | Some("bfloat16" | "float16" | "float32" | "auto") => Ok(()),
        Some(other) => Err(ConfigError::Unsupported {
            what: format!("a checkpoint stored as {other}"),
            hint: " (supported: bfloat16, float16, float32)",
        }),
    }
}

/// Checks the constraints that apply to all families.
fn check(model: &ModelConfig) -> Result<(), ConfigError> {
    config_bounds::check(model)?;
    for model in model.kind_models() {
        let (heads, kv_heads) = (model.num_heads, model.num_kv_heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::HeadsByKvHeads { heads, kv_heads });
        }
        if !model.head_dim.is_multiple_of(2) {
            return Err(ConfigError::OddHeadDim { head_dim: model.head_dim });
        }
    }
    if let Some(inputs) =
        model.features.per_layer_inputs.filter(|i| i.vocab_size < model.vocab_size)
    {
        let value = Value::from(inputs.vocab_size);
        return Err(wrong("vocab_size_per_layer_input", &value, "at least vocab_size"));
    }
    if let Some(Experts { per_token, count, .. }) = model.experts.filter(|e| e.per_token > e.count)
    {
        return Err(ConfigError::ExpertsPerToken { per_token, count });
    }
    if let Some((experts, groups)) =
        model.experts.and_then(|experts| Some((experts, experts.selection.groups?)))
        && let Some(expected) = groups.error(experts.count, experts.per_token)
    {
        return Err(wrong("n_group", &Value::from(groups.count), expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
