//! MiniMax-M2 to M2.7: experts that are selected by the sigmoids of their logits and a bias, a norm
//! over all heads of q together and over all heads of k together, and a rotation of a part of each
//! head.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};

/// Default rope base.
const THETA: f64 = 5e6;
const SCORING: ExpertScoring = ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(0.0) };

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "MiniMaxM2ForCausalLM", model_type: "minimax_m2", config }],
    expert_tensors::mixtral_layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::FullWidth),
        can_rotate_part: true,
        experts: Some(GgufExperts::biased(SCORING)),
        ..GgufFamily::named(&["minimax-m2"])
    },
);

/// Parses `MiniMaxM2ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    refuse_variants(fields)?;
    let head_dim = fields.size("head_dim")?;
    // Released files have a number of elements instead of a fraction.
    let rotated = fields.optional_size("rotary_dim")?.unwrap_or(head_dim);
    let defaults = llama::Defaults {
        rotated: rotated as f64 / head_dim as f64,
        can_be_partial: true,
        ..llama::Defaults::of(THETA)
    };
    let model = llama::base_with(Family::MiniMaxM2, name, fields, defaults)?;
    let experts = Experts {
        selection: ExpertSelection { bias: true, is_f32: true, ..ExpertSelection::default() },
        ..Experts::new(
            experts::count(fields)?,
            experts::per_token(fields)?,
            model.ffn_size,
            SCORING,
        )
    };
    let is_dense = vec![false; model.num_layers];
    let model = ModelConfig { qk_norm: Some(QkNorm::FullWidth), ..model };
    Ok(experts::with_experts(model, experts, None, &is_dense))
}

/// Refuses values of the released files' fields that other models of the series have.
fn refuse_variants(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    fields.only("scoring_func", &Value::from("sigmoid"))?;
    fields.only("use_routing_bias", &Value::Bool(true))?;
    fields.only("use_qk_norm", &Value::Bool(true))?;
    fields.only("qk_norm_type", &Value::from("per_layer"))?;
    fields.only("shared_intermediate_size", &Value::from(0))?;
    // Layers for multi-token prediction, which is not supported.
    for field in ["use_mtp", "num_mtp_modules", "mtp_transformer_layers"] {
        fields.present(field);
    }
    // 1 for each layer that attends to all positions.
    if let Some(kinds) = fields.present("attn_type_list") {
        let all_attend = kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == 1));
        if !all_attend {
            let what = format!("attn_type_list = {kinds}");
            return Err(ConfigError::Unsupported { what, hint: "" });
        }
    }
    Ok(())
}
