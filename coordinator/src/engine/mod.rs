//! The engine of the batch job: implements [`Engine`] with worker processes.
//!
//! [`RunEngine::start`] launches the workers and loads the model. `run` writes one group of
//! sequences after the other into the step table, releases it, follows the steps of the sampler and
//! reports the generated tokens. [`RunEngine::finish`] lets the workers exit and returns the
//! measurements. The coordinator is never on the step path: workers run a group to its end without
//! it.

pub mod bench;
mod crew;
pub mod descriptors;
mod device_use;
pub mod groups;
pub mod launch;
mod launched;
pub mod measure;
pub mod memory;
mod prefill_share;
pub mod replay;
mod restart;
pub mod routed;
pub mod selected;
pub mod serving;
pub mod supervise;
pub mod takeover;
pub mod trace_file;
mod wake;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::ir::ProgramId;
use program::plan::Plan;
use program::simulate::Span;
use program::topology::{LaneId, WorkerId};
use shm::{SharedU32s, TraceReader, WaitError};
use workers::shared::group::BATCH;

use crate::boundary::engine::{Engine, EngineError, Observer, Sequence, Verdict};
use device_use::starts_carefully;
use groups::{Fresh, Groups};
use launch::{LaunchError, LaunchOptions, Launched, LoadProgress, SLICE};
use measure::{Collector, Totals};
use prefill_share::PrefillShare;
use restart::TellingOnce;
use routed::Routed;
use selected::Selected;
use supervise::{Supervisor, WorkerFailure};
use takeover::{LostStorage, take_over};
use trace_file::TraceFile;

/// Interval between samples of the processes' memory, which cost the processes a little time.
const MEMORY_SAMPLE: Duration = Duration::from_millis(500);

/// Maximum time that an interrupted group may take to end before the workers are killed.
const CALL_OFF_MAX: Duration = Duration::from_secs(1);

/// Maximum proportional set sizes observed, by process and for their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peaks {
    pub by_process_bytes: BTreeMap<String, u64>,
    pub sum_bytes: u64,
}

impl Peaks {
    fn sample(&mut self, supervisor: &Supervisor) {
        let own = std::process::id();
        let workers = supervisor.processes();
        let mut sum = 0;
        for (name, pid) in workers.chain(std::iter::once(("coordinator", own))) {
            let Some(bytes) = memory::pss_bytes(pid) else { continue };
            sum += bytes;
            let peak = self.by_process_bytes.entry(name.to_owned()).or_insert(0);
            *peak = (*peak).max(bytes);
        }
        self.sum_bytes = self.sum_bytes.max(sum);
    }
}

/// Measurements of a run.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub load: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    pub groups: u64,
    /// Prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// Prompt tokens that were not computed again because another prompt had the same prefix.
    pub shared_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens sampled by decode steps: all except the first of each sequence.
    pub decode_tokens: u64,
    pub decode_steps: u64,
    pub totals: Totals,
    pub load_peaks: Peaks,
    pub peaks: Peaks,
    pub kernel_variants: BTreeMap<String, String>,
    /// Number and description of the CUDA device; `None` for the emulated device or without a
    /// device.
    pub device: Option<String>,
    /// Paths of the stagings that were read, in storage order.
    pub staged: Vec<String>,
    /// Storages that were lost, in the order of their loss.
    pub lost_storages: Vec<LostStorage>,
    /// Heap allocations of each worker from ready to drain, by the worker's name.
    pub allocations: BTreeMap<String, u64>,
    /// Choices of the routers; `None` for a model without routers, or if they are not counted.
    pub routed: Option<Routed>,
    /// Numbers of positions that new tokens attended to, if they select.
    pub selected: Option<Selected>,
    /// Prediction for the last group with enough decode steps.
    pub prediction: Option<measure::Prediction>,
}

/// Polled between waits; returns true to end the run.
pub type Interrupt = Box<dyn Fn() -> bool>;

