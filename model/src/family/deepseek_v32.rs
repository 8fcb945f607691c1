//! DeepSeek V3.2: DeepSeek V3's layers, in each of which an indexer selects the positions to attend
//! to.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::latent_attention::{self, IndexerFields};
use super::sigmoid_router::SigmoidRouter;
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "DeepseekV32ForCausalLM", model_type: "deepseek_v32", config }],
    latent_attention::layouts,
    GgufFamily::NONE,
);

/// Indexers rotate halves, while attention rotates neighbours.
const INDEXER: IndexerFields = IndexerFields { rotates_neighbours: false, can_share: false };

/// Parses `DeepseekV32ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("moe_layer_freq", &serde_json::Value::from(1))?;
    let model = latent_attention::base(Family::DeepseekV32, name, fields)?;
    let model = SigmoidRouter { dense_layers: 3, renormalise: true }.add_to(model, fields)?;
    INDEXER.add_to(model, fields)
}
