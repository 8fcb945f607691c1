//! Measurements of a job on this engine, whose steps compute prompts and new tokens together.

use std::io;
use std::time::Instant;

use engine_api::serving::EngineStatus;
use program::plan::Plan;

use super::worker_group::WorkerGroup;
use crate::RunStats;
use crate::launch::LaunchError;
use crate::recorder::RunRecorder;

/// Number of steps after which their spans are added to the totals, although the group continues.
const STEPS_PER_BLOCK: u32 = 256;
/// Number of the newest steps whose spans may be incomplete, since some lanes are behind the one
/// that samples.
const INCOMPLETE_STEPS: u32 = 2;

/// Measurements of a job, step by step. A step that computes rows of prompts belongs to prefill
/// with all its tokens, any other to decode.
#[derive(Debug)]
pub(super) struct StepRecorder {
    recorder: RunRecorder,
    /// Time at which the previous step ended, or the group was released.
    step_ended_at: Instant,
    /// Number of steps of the group, and of those whose spans are in the totals.
    group_steps: u32,
    recorded_steps: u32,
    /// Status after the previous step.
    last_status: EngineStatus,
    /// Error for which the trace file is incomplete.
    trace_error: Option<io::Error>,
}

impl StepRecorder {
    /// Starts to measure steps; `status` is that of the engine before them.
    pub(super) fn new(recorder: RunRecorder, status: EngineStatus) -> StepRecorder {
        StepRecorder {
            recorder,
            step_ended_at: Instant::now(),
            group_steps: 0,
            recorded_steps: 0,
            last_status: status,
            trace_error: None,
        }
    }

    /// Measures workers that replace lost ones.
    ///
    /// # Errors
    /// A trace that already has a reader.
    pub(super) fn attach(&mut self, plan: &Plan, group: &WorkerGroup) -> Result<(), LaunchError> {
        self.recorder.attach(plan, &group.launched)
    }

    /// Begins a group of steps.
    pub(super) fn begin_group(&mut self) {
        self.recorder.begin_group();
        (self.group_steps, self.recorded_steps) = (0, 0);
        self.step_ended_at = Instant::now();
    }

    /// Adds `steps` steps, after which the engine has the given status.
    pub(super) fn add_steps(
        &mut self,
        plan: &Plan,
        group: &WorkerGroup,
        steps: u32,
        status: &EngineStatus,
    ) {
        self.recorder.drain();
        self.recorder.sample_memory(&group.launched.supervisor);
        if steps > 0 {
            self.count(steps, status);
        }
        let has_ended = group.group.is_none();
        let complete = self.group_steps.saturating_sub(INCOMPLETE_STEPS);
        if has_ended && self.group_steps > 0 {
            self.end_group(plan);
        } else if complete >= self.recorded_steps + STEPS_PER_BLOCK {
            self.recorded_steps = complete;
            let recorded = self.recorder.end_steps_before(plan, complete);
            self.keep_error(recorded);
        }
    }

    fn end_group(&mut self, plan: &Plan) {
        self.recorder.stats.groups += 1;
        self.group_steps = 0;
        let recorded = self.recorder.end_group(plan);
        self.keep_error(recorded);
        self.recorder.begin_group();
    }

    fn keep_error(&mut self, recorded: io::Result<()>) {
        if let Err(error) = recorded {
            self.trace_error.get_or_insert(error);
        }
    }

    fn count(&mut self, steps: u32, status: &EngineStatus) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.step_ended_at, now);
        let before = std::mem::replace(&mut self.last_status, *status);
        let generated = status.generated_tokens - before.generated_tokens;
        let is_prefill = before.prompt_progress.tokens > 0
            || status.prompt_progress.tokens > 0
            || status.prompt_tokens > before.prompt_tokens;
        let stats = &mut self.recorder.stats;
        stats.generated_tokens += generated;
        if is_prefill {
            stats.prefill += took;
        } else {
            stats.decode += took;
            stats.decode_tokens += generated;
            stats.decode_steps += u64::from(steps);
        }
        stats.prefill_tokens = status.prompt_tokens;
        stats.shared_tokens = status.cached_tokens;
        stats.drafts = status.drafts;
        self.group_steps += steps;
    }

    /// Lets the workers exit and returns the measurements.
    ///
    /// # Errors
    /// A trace file that could not be written.
    pub(super) fn finish(mut self, plan: &Plan, group: &mut WorkerGroup) -> io::Result<RunStats> {
        if self.group_steps > 0 {
            self.recorder.drain();
            self.end_group(plan);
        }
        let table = group.launched.control.extra(0, plan.table.words());
        let is_busy = group.group.is_some();
        let stats = self.recorder.finish(plan, &mut group.launched, &table, is_busy);
        self.trace_error.map_or(stats, Err)
    }
}
