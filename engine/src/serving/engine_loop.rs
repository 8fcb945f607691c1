//! Main loop of a server: the thread that drives its workers.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine_api::serving::{EngineState, EngineStatus, EventSink, GenerationId, GenerationRequest};
use program::plan::Plan;
use protocol::messages::FromWorker;
use protocol::release::list_first;
use protocol::table::{HybridPolicy, StepTable};

use super::hybrid_costs::measure_hybrid_costs;
use super::lane_activity::{LaneActivityRecorder, SharedLaneActivity};
use super::options::ServingOptions;
use super::prefix_cache_index::PrefixCacheIndex;
use super::restart_backoff::RestartBackoff;
use super::scheduler::Scheduler;
use super::step_costs::measure_step_costs;
use super::step_recorder::StepRecorder;
use super::worker_group::{MeasuredEngineCosts, WorkerGroup, hybrid_policy};
use crate::RunStats;
use crate::descriptors::DescriptorReserve;
use crate::launch::{LaunchError, POLL_INTERVAL};
use crate::memory::MemorySampler;
use crate::recorder::RunRecorder;
use crate::supervisor::WorkerFailure;

/// Maximum time to wait for a worker's message if there is nothing else to do.
const GRAMMAR_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time to wait for a message about a copy after which a sequence can be offered, so that
/// the next step includes it.
const COPY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time that shutdown waits for prompts to be stored.
const STORE_FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time that shutdown waits for a group in which nothing is left to compute.
const GROUP_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Commands from the server's threads to this one.
pub(super) enum Command {
    Submit {
        id: GenerationId,
        submission: Box<GenerationRequest>,
        sink: Box<dyn EventSink>,
    },
    Cancel(GenerationId),
    /// No more submissions arrive; the accepted ones are answered.
    Drain,
    /// The engine was dropped.
    Stop,
}

/// Main loop of a server. See the module header.
pub(super) struct EngineLoop {
    options: ServingOptions,
    commands: Receiver<Command>,
    status: Arc<Mutex<EngineStatus>>,
    /// Current status, published in `status` by `EngineLoop::publish_status`.
    current_status: EngineStatus,
    costs: MeasuredEngineCosts,
    scheduler: Scheduler,
    worker_group: Option<WorkerGroup>,
    recorder: Option<StepRecorder>,
    /// `None` if the recorder reads the traces.
    activity: Option<LaneActivityRecorder>,
    restarts: RestartBackoff,
    /// Descriptors reserved for a launch, even if connections have taken all others.
    reserve: DescriptorReserve,
}

impl EngineLoop {
    /// Starts the workers.
    ///
    /// # Errors
    /// The failure that kept a worker from becoming ready.
    pub(super) fn start(
        mut options: ServingOptions,
        commands: Receiver<Command>,
        status: Arc<Mutex<EngineStatus>>,
        lanes: SharedLaneActivity,
    ) -> Result<EngineLoop, LaunchError> {
        let (prompts, shape) = (options.launch.prompt_cache.as_ref(), options.plan.shape);
        let prefix_cache = prompts
            .map(|at| PrefixCacheIndex::open(at, shape.page_positions, shape.checkpoints > 0));
        let scheduler = Scheduler::new(&options.plan, prefix_cache.transpose()?);
        let Launched { worker_group, costs, load, load_memory } =
            match launch_measured(&mut options) {
                Err(LaunchError::Worker(failure)) if options.launch.enter_safe_mode(&failure) => {
                    launch_measured(&mut options)?
                }
                launched => launched?,
            };
        worker_group.clear(&options, &costs);
        let current_status = *status.lock().unwrap_or_else(PoisonError::into_inner);
        let trace_file = options.trace_file.take();
        let recorder = match options.records {
            true => {
                let ServingOptions { plan, launch, .. } = &options;
                let launched = &worker_group.launched;
                let mut recorder = RunRecorder::new(plan, launch, launched, trace_file)?;
                recorder.stats.load = load;
                recorder.stats.load_peak_memory = load_memory.peak;
                Some(StepRecorder::new(recorder, current_status))
            }
            false => None,
        };
        let launched = &worker_group.launched;
        let activity = match recorder {
            Some(_) => None,
            None => Some(LaneActivityRecorder::new(&options.plan, launched, lanes)?),
        };
        let mut engine_loop = EngineLoop {
            options,
            commands,
            status,
            current_status,
            costs,
            scheduler,
            worker_group: Some(worker_group),
            recorder,
            activity,
            restarts: RestartBackoff::default(),
            reserve: DescriptorReserve::take(),
        };
        engine_loop.current_status.state = EngineState::Ready;
        engine_loop.publish_status();
        Ok(engine_loop)
    }

