//! GLM-4.5, 4.6 and 4.7: experts that are selected by the sigmoids of their logits and a bias, a
//! shared expert, dense first layers, and a rotation of half of each head.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use super::{expert_tensors, llama, prediction};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::ops::Op;

/// Default rope base and fraction of each head that is rotated.
const THETA: f64 = 10_000.0;
const ROTATED: f64 = 0.5;
/// Default number of first layers without experts.
const DENSE_LAYERS: usize = 1;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Glm4MoeForCausalLM", model_type: "glm4_moe", config }],
    expert_tensors::layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::PerHead),
        qk_norm_is_optional: true,
        can_rotate_part: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        keys: sigmoid_router::GGUF_KEYS,
        stem: |op, _| (op == Op::Norm1).then_some("post_attention_norm"),
        ..GgufFamily::named(&["glm4moe"])
    },
);

/// Parses `Glm4MoeForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let defaults =
        llama::Defaults { rotated: ROTATED, can_be_partial: true, ..llama::Defaults::of(THETA) };
    let model = llama::base_with(Family::Glm4Moe, name, fields, defaults)?;
    let model = ModelConfig {
        qkv_bias: fields.flag("attention_bias", false)?,
        qk_norm: fields.flag("use_qk_norm", false)?.then_some(QkNorm::PerHead),
        ..model
    };
    let router = SigmoidRouter { dense_layers: DENSE_LAYERS, renormalise: true };
    prediction::with_layer(router.add_to(model, fields)?, fields, DENSE_LAYERS)
}
