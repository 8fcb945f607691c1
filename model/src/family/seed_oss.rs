//! Seed-OSS: LLaMA with biases of q, k and v.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::llama;
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::ops::Op;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "SeedOssForCausalLM", model_type: "seed_oss", config }],
    llama::layouts,
    GgufFamily {
        stem: |op, _| (op == Op::Norm1).then_some("post_attention_norm"),
        ..GgufFamily::named(&["seed_oss"])
    },
);

/// Parses `SeedOssForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    Ok(ModelConfig {
        qkv_bias: fields.flag("attention_bias", true)?,
        out_bias: fields.flag("attention_out_bias", false)?,
        ffn_bias: fields.flag("mlp_bias", false)?,
        ..llama::base(Family::SeedOss, name, fields)?
    })
}
