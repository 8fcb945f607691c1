//! Search for the best placement by cost: given costs for any plan ([`Pricing`]: a profile, or a
//! machine's description), returns the operations as a table, the best placement of every policy,
//! and the duration of a whole plan. The compiled programs themselves are compared, in the
//! simulator.
//!
//! Used by the coordinator before a run and by `coordinator plan`.

mod batches;
mod bound;
mod choose;
mod considered;
mod estimate;
mod evaluate;
mod kinds;
mod lia;
mod pieces;
mod prefills;
mod rehearse;
mod room;
mod space;
mod storages;
mod table;
#[cfg(test)]
mod tests;

pub use batches::best_batches;
pub use choose::{ChooseError, Chosen, Question, choose, place};
pub use considered::{Considered, Effort, Tried};
pub use estimate::{Estimate, Estimator, Predicted, Steady, predict, steady_step_ns};
pub use rehearse::Rehearse;
pub use storages::{StorageRate, WithStorages};
pub use table::{table, table_alone};

use program::ir::Program;
use program::plan::Plan;
use program::simulate::Costs;

/// Reason for which a plan could not be priced or simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unpriced(pub String);

/// Ratio of actual to simulated durations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    pub prefill: f64,
    pub decode: f64,
}

impl Factors {
    /// Durations as simulated.
    pub const NONE: Factors = Factors { prefill: 1.0, decode: 1.0 };
}

/// Completed runs of one plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Medians over the runs.
    pub factors: Factors,
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
    ) -> Result<Box<dyn Costs>, Unpriced>;

    /// Returns the costs without contention: no instruction takes less.
    ///
    /// # Errors
    /// Fails like [`Pricing::costs`].
    fn costs_alone(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn Costs>, Unpriced> {
        self.costs(plan, program, prompt_len)
    }

    /// If lanes share the host's memory and their contention was not measured: returns the time
    /// that each instruction's traffic in that memory would take alone.
    ///
    /// # Errors
    /// Fails like [`Pricing::costs`].
    fn costs_of_host(
        &self,
        _: &Plan,
        _: &Program,
        _: u32,
    ) -> Result<Option<Box<dyn Costs>>, Unpriced> {
        Ok(None)
    }

    /// Returns the durations of completed runs of this very plan, if there are any.
    fn finished(&self, _: &Plan) -> Option<Finished> {
        None
    }
}
