//! The engine of batch jobs, which runs groups of sequences.
//!
//! [`RunEngine::start`] launches the workers and loads the model. `run` writes one group of
//! sequences after the other into the step table, releases it, follows the steps of the sampler and
//! reports the generated tokens. [`RunEngine::finish`] lets the workers exit and returns the
//! measurements. The coordinator is never on the step path: workers run a group to its end without
//! it.

mod batch_scheduler;
mod deduplicating_sink;
mod prefill_share;
mod wake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::event::BatchSink;
use engine_api::request::GenerationRequest;
use program::ir::ProgramId;
use program::plan::Plan;
use program::simulate::Span;
use protocol::group::BATCH_STAGES;
use shm::{SharedU32s, WaitError};

use self::batch_scheduler::{BatchScheduler, GroupPrefill};
use self::deduplicating_sink::DeduplicatingSink;
use self::prefill_share::PrefillShare;
use crate::launch::{
    self, LaunchError, LaunchOptions, LaunchedWorkers, LoadProgress, POLL_INTERVAL,
};
use crate::memory::MemorySampler;
use crate::recorder::RunRecorder;
use crate::stats::RunStats;
use crate::supervisor::WorkerFailure;
use crate::takeover::take_over;
use crate::trace_file::TraceFile;

/// Maximum time that an interrupted group may take to end before the workers are killed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Polled between waits; returns true to end the run.
pub type InterruptFn = Box<dyn Fn() -> bool>;

/// Workers that hold a model and run groups of sequences.
pub struct RunEngine {
    plan: Arc<Plan>,
    /// Options with which the workers were launched.
    options: LaunchOptions,
    launched: LaunchedWorkers,
    /// Failure after which the workers cannot continue.
    failure: Option<WorkerFailure>,
    table: SharedU32s,
    recorder: RunRecorder,
    prefill_share: Option<PrefillShare>,
    wake_ns: f64,
    interrupt: InterruptFn,
    /// True while the workers are in a group.
    is_busy: bool,
    /// True if prompts with a common prefix share its computation.
    shares_prompts: bool,
    checked_at: Instant,
}

impl std::fmt::Debug for RunEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunEngine").field("launched", &self.launched).finish_non_exhaustive()
    }
}

impl RunEngine {
    /// Starts the workers and loads the model.
    ///
    /// # Errors
    /// The failure that kept a worker from becoming ready.
    pub fn start(
        plan: Plan,
        options: &LaunchOptions,
        trace_file: Option<TraceFile>,
        interrupt: InterruptFn,
        progress: &mut LoadProgress<'_>,
    ) -> Result<RunEngine, LaunchError> {
        let begun = Instant::now();
        let mut load_memory = MemorySampler::new();
        let launched = launch::launch(
            &plan,
            options,
            &mut |done, total| !interrupt() && progress(done, total),
            &mut |supervisor| load_memory.sample_if_due(supervisor),
        )?;
        load_memory.peak.sample(&launched.supervisor);
        let mut recorder = RunRecorder::new(&plan, options, &launched, trace_file)?;
        recorder.stats.load = begun.elapsed();
        recorder.stats.load_peak_memory = load_memory.peak;
        Ok(RunEngine {
            table: launched.control.extra(0, plan.table.words()),
            prefill_share: PrefillShare::new(&plan),
            plan: Arc::new(plan),
            options: options.clone(),
            launched,
            failure: None,
            recorder,
            wake_ns: wake::wake_ns(),
            interrupt,
            is_busy: false,
            shares_prompts: false,
            checked_at: Instant::now(),
        })
    }

