//! Reads of the experts that rows are routed to, instead of all experts of a layer.

use model::config::ModelConfig;
use model::experts::Experts;
use serde::{Deserialize, Serialize};

use crate::routing_counts::RoutingSkew;

/// Experts that are read from storages in every step, among those that the CPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertReads {
    /// The experts that rows are routed to, unless almost all are expected.
    #[default]
    Auto,
    /// The experts that rows are routed to. Reads begin when the layer's router has finished.
    Routed,
    /// All experts, while earlier layers are computed.
    All,
}

/// Expected share of a layer's experts up to which only those that rows are routed to are read:
/// reading all of them takes little longer, and overlaps with earlier layers.
const ROUTED_SHARE_MAX: f64 = 0.9;

impl ExpertReads {
    /// Returns the experts of a model if a decode step of these batches reads only those that its
    /// rows are routed to. With several batches, the rows of the others would have to be routed
    /// first.
    pub fn routed_experts(
        self,
        config: &ModelConfig,
        routing: &RoutingSkew,
        batches: u16,
        batch_size: u16,
    ) -> Option<Experts> {
        let experts = config.experts.filter(|_| batches == 1)?;
        let are_routed = match self {
            ExpertReads::Auto => {
                routing.expected_share(&experts, batch_size.into()) <= ROUTED_SHARE_MAX
            }
            ExpertReads::Routed => true,
            ExpertReads::All => false,
        };
        are_routed.then_some(experts)
    }
}

/// Number of words of a layer's list of cached experts, which follows `Value::Routing`: a word for
/// each expert.
pub fn list_words(config: &ModelConfig) -> usize {
    config.experts.map_or(0, |experts| experts.count)
}
