//! OLMo 2 and 3: a norm after each half of a layer instead of one before it, norms over all heads
//! of q together and over all heads of k together, and in OLMo 3 windows in three of four layers.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::tensors::{Layouts, TensorSlice};
use super::{layer_types, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_rope::{RopeDefaults, rope, rope_of_type};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::rope::{Rope, RopeScaling};
use crate::source::{TensorId, TensorPart};

/// Default rope bases.
const THETA: f64 = 10_000.0;
const THETA_OF_3: f64 = 500_000.0;
/// Default epsilon of norms.
const NORM_EPS: f64 = 1e-5;
/// Default window of OLMo 3.
const WINDOW: usize = 4096;
/// Interval of OLMo 3's layers without a window.
const PATTERN: usize = 4;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[
        Architecture { name: "Olmo2ForCausalLM", model_type: "olmo2", config },
        Architecture { name: "Olmo3ForCausalLM", model_type: "olmo3", config: config_of_3 },
    ],
    layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::FullWidth),
        has_pre_norms: false,
        has_post_norms: true,
        ..GgufFamily::named(&["olmo2"])
    },
);

/// Parses `Olmo2ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::Olmo2, name, fields, llama::Defaults::of(THETA))?;
    norms_and_biases(model, fields)
}

/// Parses `Olmo3ForCausalLM`. A scaling of the rope applies to the layers without a window.
fn config_of_3(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let (_, _, head_dim) = llama::heads(fields)?;
    let defaults = RopeDefaults {
        theta: THETA_OF_3,
        head_dim,
        max_positions: fields.size("max_position_embeddings")?,
        can_be_partial: false,
        rotated: 1.0,
        has_temperature: false,
    };
    let by_type = |kind| rope_of_type(fields, kind, defaults);
    let (local, global) = match by_type("sliding_attention")? {
        Some(local) => {
            let missing = ConfigError::Missing { field: "rope_parameters.full_attention" };
            (local, by_type("full_attention")?.ok_or(missing)?)
        }
        None => {
            let global = rope(fields, defaults)?;
            (Rope::new(global.theta, RopeScaling::None), global)
        }
    };
    let model = llama::base_with_rope(Family::Olmo2, name, fields, "intermediate_size", global)?;
    let window = match fields.has("sliding_window") {
        true => fields.optional_size("sliding_window")?,
        false => Some(WINDOW),
    };
    let windowed = match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, model.num_layers)?,
        None => (0..model.num_layers).map(|layer| (layer + 1) % PATTERN != 0).collect(),
    };
    let kind = model.layers.kind(0);
    let layers = Layers::from_kinds(windowed.into_iter().map(|windowed| match windowed {
        true => LayerKind { window, ..LayerKind::dense(Some(local.clone())) },
        false => kind.clone(),
    }));
    norms_and_biases(ModelConfig { layers, ..model }, fields)
}

fn norms_and_biases(
    model: ModelConfig,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let bias = fields.flag("attention_bias", false)?;
    Ok(ModelConfig {
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(NORM_EPS) as f32,
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: Some(QkNorm::FullWidth),
        pre_norms: false,
        post_norms: true,
        ..model
    })
}

/// Returns the layouts of a tensor.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let TensorId::Layer { layer, op, part: TensorPart::Gain } = id else {
        return llama::layouts(config, id);
    };
    let module = match op {
        Op::PostNorm0 => "post_attention_layernorm",
        Op::PostNorm1 => "post_feedforward_layernorm",
        _ => return llama::layouts(config, id),
    };
    let name = format!("model.layers.{layer}.{module}.weight");
    vec![vec![TensorSlice::whole(name, &[config.hidden_size])]]
}
