//! What a server is started with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use grammar::{Form, Grammar};
use program::plan::Plan;
use schedule::Costs;
use schedule::hybrid::{Policy, StepCosts};

use crate::engine::launch::LaunchOptions;

/// Tells how loading gets on; its answer `false` interrupts.
pub type Loading = Box<dyn FnMut(u64, u64) -> bool + Send>;

/// What a sampler follows of what was asked for.
pub type FormOf = dyn Fn(&Grammar) -> Form + Send + Sync;

/// What a server is started with.
pub struct ServingOptions {
    /// A plan of a run that serves.
    pub plan: Plan,
    /// Its grammars are the vocabulary of forms.
    pub launch: LaunchOptions,
    /// Makes what a sampler follows of what was asked for; `None` where answers cannot have a form,
    /// which nobody asks for then.
    pub forms: Option<Arc<FormOf>>,
    /// Who decides about iterations, in a plan whose sequences have owners.
    pub policy: Policy,
    /// What iterations take there; `None`: it is measured before the first.
    pub costs: Option<StepCosts>,
    pub step: StepTime,
    pub loading: Loading,
    /// Hears sentences for whoever runs the server.
    pub tell: Box<dyn Fn(&str) + Send>,
}

/// How long a step should take where sequences wait for their next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTime {
    Within(Duration),
    /// Readers take tokens for fluent, or, on a machine that is too slow for that, prompts get on
    /// beside the tokens of all slots: with what is left of a step that these all but fill, each
    /// answer would have ended before the next prompt was computed.
    Fluent,
}

/// What a reader takes for fluent.
const FLUENT: Duration = Duration::from_millis(100);
/// A step with rows of prompts may take so many times as long as the newest tokens of all slots.
const WITH_PROMPTS: u64 = 3;

impl StepTime {
    /// µs, of so many slots; nothing where nobody waits.
    pub(super) fn aim_us(self, slots: u32, costs: &Costs) -> u32 {
        let us = match self {
            StepTime::Within(time) => time.as_micros(),
            StepTime::Fluent => {
                let tokens_us = costs.step_ns(slots, 0) / 1000;
                FLUENT.as_micros().max(u128::from(WITH_PROMPTS * tokens_us))
            }
        };
        u32::try_from(us).unwrap_or(u32::MAX)
    }
}

impl fmt::Debug for ServingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingOptions").field("step", &self.step).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_machines_have_longer_steps_unless_it_was_said_how_long() {
        let mut costs = Costs::NONE;
        costs.points[0] = (1, 40_000);
        costs.points[1] = (17, 120_000);
        assert_eq!(StepTime::Fluent.aim_us(1, &costs), 120_000);
        assert_eq!(StepTime::Fluent.aim_us(17, &costs), 360_000);
        costs.points[1] = (17, 30_000);
        assert_eq!(StepTime::Fluent.aim_us(17, &costs), 100_000);
        assert_eq!(StepTime::Fluent.aim_us(17, &Costs::NONE), 100_000);
        let said = StepTime::Within(Duration::from_millis(20));
        assert_eq!(said.aim_us(17, &costs), 20_000);
    }
}
