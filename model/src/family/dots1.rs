//! dots.llm1: a norm of each head of q and k, and DeepSeek's router with shared experts and dense
//! first layers.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use super::{expert_tensors, experts, layer_types, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};

/// Default window, and the default first layer that has it.
const WINDOW: usize = 4096;
const FIRST_WINDOWED: usize = 62;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Dots1ForCausalLM", model_type: "dots1", config }],
    expert_tensors::layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::PerHead),
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        keys: sigmoid_router::GGUF_KEYS,
        ..GgufFamily::named(&["dots1"])
    },
);

/// Parses `Dots1ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let bias = fields.flag("attention_bias", false)?;
    let model = ModelConfig {
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: Some(QkNorm::PerHead),
        ..llama::base(Family::Dots1, name, fields)?
    };
    let model = ModelConfig { layers: windowed_layers(&model, fields)?, ..model };
    let router = SigmoidRouter { dense_layers: 0, renormalise: false };
    router.add_to(model, fields)
}

/// Returns layers with windows according to `layer_types` if present, else from
/// `max_window_layers`.
fn windowed_layers(model: &ModelConfig, fields: &ConfigFields<'_>) -> Result<Layers, ConfigError> {
    let window = match fields.has("sliding_window") {
        true => fields.optional_size("sliding_window")?,
        false => Some(WINDOW),
    };
    let first = experts::count_or(fields, "max_window_layers", FIRST_WINDOWED)?;
    let windowed = match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, model.num_layers)?,
        None => (0..model.num_layers).map(|layer| layer >= first).collect(),
    };
    let kind = model.layers.kind(0);
    Ok(Layers::from_kinds(
        windowed
            .into_iter()
            .map(|windowed| LayerKind { window: window.filter(|_| windowed), ..kind.clone() }),
    ))
}
