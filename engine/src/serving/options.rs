//! Options of a serving engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use grammar::{EncodedGrammar, Grammar};
use model::layers::LayerKind;
use program::plan::Plan;
use scheduler::StepCostCurve;
use scheduler::hybrid::{SchedulingPolicy, StepCosts};

use crate::launch::LaunchOptions;
use crate::trace_file::TraceFile;

/// Receives the bytes loaded so far and the bytes to load. Returns false to interrupt the launch.
pub type LoadProgressFn = Box<dyn FnMut(u64, u64) -> bool + Send>;

/// Converts a requested grammar into one over the model's vocabulary, which the sampler follows.
pub type CompileGrammarFn = dyn Fn(&Grammar) -> EncodedGrammar + Send + Sync;

/// Options of a serving engine.
pub struct ServingOptions {
    /// Plan of a serving run.
    pub plan: Plan,
    /// Options of the launch; its grammars are the vocabulary.
    pub launch: LaunchOptions,
    /// Converts requested grammars for the sampler; `None` if answers cannot follow grammars, in
    /// which case none are requested.
    pub compile_grammar: Option<Arc<CompileGrammarFn>>,
    /// Scheduling policy, for a plan whose sequences have owners.
    pub policy: SchedulingPolicy,
    /// Costs of iterations in such a plan; `None` to measure them before the first one.
    pub costs: Option<StepCosts>,
    /// Costs of steps in any other plan; `None` to measure them before the first one.
    pub step_costs: Option<StepCostCurve>,
    pub step_time: StepTime,
    /// Maximum number of drafted tokens of a sequence in a step; 0 if none are drafted.
    pub max_drafts: u32,
    /// True if tokens of all sequences are drafted; otherwise only those of requests that predict
    /// their answer.
    pub drafts_all: bool,
    pub on_load_progress: LoadProgressFn,
    /// Measures the run, for [`ServingEngine::finish`](super::ServingEngine::finish).
    pub records: bool,
    /// Receives the spans of the lanes, if the run is measured.
    pub trace_file: Option<TraceFile>,
    /// Receives messages for the operator of the server.
    pub log: Box<dyn Fn(&str) + Send>,
}

/// Target duration of a step in which sequences wait for their next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTime {
    Target(Duration),
    /// Fluent for readers. On a machine that is too slow for that, long enough for prompts to make
    /// progress concurrently with the tokens of all slots: if a step had little time left in
    /// addition to these, every answer would end before the next prompt was computed.
    Auto,
}

/// Time per token that readers perceive as fluent.
const FLUENT_TOKEN_TIME: Duration = Duration::from_millis(100);
/// Maximum duration of a step with rows of prompts, as a multiple of that of a step with the newest
/// tokens of all slots.
const PREFILL_STEP_FACTOR: u64 = 3;

impl StepTime {
    /// Returns the target in µs for a server with `slots` slots. Steps in which no sequence waits
    /// for its next token may take longer.
    pub(super) fn target_us(self, slots: u32, costs: &StepCostCurve) -> u32 {
        let us = match self {
            StepTime::Target(time) => time.as_micros(),
            StepTime::Auto => {
                let tokens_us = costs.step_ns(slots, 0) / 1000;
                FLUENT_TOKEN_TIME.as_micros().max(u128::from(PREFILL_STEP_FACTOR * tokens_us))
            }
        };
        u32::try_from(us).unwrap_or(u32::MAX)
    }
}

impl ServingOptions {
    /// Returns the maximum number of drafted tokens of a sequence in a step: 0 if the plan cannot
    /// refuse drafts.
    pub(super) fn max_drafts(&self) -> u32 {
        let is_possible = draft_obstacle(&self.plan, self.max_drafts).is_none();
        if is_possible { self.max_drafts } else { 0 }
    }
}

/// Returns the reason why the sequences of a plan cannot be set back by `max_drafts` positions, as
/// drafts that are refused require; `None` if they can.
pub fn draft_obstacle(plan: &Plan, max_drafts: u32) -> Option<&'static str> {
    let layers = &plan.config.layers;
    let is_ring = !layers.windows_below(plan.shape.max_context).is_empty();
    let too_small = |kind: &LayerKind| kind.draft_positions < max_drafts as usize;
    if (is_ring || layers.has_states()) && layers.kinds().iter().any(too_small) {
        // A refused row replaces one that is needed in the ring buffer of a window, and stays in a
        // state.
        return Some("the slots of windows and states have no space for drafts");
    }
    if plan.map.kv_select.is_some() {
        // What a row selects depends on how it was computed.
        return Some("--kv-select chooses the positions of each new token");
    }
    plan.shape.has_owners().then_some("--host-attention plans iterations by whole rows")
}

impl fmt::Debug for ServingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingOptions").field("step", &self.step_time).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_machines_have_longer_steps_unless_it_was_said_how_long() {
        let mut costs = StepCostCurve::NONE;
        costs.points[0] = (1, 40_000);
        costs.points[1] = (17, 120_000);
        assert_eq!(StepTime::Auto.target_us(1, &costs), 120_000);
        assert_eq!(StepTime::Auto.target_us(17, &costs), 360_000);
        costs.points[1] = (17, 30_000);
        assert_eq!(StepTime::Auto.target_us(17, &costs), 100_000);
        assert_eq!(StepTime::Auto.target_us(17, &StepCostCurve::NONE), 100_000);
        let target = StepTime::Target(Duration::from_millis(20));
        assert_eq!(target.target_us(17, &costs), 20_000);
    }
}
