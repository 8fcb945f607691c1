//! Differences between decoder families outside the operation table: the meaning of `config.json`
//! and the location of tensors in a checkpoint. Each family has its own file with a
//! [`FamilyDescription`]; the list of families is in `registry`. The callers are `config_json`,
//! `source::safetensors` and `source::gguf`.

mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod description;
mod dots1;
mod ernie4_5_moe;
mod expert_tensors;
mod experts;
mod gemma3;
pub(crate) mod gemma4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod hy_v3;
mod kimi_linear;
pub(crate) mod latent_attention;
mod layer_types;
mod lfm2;
mod llama;
mod mamba_fields;
mod mamba_tensors;
mod minimax_m2;
mod mistral;
mod mistral4;
mod mixtral;
pub(crate) mod nemotron_h;
mod nested;
mod olmo2;
mod olmoe;
mod opt;
mod per_layer_config;
mod phi3;
mod prediction;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_next;
mod seed_oss;
mod sigmoid_router;
mod smollm3;
mod step3p5;
mod tensors;

pub(crate) use description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
pub use tensors::{Layouts, TensorSlice};

use crate::architecture::missing_features;
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::hidden_states::HiddenStates;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

macro_rules! descriptions {
    ($($family:ident => $module:ident::$constant:ident,)*) => {
        /// All families.
        const FAMILIES: &[Family] = &[$(Family::$family),*];

        /// Returns what is specific to a family.
        pub(crate) fn description(family: Family) -> &'static FamilyDescription {
            match family {
                $(Family::$family => {
                    static DESCRIPTION: FamilyDescription = $module::$constant;
                    &DESCRIPTION
                })*
            }
        }
    };
}
for_each_family!(descriptions);

/// Returns the families with their descriptions.
pub(crate) fn descriptions() -> impl Iterator<Item = (Family, &'static FamilyDescription)> {
    FAMILIES.iter().map(|family| (*family, description(*family)))
}

/// Returns the supported values of `architectures` in `config.json`, in ascending order.
pub fn architectures() -> Vec<&'static str> {
    let all = descriptions().flat_map(|(_, description)| description.architectures);
    let mut names: Vec<&str> = all.map(|architecture| architecture.name).collect();
    names.sort_unstable();
    names
}

/// Returns the architecture named by `architectures` or, in files without that field, by
/// `model_type`.
///
/// # Errors
/// An architecture that is not supported.
pub(crate) fn architecture(
    fields: &ConfigFields<'_>,
) -> Result<&'static Architecture, ConfigError> {
    let listed = fields.present("architectures").and_then(|list| list.get(0)?.as_str());
    let model_type = fields.text("model_type").unwrap_or("(none named)");
    let mut all = descriptions().flat_map(|(_, description)| description.architectures);
    // A model without its head, as models of embeddings are stored.
    let whole = listed.and_then(|name| Some(format!("{}ForCausalLM", name.strip_suffix("Model")?)));
    let found = match listed {
        Some(name) => all.find(|architecture| {
            architecture.name == name || whole.as_deref() == Some(architecture.name)
        }),
        None => all.find(|architecture| architecture.model_type == model_type),
    };
    found.ok_or_else(|| {
        let found = listed.unwrap_or(model_type).to_owned();
        let (lacking, supported) = (missing_features(&found), architectures().join(", "));
        ConfigError::Architecture { found, lacking, supported }
    })
}

/// Returns the possible layouts of a tensor in a checkpoint, the usual one first; empty if the
/// family has no such tensor.
pub fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    if id.expected_shape(config).is_none() {
        return Vec::new();
    }
    let family = description(config.family);
    if let HiddenStates::Joined { layer } = config.features.hidden_states {
        return prediction::layouts(family, config, id, layer);
    }
    let mut layouts = (family.layouts)(config, id);
    if family.is_multimodal {
        layouts.iter_mut().flatten().for_each(nested::add_multimodal_names);
        if id == TensorId::Head && !config.tied_embeddings {
            layouts.push(nested::multimodal_embedding(config));
        }
    }
    layouts
}

/// Returns the offset that is added to the gains of norms in a checkpoint to obtain the actual
/// factors.
pub fn gain_offset(config: &ModelConfig, id: TensorId) -> f32 {
    let op = match id {
        TensorId::FinalNorm { part: TensorPart::Gain } => Op::FinalNorm,
        TensorId::Layer { part: TensorPart::Gain, op, .. } => op,
        TensorId::JoinHidden { part: TensorPart::Gain } => Op::JoinHidden,
        _ => return 0.0,
    };
    if (description(config.family).lacks_one)(op) { 1.0 } else { 0.0 }
}
