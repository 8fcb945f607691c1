//! GLM-5: latent attention to the positions that an indexer selects, whose selections other layers
//! may share, and DeepSeek V3's router with a list of the layers that have experts.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::latent_attention::{self, IndexerFields};
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "GlmMoeDsaForCausalLM", model_type: "glm_moe_dsa", config }],
    latent_attention::layouts,
    GgufFamily {
        rotates_neighbours: true,
        can_rotate_part: true,
        has_latent_attention: true,
        has_indexers: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        keys: sigmoid_router::GGUF_KEYS,
        ..GgufFamily::named(&["glm-dsa"])
    },
);

/// Indexers rotate neighbours, as attention does.
const INDEXER: IndexerFields = IndexerFields { rotates_neighbours: true, can_share: true };

/// Parses `GlmMoeDsaForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("moe_layer_freq", &serde_json::Value::from(1))?;
    let model = latent_attention::base(Family::GlmMoeDsa, name, fields)?;
    let model = SigmoidRouter { dense_layers: 3, renormalise: true }.add_to(model, fields)?;
    INDEXER.add_to(model, fields)
}
