//! Hunyuan 3 (Hy3): a norm of each head of q and k, and experts that are selected by the sigmoids
//! of their logits and a bias, with a shared expert and a dense first layer.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::sigmoid_router::{RENORMALISED, SHARED};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertSelection, Experts};

/// Default rope base.
const THETA: f64 = 11_158_840.0;
/// Default factor of the experts' weights.
const SCALE: f64 = 2.826;
/// Default number of first layers without experts.
const DENSE: usize = 1;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "HYV3ForCausalLM", model_type: "hy_v3", config }],
    expert_tensors::layouts,
    GgufFamily::NONE,
);

/// Parses `HYV3ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::HyV3, name, fields, llama::Defaults::of(THETA))?;
    fields.only("mlp_bias", &Value::Bool(false))?;
    // Sums of experts and shared expert are f32 in any case.
    fields.flag("enable_moe_fp32_combine", true)?;
    let bias = fields.flag("attention_bias", false)?;
    let model =
        ModelConfig { qkv_bias: bias, out_bias: bias, qk_norm: Some(QkNorm::PerHead), ..model };
    let ffn_size = fields.size("moe_intermediate_size")?;
    let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
    let experts = Experts {
        selection: ExpertSelection {
            bias: true,
            groups: None,
            scale: fields.positive("router_scaling_factor")?.unwrap_or(SCALE) as f32,
            is_f32: true,
        },
        ..Experts::new(count, per_token, ffn_size, RENORMALISED)
    };
    let shared = experts::shared_ffn_size(fields, "num_shared_experts", ffn_size)?;
    let is_dense = experts::dense_layers(fields, model.num_layers, DENSE)?;
    let shared = shared.map(|ffn_size| (ffn_size, SHARED));
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}
