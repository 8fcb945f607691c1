//! Rehearsals: short real runs of a few layers of a map before it is chosen.
//!
//! A search takes the minimum of many estimates, so the winner's is too low: it won by the errors
//! of its costs too. Moreover, no sum of separate measurements includes what lanes lose by waiting
//! for each other when their speeds vary. Therefore the map that looks fastest runs some decode
//! steps of a few layers; the ratio of their duration to the simulation scales its decode.

use program::plan::Plan;
use program::simulate::simulate;

use super::{CostError, Estimator};
use crate::budget::PlacementRequest;
use crate::policy::Placement;

/// Minimum bytes of weights in the layers of a rehearsal, so that they do not fit in any cache.
const WEIGHT_BYTES: usize = 512 << 20;
/// Minimum number of layers, which a pipeline requires.
const LAYERS_MIN: usize = 2;
/// Maximum number of tokens in the vocabulary: a whole head takes longer to load than to run.
const VOCABULARY_MAX: usize = 16_384;
/// Maximum number of decode steps.
const STEPS_MAX: u32 = 8;

/// Runs plans for a short time.
pub trait Rehearser: std::fmt::Debug {
    /// Returns the nanoseconds of the first `steps` decode steps of `plan`, after full batches of
    /// the longest prompts that leave capacity for them; `None` if it could not be run, or if the
    /// time for rehearsals is used up.
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64>;
}

impl Estimator<'_> {
    /// Returns the ratio of the measured to the simulated decode of a placement's first layers;
    /// `None` if nothing can be rehearsed, for example because weights are read from storages.
    ///
    /// # Errors
    /// A map that does not compile, or a plan that cannot be priced.
    pub fn decode_factor(
        &self,
        placement: &Placement,
        rehearser: &dyn Rehearser,
    ) -> Result<Option<f64>, CostError> {
        let cost_error = |error: &dyn std::fmt::Display| CostError(error.to_string());
        let mut config = self.request.config.clone();
        config.vocab_size = config.vocab_size.min(VOCABULARY_MAX);
        let layers = WEIGHT_BYTES
            .div_ceil(config.layer_weight_bytes(config.leading_layer(), self.request.dtype).max(1));
        let request = PlacementRequest { config: &config, ..*self.request };
        let plan = Estimator { request: &request, ..*self }
            .plan(placement, layers.max(LAYERS_MIN))
            .map_err(|error| cost_error(&error))?;
        let steps = plan.shape.max_new.saturating_sub(1).min(STEPS_MAX);
        // No storage holds the weights of a rehearsal.
        if steps == 0 || !placement.staged.is_none() {
            return Ok(None);
        }
        let prompt = plan.shape.longest_prompt(steps + 1);
        let costs = self.pricing.costs(&plan, plan.decode(), prompt)?;
        let simulated =
            simulate(plan.decode(), costs.as_ref(), steps).map_err(|error| cost_error(&error))?;
        let measured_ns = rehearser.decode_ns(&plan, steps);
        Ok(measured_ns.map(|ns| ns / simulated.total_ns).filter(|ratio| ratio.is_finite()))
    }
}