    /// Returns the parameters that decide iterations; `None` if sequences have no owners.
    pub(super) fn hybrid_policy(&self) -> Option<HybridPolicy> {
        hybrid_policy(&self.options, &self.costs)
    }

    /// Serves until no more submissions can arrive or be computed. Returns the measurements, if
    /// they are recorded.
    pub(super) fn run(&mut self) -> Option<std::io::Result<RunStats>> {
        while self.run_once().is_continue() {
            self.publish_status();
        }
        self.current_status.state = EngineState::Draining;
        self.publish_status();
        self.flush_stores();
        self.finish_group();
        self.scheduler.fail_all("The server has ended.");
        let plan = &self.options.plan;
        let recorder = self.recorder.take();
        let stats = match (&mut self.worker_group, recorder) {
            (Some(worker_group), Some(recorder)) => Some(recorder.finish(plan, worker_group)),
            (Some(worker_group), None) => {
                worker_group.shut_down();
                None
            }
            (None, _) => None,
        };
        // This state is published last: a thread that waits for it may end the process, and no
        // worker must be left then.
        self.current_status.state = EngineState::Ended;
        self.publish_status();
        stats
    }

    /// Stores the computed parts of prompts. Bounded by [`STORE_FLUSH_TIMEOUT`], since shutdown
    /// waits for it.
    fn flush_stores(&mut self) {
        let until = Instant::now() + STORE_FLUSH_TIMEOUT;
        while self.scheduler.is_storing() && Instant::now() < until {
            let Some(worker_group) = &mut self.worker_group else { return };
            self.scheduler.flush_stores();
            let plan = &self.options.plan;
            let sent = worker_group.send(plan, &self.scheduler.take_messages());
            if sent.and_then(|()| worker_group.check_health(plan)).is_err() {
                return;
            }
            let messages = worker_group.receive(GRAMMAR_POLL_INTERVAL);
            self.handle_messages(messages);
        }
    }

    /// Lets a group end in which no sequence is to be answered any more, so that its last steps are
    /// measured and workers exit by themselves.
    fn finish_group(&mut self) {
        let until = Instant::now() + GROUP_END_TIMEOUT;
        let is_in_group = |group: &Option<WorkerGroup>| {
            group.as_ref().is_some_and(|worker_group| worker_group.group.is_some())
        };
        while self.scheduler.has_only_cancelled()
            && is_in_group(&self.worker_group)
            && Instant::now() < until
        {
            if self.step().is_err() {
                return;
            }
        }
    }

    /// Handles messages from workers.
    fn handle_messages(&mut self, messages: Vec<FromWorker>) {
        let Some(worker_group) = &self.worker_group else { return };
        for message in messages {
            let warning = self.scheduler.handle_message(
                &worker_group.table,
                &self.options.plan,
                message,
                &mut self.current_status,
            );
            warning.iter().for_each(|sentence| (self.options.log)(sentence));
        }
    }

    fn publish_status(&self) {
        publish(&self.status, &self.current_status);
    }

    /// Handles commands and runs one iteration. Returns `Break` if nothing is left to do.
    fn run_once(&mut self) -> ControlFlow<()> {
        let is_idle =
            self.scheduler.is_empty() && self.current_status.state != EngineState::Draining;
        let wait = match (&self.worker_group, is_idle) {
            (None, _) => self.restarts.remaining_pause(Instant::now()).min(POLL_INTERVAL),
            (Some(_), true) => POLL_INTERVAL,
            (Some(_), false) => Duration::ZERO,
        };
        let table = self.worker_group.as_ref().map(|group| &group.table);
        if take_commands(&self.commands, &mut self.scheduler, table, &mut self.current_status, wait)
            .is_break()
        {
            return ControlFlow::Break(());
        }
        if self.current_status.state == EngineState::Draining && self.scheduler.is_empty() {
            return ControlFlow::Break(());
        }
        if self.worker_group.is_none() {
            let is_due = self.restarts.remaining_pause(Instant::now()).is_zero();
            return if is_due { self.restart_workers() } else { ControlFlow::Continue(()) };
        }
        match self.step() {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => self.handle_failure(&failure),
        }
    }

