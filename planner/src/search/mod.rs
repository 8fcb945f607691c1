//! Search for the best placement by cost: given costs for any plan ([`Pricing`]: a profile, or a
//! machine's description), returns the operations as a table, the best placement of every policy,
//! and the duration of a whole plan. The compiled programs themselves are compared, in the
//! simulator.
//!
//! Used by the coordinator before a run and by `coordinator plan`.

mod batches;
mod bound;
mod candidate;
mod choose;
mod device_capacity;
mod estimate;
mod evaluate;
mod layer_kinds;
mod lia;
mod linear_splits;
mod prefill_cache;
mod rehearse;
mod space;
mod storage_costs;
mod table;
#[cfg(test)]
mod tests;

pub use batches::best_batches;
pub use candidate::{Candidate, SearchEffort, TrialStatus};
pub use choose::{
    SearchError, SearchRequest, SearchResult, choose, choose_placement, evaluate_placement,
};
pub use estimate::{Estimate, Estimator, PredictedTimes, SteadyDecode, predict, steady_step_ns};
pub use rehearse::Rehearser;
pub use storage_costs::{StoragePricing, StorageRate};
pub use table::{cpu_only_table, operation_table};

use program::ir::Program;
use program::plan::Plan;
use program::simulate::SimulationCosts;

/// Reason for which a plan could not be priced or simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CostError(pub String);

/// Ratio of actual to simulated durations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeFactors {
    pub prefill: f64,
    pub decode: f64,
}

impl TimeFactors {
    /// Durations as simulated.
    pub const NONE: TimeFactors = TimeFactors { prefill: 1.0, decode: 1.0 };
}

/// Completed runs of one plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredFactors {
    /// Medians over the runs.
    pub factors: TimeFactors,
    pub runs: usize,
}

/// Prices plans of one model on one machine.
pub trait Pricing: std::fmt::Debug {
    /// Returns the costs of every instruction of a program of `plan`, for prompts of `prompt_len`
    /// positions: decode step `s` (from 0) reads `s` additional positions.
    ///
    /// # Errors
    /// An instruction that was not measured.
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError>;

    /// Returns the costs without contention: no instruction takes less.
    ///
    /// # Errors
    /// Fails like [`Pricing::costs`].
    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        self.costs(plan, program, prompt_len)
    }

    /// If lanes share the host's memory and their contention was not measured: returns the time
    /// that each instruction's traffic in that memory would take alone.
    ///
    /// # Errors
    /// Fails like [`Pricing::costs`].
    fn host_memory_costs(
        &self,
        _: &Plan,
        _: &Program,
        _: u32,
    ) -> Result<Option<Box<dyn SimulationCosts>>, CostError> {
        Ok(None)
    }

    /// Returns the durations of completed runs of this very plan, if there are any.
    fn measured_factors(&self, _: &Plan) -> Option<MeasuredFactors> {
        None
    }
}
