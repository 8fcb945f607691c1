//! DeepSeek's router: the sigmoids of logits plus a bias select the experts, possibly from a few
//! groups; the sigmoids alone are their weights, with a factor. Several families have it.

use serde_json::Value;

use super::experts;
use crate::config::ModelConfig;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::FeedForward;

/// Weights that are divided by their sum.
pub(super) const RENORMALISED: ExpertScoring =
    ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-20) };
/// Second half of the layers with experts.
pub(super) const SHARED: FeedForward = FeedForward::UngatedSharedExpert;
/// Keys of GGUF files that describe the router and the layers.
pub(super) const GGUF_KEYS: &[&str] = &[
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "expert_weights_scale",
    "leading_dense_block_count",
    "nextn_predict_layers",
];

/// Default values of the router's fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct SigmoidRouter {
    /// Number of first layers without experts.
    pub(super) dense_layers: usize,
    /// Weights are divided by their sum.
    pub(super) renormalise: bool,
}

impl SigmoidRouter {
    /// Adds the router and the experts to a dense model.
    ///
    /// # Errors
    /// Missing or invalid fields.
    pub(super) fn add_to(
        self,
        model: ModelConfig,
        fields: &ConfigFields<'_>,
    ) -> Result<ModelConfig, ConfigError> {
        // Some files name the router.
        fields.only("scoring_func", &Value::from("sigmoid"))?;
        fields.only("topk_method", &Value::from("noaux_tc"))?;
        fields.only("moe_router_activation_func", &Value::from("sigmoid"))?;
        let ffn_size = fields.size("moe_intermediate_size")?;
        let renormalise = fields.flag("moe_renormalize", self.renormalise)?;
        let scoring = if fields.flag("norm_topk_prob", renormalise)? {
            RENORMALISED
        } else {
            ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused }
        };
        let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
        let experts = Experts {
            selection: ExpertSelection {
                bias: true,
                groups: experts::groups(fields)?,
                scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
                is_f32: true,
            },
            ..Experts::new(count, per_token, ffn_size, scoring)
        };
        let is_usual = !fields.has("num_shared_experts");
        let shared = if is_usual { "n_shared_experts" } else { "num_shared_experts" };
        let shared = experts::shared_ffn_size(fields, shared, ffn_size)?;
        let dense = experts::count_or(fields, "first_k_dense_replace", self.dense_layers)?;
        let is_dense = experts::dense_layers(fields, model.num_layers, dense)?;
        let shared = shared.map(|ffn_size| (ffn_size, SHARED));
        Ok(experts::with_experts(model, experts, shared, &is_dense))
    }
}
