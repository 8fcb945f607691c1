//! What differs between decoder families outside the operation table: the meaning of `config.json`
//! and the names of tensors in a checkpoint. One file per family; `config_json`, `known` and
//! `source::safetensors` ask here.

pub mod llama;
pub mod mistral;
pub mod opt;
pub mod qwen2;

use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, Fields};
use crate::source::TensorId;

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