    /// Offers sequences, exchanges messages with the workers, and follows a step if there is
    /// anything to compute.
    fn step(&mut self) -> Result<(), WorkerFailure> {
        let Some(worker_group) = &mut self.worker_group else { return Ok(()) };
        let plan = &self.options.plan;
        self.scheduler.offer(&worker_group.table, plan);
        self.scheduler
            .poll_lookups(&worker_group.table)
            .iter()
            .for_each(|sentence| (self.options.log)(sentence));
        self.scheduler.send_stores();
        worker_group.send(plan, &self.scheduler.take_messages())?;
        let is_awaited =
            self.scheduler.is_waiting_for_grammars() || self.scheduler.is_waiting_for_pages();
        if is_awaited || self.scheduler.is_storing() {
            let wait = match (
                worker_group.group.is_none() && is_awaited,
                self.scheduler.is_waiting_for_copies(),
            ) {
                (true, _) => GRAMMAR_POLL_INTERVAL,
                (false, true) => COPY_POLL_INTERVAL,
                (false, false) => Duration::ZERO,
            };
            let messages = worker_group.receive(wait);
            self.handle_messages(messages);
        }
        let Some(worker_group) = &mut self.worker_group else { return Ok(()) };
        let plan = &self.options.plan;
        if worker_group.group.is_none() && list_first(&worker_group.table) {
            worker_group.release();
            self.recorder.iter_mut().for_each(StepRecorder::begin_group);
        }
        let is_in_group = worker_group.group.is_some();
        let steps = worker_group.wait_for_steps(plan)?;
        if steps > 0 {
            self.restarts.reset();
            self.current_status.steps += u64::from(steps);
        }
        self.activity.iter_mut().for_each(LaneActivityRecorder::drain);
        worker_group.update_counts(&mut self.current_status.hybrid_steps);
        self.current_status.worker_allocations = worker_group.allocations();
        observe(
            &mut self.scheduler,
            &worker_group.table,
            plan,
            &mut self.current_status,
            &self.status,
        );
        if let MeasuredEngineCosts::Steps(costs) = &self.costs {
            let rows = plan.shape.prefill_chunk;
            self.current_status.prompt_progress =
                self.scheduler.prompt_progress(&worker_group.table, costs, rows);
        }
        if let Some(recorder) = self.recorder.as_mut().filter(|_| is_in_group) {
            recorder.add_steps(plan, worker_group, steps, &self.current_status);
        }
        worker_group.check_health(plan)
    }

    /// Gives up all workers after one of them was lost.
    fn handle_failure(&mut self, failure: &WorkerFailure) -> ControlFlow<()> {
        let reason = failure.to_string();
        if let Some(worker_group) = self.worker_group.take() {
            let table = worker_group.table.clone();
            // No process writes to the table any more: the tokens sampled so far are reported,
            // once.
            drop(worker_group);
            observe(
                &mut self.scheduler,
                &table,
                &self.options.plan,
                &mut self.current_status,
                &self.status,
            );
            self.scheduler.requeue_all(&table, &self.options.plan, &reason);
        }
        // If lanes stalled, the workers are started again in the most careful way.
        self.options.launch.enter_safe_mode(failure);
        self.current_status.restarts += 1;
        self.schedule_restart(&reason)
    }

    /// Schedules another start of the workers after a pause, unless they were lost too often.
    fn schedule_restart(&mut self, reason: &str) -> ControlFlow<()> {
        if self.current_status.state == EngineState::Ready {
            // A server that drains keeps reporting that state.
            self.current_status.state = EngineState::Loading;
        }
        let Some(pause) = self.restarts.record_loss(Instant::now()) else {
            return self.stop_restarting(reason);
        };
        let when = match pause.is_zero() {
            true => String::new(),
            false => format!(" in {:.1} s", pause.as_secs_f64()),
        };
        (self.options.log)(&format!("{reason}; the workers are started again{when}"));
        ControlFlow::Continue(())
    }

    fn stop_restarting(&mut self, reason: &str) -> ControlFlow<()> {
        (self.options.log)(&format!("{reason}; the server ends"));
        self.scheduler.fail_all(&format!("The model's workers cannot be kept running: {reason}."));
        ControlFlow::Break(())
    }