/// Workers that hold a model and run groups of sequences.
pub struct RunEngine {
    plan: Arc<Plan>,
    /// Options with which the workers were launched.
    options: LaunchOptions,
    launched: Launched,
    /// Failure after which the workers cannot continue.
    failure: Option<WorkerFailure>,
    table: SharedU32s,
    readers: Vec<(LaneId, TraceReader)>,
    collector: Collector,
    trace_file: Option<TraceFile>,
    measured: Measured,
    prefill_share: Option<PrefillShare>,
    wake_ns: f64,
    interrupt: Interrupt,
    /// True while the workers are in a group.
    busy: bool,
    /// True if prompts with a common prefix share its computation.
    shares: bool,
    looked: Instant,
    sampled: Instant,
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
        interrupt: Interrupt,
        progress: &mut LoadProgress<'_>,
    ) -> Result<RunEngine, LaunchError> {
        let begun = Instant::now();
        let mut load_peaks = Peaks::default();
        let mut sampled = Instant::now();
        let launched = launch::launch(
            &plan,
            options,
            &mut |done, total| !interrupt() && progress(done, total),
            &mut |supervisor| {
                if sampled.elapsed() > MEMORY_SAMPLE {
                    load_peaks.sample(supervisor);
                    sampled = Instant::now();
                }
            },
        )?;
        load_peaks.sample(&launched.supervisor);
        let measured = Measured {
            load: begun.elapsed(),
            load_peaks,
            kernel_variants: launched.kernel_variants(&plan),
            device: launched.device.clone(),
            staged: options.staged.iter().map(|staged| staged.path.clone()).collect(),
            ..Measured::default()
        };
        let readers = launched.trace_readers(&plan)?;
        Ok(RunEngine {
            table: launched.control.extra(0, plan.table.words()),
            prefill_share: PrefillShare::new(&plan),
            plan: Arc::new(plan),
            options: options.clone(),
            launched,
            failure: None,
            readers,
            collector: Collector::default(),
            trace_file,
            measured,
            wake_ns: wake::wake_ns(),
            interrupt,
            busy: false,
            shares: false,
            looked: Instant::now(),
            sampled: Instant::now(),
        })
    }

    /// Sets whether prompts with a common prefix share its computation, starting with the next
    /// group. Disabled initially.
    pub fn share_prompts(&mut self, shares: bool) {
        self.shares = shares;
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the spans of the last group.
    pub fn spans(&self) -> Vec<Span> {
        measure::simulator_spans(self.collector.spans.iter()).collect()
    }

    /// Lets the workers exit, completes the trace file and returns the measurements.
    ///
    /// # Errors
    /// A trace file that could not be completed.
    pub fn finish(mut self) -> std::io::Result<Measured> {
        self.measured.peaks.sample(&self.launched.supervisor);
        self.launched.control.release(&[], 0);
        self.launched.supervisor.leave(self.busy);
        // Read after the workers have left, since they publish their final counts on the way out.
        let words = |id: WorkerId| self.launched.control.worker(id.index()).allocations_seen();
        let topology = &self.plan.topology;
        self.measured.allocations =
            topology.worker_ids().map(|id| (topology.worker(id).name.clone(), words(id))).collect();
        self.measured.routed = Routed::read(&self.plan.table, &self.table);
        self.measured.selected = Selected::read(&self.plan.table, &self.table);
        if let Some(file) = self.trace_file.take() {
            file.finish()?;
        }
        self.measured.totals = self.collector.totals;
        let lost_in_rings: u64 = self.readers.iter().map(|(_, reader)| reader.lost()).sum();
        self.measured.totals.lost += lost_in_rings;
        Ok(self.measured)
    }

    /// Checks for an interruption and for failed workers, and samples memory; at most once per
    /// [`SLICE`].
    fn look(&mut self) -> Result<(), EngineError> {
        if self.looked.elapsed() < SLICE {
            return Ok(());
        }
        self.looked = Instant::now();
        if (self.interrupt)() {
            return Err(EngineError::Interrupted);
        }
        if let Err(failure) = self.launched.supervisor.check(&self.plan) {
            let Launched { supervisor, control, .. } = &mut self.launched;
            match take_over(supervisor, (&self.plan, control), &failure) {
                Some(lost) => self.measured.lost_storages.push(lost),
                None => return Err(self.failed(failure)),
            }
        }
        if self.sampled.elapsed() > MEMORY_SAMPLE {
            self.measured.peaks.sample(&self.launched.supervisor);
            self.sampled = Instant::now();
        }
        Ok(())
    }

    fn failed(&mut self, failure: WorkerFailure) -> EngineError {
        self.failure = Some(failure.clone());
        worker_failure(failure)
    }

    /// Returns true if workers that failed in their first group are to be started again in another
    /// way.
    fn starts_again(&mut self) -> bool {
        let failure = self.failure.take().filter(|_| self.measured.groups == 0);
        failure.is_some_and(|failure| starts_carefully(self.options.cuda, &failure))
    }

    /// Replaces the failed workers with new ones.
    fn start_again(&mut self) -> Result<(), EngineError> {
        self.launched.supervisor.leave(true);
        let interrupt = &self.interrupt;
        let launched =
            launch::launch(&self.plan, &self.options, &mut |_, _| !interrupt(), &mut |_| {});
        let failed = |error: LaunchError| match error {
            LaunchError::Interrupted => EngineError::Interrupted,
            LaunchError::Worker(failure) => worker_failure(failure),
            error => EngineError::Failed(error.to_string()),
        };
        self.launched = launched.map_err(failed)?;
        self.readers = self.launched.trace_readers(&self.plan).map_err(failed)?;
        self.table = self.launched.control.extra(0, self.plan.table.words());
        self.measured.kernel_variants = self.launched.kernel_variants(&self.plan);
        self.measured.device.clone_from(&self.launched.device);
        self.busy = false;
        Ok(())
    }

    /// Runs all sequences to their ends, group by group.
    fn run_groups(
        &mut self,
        sequences: &[Sequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let plan = Arc::clone(&self.plan);
        let table = self.table.clone();
        let mut groups = Groups::begin(&table, &plan, sequences, self.shares);
        loop {
            self.run_group(&mut groups, observer)?;
            if !groups.go_on() {
                return Ok(());
            }
        }
    }

    /// Runs the group in the step table to its end.
    fn run_group(
        &mut self,
        groups: &mut Groups<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        self.collector.clear();
        let control = self.launched.control.clone();
        let drained = control.drained().value().wrapping_add(1);
        self.busy = true;
        let followed = self.follow(groups, drained, observer);
        if matches!(followed, Err(EngineError::Interrupted)) {
            self.call_off(groups, drained);
        }
        let Followed { prefill, decode, decode_steps, generated } = followed?;
        self.busy = false;
        let fresh = groups.fresh();
        let measured = &mut self.measured;
        measured.groups += 1;
        measured.prefill += prefill;
        measured.decode += decode;
        measured.prefill_tokens += fresh.tokens;
        measured.shared_tokens += fresh.shared_tokens;
        measured.generated_tokens += generated;
        measured.decode_steps += decode_steps;
        measured.decode_tokens += generated.saturating_sub(fresh.sequences);
        self.collector.end_group(&self.plan);
        if let Some(file) = &mut self.trace_file {
            file.add(&self.plan, &self.collector.spans)
                .map_err(|error| EngineError::Failed(format!("the trace file: {error}")))?;
        }
        if let Some(prediction) = measure::predict(&self.plan, &self.collector.spans, self.wake_ns)
        {
            measured.prediction = Some(prediction);
        }
        match groups.ended(None, |index, result| observer.finished(index, result)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(EngineError::Interrupted),
        }
    }

    /// Releases the group and follows it until the workers have drained it, which raises the
    /// `drained` timeline to `drained`.
    fn follow(
        &mut self,
        groups: &mut Groups<'_>,
        drained: u32,
        observer: &mut dyn Observer,
    ) -> Result<Followed, EngineError> {
        let control = self.launched.control.clone();
        let steps = control.steps().value();
        let begun = Instant::now();
        control.release(&BATCH, groups.list_work());
        let mut prefill = Duration::ZERO;
        let (mut generated, mut decode_steps) = (0, 0);
        for step in 0u32.. {
            let target = steps.wrapping_add(step + 1);
            if step == 0 {
                let Fresh { tokens, shared_tokens, .. } = groups.fresh();
                let all = tokens + shared_tokens;
                let mut tell = |share| observer.prefilled((share * all as f64) as u64, all);
                self.wait(Awaited::Steps, target, &mut tell)?;
                prefill = begun.elapsed();
            } else {
                self.wait(Awaited::Steps, target, &mut |_| {})?;
            }
            generated +=
                groups.new_tokens(|index, token| observer.token(index, token) == Verdict::Stop);
            if groups.ended(Some(step), |index, result| observer.finished(index, result)).is_break()
            {
                return Err(EngineError::Interrupted);
            }
            self.drain_trace();
            decode_steps = u64::from(step);
            if control.last_step().is_some_and(|last| step >= last) {
                break;
            }
        }
        self.wait(Awaited::Drained, drained, &mut |_| {})?;
        self.drain_trace();
        Ok(Followed { prefill, decode: begun.elapsed() - prefill, decode_steps, generated })
    }

    /// Ends an interrupted group with its next step. Gives the workers up to [`CALL_OFF_MAX`] to
    /// get there, since idle workers exit by themselves.
    fn call_off(&mut self, groups: &Groups<'_>, drained: u32) {
        groups.cancel();
        let control = self.launched.control.clone();
        let until = Instant::now() + CALL_OFF_MAX;
        while Instant::now() < until {
            if control.drained().wait_at_least(drained, control.poison(), SLICE).is_ok() {
                self.busy = false;
                return;
            }
            self.drain_trace();
        }
    }

    fn drain_trace(&mut self) {
        for (lane, reader) in &mut self.readers {
            reader.drain(|record| self.collector.push(*lane, record));
        }
    }

    /// Returns the fraction of prefill that is done, from 0 to 1.
    fn prefill_share(&self) -> f64 {
        let Some(share) = &self.prefill_share else { return 0.0 };
        let position = self.launched.control.lane(share.lane.index()).position();
        let is_prefill = position.program == u32::from(ProgramId::PREFILL.0);
        if is_prefill { share.at(position.instruction) } else { 1.0 }
    }

    /// Waits until a timeline of the control segment reaches `target`, checking the workers
    /// meanwhile. Calls `tell` from time to time with the fraction of prefill that is done.
    fn wait(
        &mut self,
        which: Awaited,
        target: u32,
        tell: &mut dyn FnMut(f64),
    ) -> Result<(), EngineError> {
        loop {
            let control = &self.launched.control;
            let timeline = match which {
                Awaited::Steps => control.steps(),
                Awaited::Drained => control.drained(),
            };
            match timeline.wait_at_least(target, control.poison(), SLICE) {
                Ok(()) => return self.look(),
                Err(WaitError::TimedOut { .. }) => {
                    self.drain_trace();
                    self.look()?;
                    tell(self.prefill_share());
                }
                Err(WaitError::Poisoned(_)) => {
                    let failure = self.launched.supervisor.cause(&self.plan);
                    return Err(self.failed(failure));
                }
            }
        }
    }
}

/// Measurements of a group that was followed to its end.
#[derive(Debug, Clone, Copy)]
struct Followed {
    prefill: Duration,
    decode: Duration,
    decode_steps: u64,
    generated: u64,
}

#[derive(Debug, Clone, Copy)]
enum Awaited {
    Steps,
    Drained,
}

fn worker_failure(failure: WorkerFailure) -> EngineError {
    let kind = match failure.is_about_device_memory() {
        true => EngineError::DeviceMemory,
        false => EngineError::Failed,
    };
    kind(failure.to_string())
}

impl Engine for RunEngine {
    fn run(
        &mut self,
        sequences: &[Sequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let mut observer = TellingOnce::new(observer, sequences.len());
        loop {
            let ended = self.run_groups(sequences, &mut observer);
            if ended.is_ok() || !self.starts_again() {
                return ended;
            }
            self.start_again()?;
            observer.begin_again();
        }
    }
}