    /// Sets whether prompts with a common prefix share its computation, starting with the next
    /// group. Disabled initially.
    pub fn set_share_prompts(&mut self, shares_prompts: bool) {
        self.shares_prompts = shares_prompts;
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the spans of the last group.
    pub fn spans(&self) -> Vec<Span> {
        self.recorder.spans()
    }

    /// Lets the workers exit, completes the trace file and returns the measurements.
    ///
    /// # Errors
    /// A trace file that could not be completed.
    pub fn finish(mut self) -> std::io::Result<RunStats> {
        let is_busy = self.is_busy;
        self.recorder.finish(&self.plan, &mut self.launched, &self.table, is_busy)
    }

    /// Checks for an interruption and for failed workers, and samples memory; at most once per
    /// [`POLL_INTERVAL`].
    fn check_health(&mut self) -> Result<(), EngineError> {
        if self.checked_at.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        self.checked_at = Instant::now();
        if (self.interrupt)() {
            return Err(EngineError::Interrupted);
        }
        if let Err(failure) = self.launched.supervisor.check(&self.plan) {
            let LaunchedWorkers { supervisor, control, .. } = &mut self.launched;
            match take_over(supervisor, &self.plan, control, &failure) {
                Some(lost) => self.recorder.stats.lost_storages.push(lost),
                None => return Err(self.record_failure(failure)),
            }
        }
        self.recorder.sample_memory(&self.launched.supervisor);
        Ok(())
    }

    fn record_failure(&mut self, failure: WorkerFailure) -> EngineError {
        self.failure = Some(failure.clone());
        worker_failure(failure)
    }

    /// Returns true if workers that failed in their first group are to be started again in another
    /// way.
    fn should_restart(&mut self) -> bool {
        let failure = self.failure.take().filter(|_| self.recorder.stats.groups == 0);
        failure.is_some_and(|failure| self.options.enter_safe_mode(&failure))
    }

    /// Replaces the failed workers with new ones.
    fn restart(&mut self) -> Result<(), EngineError> {
        self.launched.supervisor.shut_down(true);
        let interrupt = &self.interrupt;
        let launched =
            launch::launch(&self.plan, &self.options, &mut |_, _| !interrupt(), &mut |_| {});
        let failed = |error: LaunchError| match error {
            LaunchError::Interrupted => EngineError::Interrupted,
            LaunchError::Worker(failure) => worker_failure(failure),
            error => EngineError::Failed(error.to_string()),
        };
        self.launched = launched.map_err(failed)?;
        self.recorder.attach(&self.plan, &self.launched).map_err(failed)?;
        self.table = self.launched.control.extra(0, self.plan.table.words());
        self.is_busy = false;
        Ok(())
    }

    /// Runs all sequences to their ends, group by group.
    fn run_groups(
        &mut self,
        requests: &[GenerationRequest],
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        let plan = Arc::clone(&self.plan);
        let table = self.table.clone();
        let mut groups = BatchScheduler::start(&table, &plan, requests, self.shares_prompts);
        loop {
            self.run_group(&mut groups, sink)?;
            if !groups.start_next_group() {
                return Ok(());
            }
        }
    }

    /// Runs the group in the step table to its end.
    fn run_group(
        &mut self,
        groups: &mut BatchScheduler<'_>,
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        self.recorder.begin_group();
        let control = self.launched.control.clone();
        let drained = control.drained().value().wrapping_add(1);
        self.is_busy = true;
        let outcome = self.follow_group(groups, drained, sink);
        if matches!(outcome, Err(EngineError::Interrupted)) {
            self.cancel_group(groups, drained);
        }
        let GroupStats { prefill, decode, decode_steps, generated } = outcome?;
        self.is_busy = false;
        let fresh = groups.prefill();
        let measured = &mut self.recorder.stats;
        measured.groups += 1;
        measured.prefill += prefill;
        measured.decode += decode;
        measured.prefill_tokens += fresh.computed_tokens;
        measured.shared_tokens += fresh.shared_tokens;
        measured.generated_tokens += generated;
        measured.decode_steps += decode_steps;
        measured.decode_tokens += generated.saturating_sub(fresh.sequences);
        self.recorder
            .end_group(&self.plan)
            .map_err(|error| EngineError::Failed(format!("the trace file: {error}")))?;
        if let Some(prediction) = self.recorder.predict(&self.plan, self.wake_ns) {
            self.recorder.stats.prediction = Some(prediction);
        }
        groups.report_finished(None, sink);
        if sink.has_failed() { Err(EngineError::Interrupted) } else { Ok(()) }
    }

    /// Releases the group and follows it until the workers have drained it, which raises the
    /// `drained` timeline to `drained`.
    fn follow_group(
        &mut self,
        groups: &mut BatchScheduler<'_>,
        drained: u32,
        sink: &mut dyn BatchSink,
    ) -> Result<GroupStats, EngineError> {
        let control = self.launched.control.clone();
        let steps = control.steps().value();
        let begun = Instant::now();
        control.release(&BATCH_STAGES, groups.list_work());
        let mut prefill = Duration::ZERO;
        let (mut generated, mut decode_steps) = (0, 0);
        for step in 0u32.. {
            let target = steps.wrapping_add(step + 1);
            if step == 0 {
                let GroupPrefill { computed_tokens, shared_tokens, .. } = groups.prefill();
                let all = computed_tokens + shared_tokens;
                let mut report_progress =
                    |share| sink.on_prefill_progress((share * all as f64) as u64, all);
                self.wait(WaitTarget::Steps, target, &mut report_progress)?;
                prefill = begun.elapsed();
            } else {
                self.wait(WaitTarget::Steps, target, &mut |_| {})?;
            }
            generated += groups.report_new_tokens(Some(step), sink);
            groups.report_finished(Some(step), sink);
            if sink.has_failed() {
                return Err(EngineError::Interrupted);
            }
            self.recorder.drain();
            decode_steps = u64::from(step);
            if control.last_step().is_some_and(|last| step >= last) {
                break;
            }
        }
        self.wait(WaitTarget::Drained, drained, &mut |_| {})?;
        self.recorder.drain();
        Ok(GroupStats { prefill, decode: begun.elapsed() - prefill, decode_steps, generated })
    }

    /// Ends an interrupted group with its next step. Gives the workers up to [`CANCEL_TIMEOUT`] to
    /// get there, since idle workers exit by themselves.
    fn cancel_group(&mut self, groups: &BatchScheduler<'_>, drained: u32) {
        groups.cancel();
        let control = self.launched.control.clone();
        let until = Instant::now() + CANCEL_TIMEOUT;
        while Instant::now() < until {
            if control.drained().wait_until(drained, control.poison(), POLL_INTERVAL).is_ok() {
                self.is_busy = false;
                return;
            }
            self.recorder.drain();
        }
    }

    /// Returns the fraction of prefill that is done, from 0 to 1.
    fn prefill_share(&self) -> f64 {
        let Some(share) = &self.prefill_share else { return 0.0 };
        let position = self.launched.control.lane(share.lane.index()).position();
        let is_prefill = position.program == u32::from(ProgramId::PREFILL.0);
        if is_prefill { share.fraction_at(position.instruction) } else { 1.0 }
    }

    /// Waits until a timeline of the control segment reaches `target`, checking the workers
    /// meanwhile. Calls `on_progress` from time to time with the fraction of prefill that is done.
    fn wait(
        &mut self,
        which: WaitTarget,
        target: u32,
        on_progress: &mut dyn FnMut(f64),
    ) -> Result<(), EngineError> {
        loop {
            let control = &self.launched.control;
            let timeline = match which {
                WaitTarget::Steps => control.steps(),
                WaitTarget::Drained => control.drained(),
            };
            match timeline.wait_until(target, control.poison(), POLL_INTERVAL) {
                Ok(()) => return self.check_health(),
                Err(WaitError::TimedOut { .. }) => {
                    self.recorder.drain();
                    self.check_health()?;
                    on_progress(self.prefill_share());
                }
                Err(WaitError::Poisoned(_)) => {
                    let failure = self.launched.supervisor.wait_for_cause(&self.plan);
                    return Err(self.record_failure(failure));
                }
            }
        }
    }
}

/// Measurements of a group that was followed to its end.
#[derive(Debug, Clone, Copy)]
struct GroupStats {
    prefill: Duration,
    decode: Duration,
    decode_steps: u64,
    generated: u64,
}

#[derive(Debug, Clone, Copy)]
enum WaitTarget {
    Steps,
    Drained,
}

fn worker_failure(failure: WorkerFailure) -> EngineError {
    let kind = match failure.is_out_of_device_memory() {
        true => EngineError::OutOfDeviceMemory,
        false => EngineError::Failed,
    };
    kind(failure.to_string())
}

impl BatchEngine for RunEngine {
    fn run(
        &mut self,
        requests: &dyn BatchRequests,
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        // Groups are filled evenly, which depends on all of them.
        let requests: Vec<GenerationRequest> =
            (0..requests.count()).map(|index| requests.request(index)).collect();
        let mut sink = DeduplicatingSink::new(sink, requests.len());
        loop {
            let ended = self.run_groups(&requests, &mut sink);
            if ended.is_ok() || !self.should_restart() {
                return ended;
            }
            self.restart()?;
            sink.restart();
        }
    }
}
