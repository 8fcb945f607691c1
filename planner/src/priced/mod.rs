//! Placement by prices: whoever can price any plan ([`Pricing`]: a profile, or a machine's
//! description) gets the operations as a table, every policy's best placement, and what a whole
//! plan will take. What is compared are the compiled programs themselves, in the simulator.
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

/// Why a plan could not be priced or simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unpriced(pub String);

/// What runs took over what was simulated of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    pub prefill: f64,
    pub decode: f64,
}

impl Factors {
    /// As simulated.
    pub const NONE: Factors = Factors { prefill: 1.0, decode: 1.0 };
}

/// Runs of one plan that have ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finished {
    /// Their medians.
    pub factors: Factors,
    pub runs: usize,
}

/// Prices plans of one model on one machine.
pub trait Pricing: std::fmt::Debug {
    /// The costs of every instruction of a program of `plan`, for prompts of `prompt_len`
    /// positions: decode step `s` (from 0) reads `s` positions more.
    ///
    /// # Errors
    /// An instruction that was not measured.
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn Costs>, Unpriced>;

    /// The same where nobody is in anybody's way: no instruction takes less.
    ///
    /// # Errors
    /// As [`Pricing::costs`].
    fn costs_alone(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn Costs>, Unpriced> {
        self.costs(plan, program, prompt_len)
    }

    /// Where lanes share the host's memory and nothing was measured of that: what each instruction
    /// takes of it, as long as if that were all that it does.
    ///
    /// # Errors
    /// As [`Pricing::costs`].
    fn costs_of_host(
        &self,
        _: &Plan,
        _: &Program,
        _: u32,
    ) -> Result<Option<Box<dyn Costs>>, Unpriced> {
        Ok(None)
    }

    /// What runs of this very plan took; `None` where it never ran to its end.
    fn finished(&self, _: &Plan) -> Option<Finished> {
        None
    }
}
