//! Ways to store what a policy needs.

use model::config::ModelConfig;
use program::compile::{CompileError, compile};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};

use super::bytes::Budget;
use crate::policy::{DefaultTiers, SlowTierLayers, StagedMatrices};

/// A way to store what a policy needs, and the memory that it takes.
pub(super) struct FitCandidate {
    pub(super) shape: RunShape,
    pub(super) tiers: DefaultTiers,
    pub(super) map: DeviceMap,
    pub(super) slow_tier: SlowTierLayers,
    pub(super) staged: StagedMatrices,
    pub(super) budget: Budget,
}

impl FitCandidate {
    pub(super) fn plan(&self, config: &ModelConfig) -> Result<Plan, CompileError> {
        compile(config, &self.shape, &self.map)
    }
}
