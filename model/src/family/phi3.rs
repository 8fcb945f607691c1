//! Phi-3, Phi-4 and Phi-4-mini: LLaMA with q, k and v in one tensor, and gate and up in another.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::llama;
use super::tensors::TensorSlice;
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Phi3ForCausalLM", model_type: "phi3", config }],
    |config, id| vec![pieces(config, id)],
    GgufFamily { can_rotate_part: true, ..GgufFamily::named(&["phi3"]) },
);

/// Parses `Phi3ForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = llama::base_with(
        Family::Phi3,
        name,
        fields,
        llama::Defaults { can_be_partial: true, ..llama::Defaults::of(10_000.0) },
    )?;
    for field in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        fields.only(field, &Value::Bool(false))?;
    }
    for field in ["full_attn_mod", "interpolate_factor"] {
        fields.only(field, &Value::from(1))?;
    }
    // Read together with the rope if that depends on it.
    fields.present("original_max_position_embeddings");
    let window = fields.optional_size("sliding_window")?;
    model.layers = Layers::uniform(LayerKind { window, ..model.layers.kind(0).clone() });
    Ok(model)
}

/// Returns the pieces of a tensor.
pub(super) fn pieces(config: &ModelConfig, id: TensorId) -> Vec<TensorSlice> {
    let TensorId::Layer { layer, op, part: TensorPart::Matrix } = id else {
        return llama::pieces(config, id);
    };
    let (q, kv, ffn) = (config.q_size(), config.kv_size(), config.ffn_size);
    let (module, first_row, rows, all) = match op {
        Op::Q => ("self_attn.qkv_proj", 0, q, q + 2 * kv),
        Op::K => ("self_attn.qkv_proj", q, kv, q + 2 * kv),
        Op::V => ("self_attn.qkv_proj", q + kv, kv, q + 2 * kv),
        Op::Gate => ("mlp.gate_up_proj", 0, ffn, 2 * ffn),
        Op::Up => ("mlp.gate_up_proj", ffn, ffn, 2 * ffn),
        _ => return llama::pieces(config, id),
    };
    let hidden = config.hidden_size;
    let name = format!("model.layers.{layer}.{module}.weight");
    vec![TensorSlice::whole(name, &[all, hidden]).rows_from(first_row, rows)]
}
