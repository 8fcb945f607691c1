//! Keys that would require computations that are not supported.

use super::keys::{ConfigError, Keys, wrong};
use crate::family::GgufFamily;

/// Numeric keys, the values that have no effect, and a description of these values.
const NUMBERS: &[(&str, &[f64], &str)] = &[
    ("attn_logit_softcapping", &[0.0], "a model whose scores are not capped"),
    ("final_logit_softcapping", &[0.0], "a model whose logits are not capped"),
    ("attention.clamp_kqv", &[0.0], "a model whose queries, keys and values are not clipped"),
    ("attention.max_alibi_bias", &[0.0], "a model without ALiBi positions"),
    ("attention.shared_kv_layers", &[0.0], "a model without shared caches"),
    ("attention.temperature_scale", &[0.0], "a model whose queries no position scales"),
    ("expert_group_count", &[0.0, 1.0], "a model whose experts are in no groups"),
    ("expert_group_used_count", &[0.0, 1.0], "a model whose experts are in no groups"),
    ("expert_shared_count", &[0.0], "a model without experts that every row passes"),
    ("expert_shared_feed_forward_length", &[0.0], "a model without experts that every row passes"),
    ("expert_weights_scale", &[0.0, 1.0], "a model that does not scale its experts' weights"),
    ("interleave_moe_layer_step", &[0.0, 1.0], "a model whose layers all have experts"),
    ("leading_dense_block_count", &[0.0], "a model whose layers all have experts"),
    ("moe_every_n_layers", &[0.0, 1.0], "a model whose layers all have experts"),
    ("moe_latent_size", &[0.0], "a model whose experts compute full rows"),
    ("nextn_predict_layers", &[0.0], "a model without layers for further tokens"),
    ("rope.scaling.yarn_attn_factor", &[1.0], "YaRN's own factor"),
    ("rope.scaling.yarn_ext_factor", &[-1.0, 1.0], "YaRN's whole ramp"),
];

/// Boolean keys, the value that has no effect, and a description of this value.
const FLAGS: &[(&str, bool, &str)] = &[
    ("attention.causal", true, "a model whose rows attend to those before them"),
    ("use_parallel_residual", false, "a model whose halves run one behind the other"),
];

/// Refuses metadata that is known to change results.
///
/// # Errors
/// A listed key with a value other than those without effect.
pub(super) fn refuse_variants(keys: &Keys<'_>, gguf: &GgufFamily) -> Result<(), ConfigError> {
    let is_read = |suffix: &str| {
        gguf.reads(suffix) || (gguf.has_temperature && suffix == "attention.temperature_scale")
    };
    for (suffix, neutral, expected) in NUMBERS.iter().filter(|(suffix, ..)| !is_read(suffix)) {
        let key = keys.key(suffix);
        match keys.metadata.number(&key)? {
            Some(number) if !neutral.contains(&number) => return Err(wrong(key, number, expected)),
            _ => {}
        }
    }
    for (suffix, neutral, expected) in FLAGS {
        let key = keys.key(suffix);
        match keys.metadata.boolean(&key)? {
            Some(flag) if flag != *neutral => return Err(wrong(key, flag, expected)),
            _ => {}
        }
    }
    Ok(())
}