    /// Starts workers, and meanwhile handles commands, which may end the server.
    fn restart_workers(&mut self) -> ControlFlow<()> {
        self.publish_status();
        self.reserve.release();
        let EngineLoop { options, commands, scheduler, current_status, status, .. } = self;
        let mut on_progress = |_, _| {
            let control_flow =
                take_commands(commands, scheduler, None, current_status, Duration::ZERO);
            publish(status, current_status);
            control_flow.is_continue()
                && !(current_status.state == EngineState::Draining && scheduler.is_empty())
        };
        let ServingOptions { plan, launch, .. } = options;
        let launched = WorkerGroup::launch(plan, launch, &mut on_progress, &mut |_| {});
        let launched = launched.and_then(|worker_group| {
            let recorder = self.recorder.as_mut();
            recorder.map_or(Ok(()), |recorder| recorder.attach(plan, &worker_group))?;
            let (activity, launched) = (self.activity.as_mut(), &worker_group.launched);
            activity.map_or(Ok(()), |activity| activity.attach(plan, launched))?;
            Ok(worker_group)
        });
        self.reserve = DescriptorReserve::take();
        match launched {
            Ok(worker_group) => {
                if self.current_status.state == EngineState::Loading {
                    self.current_status.state = EngineState::Ready;
                }
                worker_group.clear(&self.options, &self.costs);
                self.worker_group = Some(worker_group);
                ControlFlow::Continue(())
            }
            // A command interrupted the launch.
            Err(LaunchError::Interrupted) => ControlFlow::Break(()),
            Err(error) => self.schedule_restart(&error.to_string()),
        }
    }

    /// Ends a server whose thread has panicked: every sequence gets an answer, and no worker is
    /// left running.
    pub(super) fn abort(&mut self) {
        self.current_status.state = EngineState::Draining;
        self.publish_status();
        self.worker_group = None;
        self.scheduler.fail_all("The server ends because of an internal error.");
    }

    /// Publishes that the server has ended: nothing is left that could answer.
    pub(super) fn mark_ended(status: &Mutex<EngineStatus>) {
        status.lock().unwrap_or_else(PoisonError::into_inner).state = EngineState::Ended;
    }
}

/// Workers that have loaded the model, and what was measured of them.
struct Launched {
    worker_group: WorkerGroup,
    costs: MeasuredEngineCosts,
    /// Duration of the launch.
    load: Duration,
    load_memory: MemorySampler,
}

/// Starts the workers and measures a few steps, unless their costs were specified.
fn launch_measured(options: &mut ServingOptions) -> Result<Launched, LaunchError> {
    let plan = &options.plan;
    let (begun, mut load_memory) = (Instant::now(), MemorySampler::new());
    let mut worker_group = WorkerGroup::launch(
        plan,
        &options.launch,
        &mut *options.on_load_progress,
        &mut |supervisor| load_memory.sample_if_due(supervisor),
    )?;
    let load = begun.elapsed();
    load_memory.peak.sample(&worker_group.launched.supervisor);
    let table = &worker_group.table;
    let costs = match plan.shape.has_owners() {
        true => MeasuredEngineCosts::Hybrid(match options.costs {
            Some(costs) => costs,
            None => measure_hybrid_costs(plan, &mut worker_group.launched, table)?,
        }),
        false => {
            let (launched, max_drafts) = (&mut worker_group.launched, options.max_drafts());
            MeasuredEngineCosts::Steps(match options.step_costs {
                Some(costs) => costs,
                None => measure_step_costs(plan, launched, table, max_drafts)?,
            })
        }
    };
    Ok(Launched { worker_group, costs, load, load_memory })
}

/// Handles the commands that have arrived, waiting at most `wait` for the first. Returns `Break` if
/// the engine was dropped.
fn take_commands(
    commands: &Receiver<Command>,
    scheduler: &mut Scheduler,
    table: Option<&StepTable>,
    current_status: &mut EngineStatus,
    wait: Duration,
) -> ControlFlow<()> {
    let mut next = match wait.is_zero() {
        false => commands.recv_timeout(wait),
        true => commands.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        }),
    };
    loop {
        match next {
            Ok(Command::Submit { id, submission, sink }) => {
                scheduler.submit(id, *submission, sink);
            }
            Ok(Command::Cancel(id)) => scheduler.cancel(table, id),
            Ok(Command::Drain) => current_status.state = EngineState::Draining,
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => {
                return ControlFlow::Break(());
            }
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
        }
        next = commands.try_recv().map_err(|_| RecvTimeoutError::Timeout);
    }
}

/// Sends the events of the latest steps and publishes the status. The status is locked until both
/// are done, so that a client that has received a token reads a status that counts it.
fn observe(
    scheduler: &mut Scheduler,
    table: &StepTable,
    plan: &Plan,
    current_status: &mut EngineStatus,
    status: &Mutex<EngineStatus>,
) {
    let mut published = status.lock().unwrap_or_else(PoisonError::into_inner);
    scheduler.observe(table, plan, current_status);
    *published = *current_status;
}

/// Publishes the status.
fn publish(status: &Mutex<EngineStatus>, current_status: &EngineStatus) {
    *status.lock().unwrap_or_else(PoisonError::into_inner) = *current_status;
}
