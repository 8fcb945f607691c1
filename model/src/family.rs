//! What differs between decoder families outside the operation table: the meaning of `config.json`
//! and the names of tensors in a checkpoint. One file per family; `config_json`, `known` and
//! `source::safetensors` ask here.

pub mod llama;
pub mod mistral;
pub mod opt;
pub mod qwen2;

use crate::config::{Family, ModelConfig};
use crate::config_json::{ConfigError, Fields};
use crate::source::TensorId;

/// The values of `architectures` in `config.json` that are supported.
pub const ARCHITECTURES: [&str; 4] =
    ["LlamaForCausalLM", "MistralForCausalLM", "OPTForCausalLM", "Qwen2ForCausalLM"];

/// The architecture of a `model_type`, for files that name only that.
pub fn architecture_of_type(model_type: &str) -> Option<&'static str> {
    match model_type {
        "llama" => Some("LlamaForCausalLM"),
        "mistral" => Some("MistralForCausalLM"),
        "opt" => Some("OPTForCausalLM"),
        "qwen2" => Some("Qwen2ForCausalLM"),
        _ => None,
    }
}

/// The configuration of an architecture from its fields; begin and end tokens are left empty.
pub(crate) fn config(
    architecture: &str,
    name: &str,
    fields: &Fields<'_>,
) -> Result<ModelConfig, ConfigError> {
    match architecture {
        "LlamaForCausalLM" => llama::config(name, fields),
        "MistralForCausalLM" => mistral::config(name, fields),
        "OPTForCausalLM" => opt::config(name, fields),
        "Qwen2ForCausalLM" => qwen2::config(name, fields),
        other => Err(ConfigError::Architecture { found: other.to_owned() }),
    }
}

/// The names under which a tensor may lie in a checkpoint, the usual one first. Empty when the
/// family has no such tensor.
pub fn tensor_names(config: &ModelConfig, id: TensorId) -> Vec<String> {
    match config.family {
        Family::Opt => opt::tensor_names(config, id),
        Family::Llama | Family::Mistral | Family::Qwen2 => llama::tensor_names(config, id),
    }
}
