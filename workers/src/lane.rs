//! A lane: one thread that interprets one list of instructions, group after group, step after step.
//!
//! Every lane derives the same timeline bases and the same number of steps from the program and the
//! control words, so nothing is negotiated: waits compare with `base + step * signals_per_step +
//! offset`, and all lanes leave a group after the same step, because the sampler announces the last
//! step one step ahead of the lane that may be furthest ahead. Between the stages of a group all
//! lanes meet at a barrier.

use std::sync::Arc;
use std::time::Duration;

use program::ir::{Instruction, Program, ProgramId, TimelineWait};
use program::plan::Plan;
use program::topology::{LaneId, WorkerId};
use protocol::table::StepTable;
use shm::timeline::reached;
use shm::{
    Control, Position, STAGES_MAX, StepOfGroup, Timeline, TraceRecord, TraceWriter, WaitError,
    WorkerState, now_ns,
};

use crate::checkpoint::{LaneCheckpoint, StageStart};
use crate::error::{LaneError, describe_position};
use crate::execute::announce::announce;
use crate::lane_executor::{LaneExecutor, Task};
use crate::sample_dependency::{SampleDependency, last_sample, table_batch};
use crate::stall::{StallBounds, StallDetector};

/// Interval at which a lane that waits for the next group checks again; a release wakes it at once.
const GROUP_SLICE: Duration = Duration::from_secs(60);
/// Bound on a wait at a barrier. Lanes without work in a program wait at its end for as long as the
/// program lasts. A lane that hangs is detected by those that wait for its timeline, and their
/// poison releases the barrier too.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Arguments of a lane, in addition to its executor.
#[derive(Debug)]
pub struct LaneSetup {
    pub lane: LaneId,
    /// Worker that runs the lane.
    pub worker: WorkerId,
    pub plan: Arc<Plan>,
    pub control: Control,
    /// `None` if the device's side of the lane writes the trace.
    pub trace: Option<TraceWriter>,
    /// Bounds of a wait for a lane that makes no progress.
    pub stall_bounds: StallBounds,
    /// Emulated link speed, which bounds the rate of copies; `None` for the speed of memory.
    pub link_bytes_per_s: Option<u64>,
    /// Checkpoint in which the lane publishes its current stage, for the standby lanes of the same
    /// worker.
    pub checkpoint: Option<Arc<LaneCheckpoint>>,
}

/// Position at which a lane resumes after another worker was lost.
#[derive(Debug, Clone)]
pub(crate) struct ResumePoint {
    /// Stage that the lane was in.
    pub(crate) stage: StageStart,
    /// First incomplete step of the stage.
    pub(crate) step: u32,
    /// Index of the next instruction of the list in that step.
    pub(crate) instruction: usize,
}

/// A lane of a worker; see the module documentation.
#[derive(Debug)]
pub struct LaneRunner {
    setup: LaneSetup,
    executor: Box<dyn LaneExecutor>,
    table: StepTable,
    /// Timelines at the start of the current stage, by lane.
    bases: Vec<u32>,
    /// Number of signals of a lane per step, by program and lane.
    signals: Vec<Vec<u32>>,
    /// `Control::steps` at the start of the group.
    steps_base: u32,
    /// Index of the last `Sample` of this lane's list, by program.
    last_sample: Vec<Option<usize>>,
    /// Dependency after which a batch's rows of the next step are listed, by program and batch.
    sample_dependencies: Vec<Vec<SampleDependency>>,
    /// First lane of its worker, which advances the worker's state.
    first_of_worker: bool,
    /// First lane of all, which signals that a group has drained.
    first_of_all: bool,
}

impl LaneRunner {
    /// Returns a lane that has not run yet. The control segment must be fresh.
    pub fn new(setup: LaneSetup, executor: Box<dyn LaneExecutor>) -> LaneRunner {
        let plan = Arc::clone(&setup.plan);
        let topology = &plan.topology;
        let signals = plan.programs.iter().map(|program| {
            let signals = |lane| program.lane(lane).map_or(0, |list| list.signals_per_step);
            topology.lane_ids().map(signals).collect()
        });
        let signals = signals.collect();
        let of_list = |program: &Program| program.lane(setup.lane).and_then(last_sample);
        let last_sample = plan.programs.iter().map(of_list).collect();
        let of_batches = |program: &Program| {
            let batches = 0..plan.shape.batches;
            batches.map(|batch| SampleDependency::find(program, setup.lane, batch)).collect()
        };
        let sample_dependencies = plan.programs.iter().map(of_batches).collect();
        let lanes = plan.lanes();
        let of_worker = topology.lanes_of(setup.worker);
        let first = of_worker.iter().find(|lane| lanes.contains(lane));
        LaneRunner {
            first_of_worker: first == Some(&setup.lane),
            first_of_all: lanes.first() == Some(&setup.lane),
            table: StepTable::new(setup.control.extra(0, plan.table.words()), &plan),
            setup,
            executor,
            bases: vec![0; topology.lanes.len()],
            signals,
            steps_base: 0,
            last_sample,
            sample_dependencies,
        }
    }

    /// Returns the name of the lane.
    pub fn name(&self) -> &str {
        self.setup.plan.lane_name(self.setup.lane)
    }

    /// Returns the identifier of the lane.
    pub fn lane(&self) -> LaneId {
        self.setup.lane
    }

    /// Returns the plan of the lane.
    pub(crate) fn plan(&self) -> &Plan {
        &self.setup.plan
    }

    /// Sets the ring in which the lane records its work.
    pub(crate) fn set_trace(&mut self, trace: Option<TraceWriter>) {
        self.setup.trace = trace;
    }

    /// Runs groups until the coordinator announces the end of the run.
    ///
    /// # Errors
    /// Returns poison, or an error if no lane made progress within the bound; the caller poisons
    /// the run.
    pub fn run(&mut self) -> Result<(), LaneError> {
        self.run_from(None)
    }

    /// Runs groups from the position at which another worker left the lane.
    pub(crate) fn run_from(&mut self, resumed: Option<ResumePoint>) -> Result<(), LaneError> {
        let ended = self.run_groups(resumed);
        match ended {
            // Poison caused by this lane's own failure is reported as that failure.
            Err(LaneError::Poisoned) => {
                Err(self.executor.own_failure().unwrap_or(LaneError::Poisoned))
            }
            ended => ended,
        }
    }

    fn run_groups(&mut self, mut resumed: Option<ResumePoint>) -> Result<(), LaneError> {
        let control = self.setup.control.clone();
        self.executor.begin()?;
        let first = resumed.as_ref().map_or(1, |resumed| resumed.stage.group);
        for group in first.. {
            self.wait_for_group(&control, group)?;
            if control.stages().next().is_none() {
                if let Some(checkpoint) = &self.setup.checkpoint {
                    checkpoint.end();
                }
                return Ok(());
            }
            let words = control.worker(self.setup.worker.index());
            if self.first_of_worker && words.state() == WorkerState::Ready {
                words.set_state(WorkerState::Run);
            }
            self.run_group(&control, group, resumed.take())?;
        }
        Ok(())
    }

    fn run_group(
        &mut self,
        control: &Control,
        group: u32,
        resumed: Option<ResumePoint>,
    ) -> Result<(), LaneError> {
        let plan = Arc::clone(&self.setup.plan);
        let mut stages = [None; STAGES_MAX];
        stages.iter_mut().zip(control.stages()).for_each(|(place, stage)| *place = Some(stage));
        // Stages that are all known at the release are copied here, since the next release may
        // overwrite them before this lane has left. Stages announced during the group are protected
        // by an additional barrier instead.
        let is_hybrid = plan.shape.has_owners();
        let stage_at = |index: usize| match is_hybrid {
            true => control.stage(index),
            false => stages.get(index).copied().flatten(),
        };
        let (mut begun, mut steps, mut instruction, mut first) = (0, 0, 0, 0);
        if let Some(resumed) = resumed {
            self.bases.copy_from_slice(&resumed.stage.bases);
            self.steps_base = resumed.stage.steps_base;
            first = resumed.stage.index;
            (steps, instruction) = (resumed.step, resumed.instruction);
            begun = resumed.stage.begun + steps;
        }
        for index in first.. {
            let Some(stage) = stage_at(index) else { break };
            let program = &plan.programs[stage.program as usize];
            if let Some(checkpoint) = &self.setup.checkpoint {
                checkpoint.begin_stage(group, index, &self.bases, self.steps_base, begun);
            }
            while steps < stage.steps {
                if begun >= 2 {
                    // The samples of the step before the previous one are complete, so it is known
                    // whether this step belongs to the group.
                    let target = self.steps_base.wrapping_add(begun - 1);
                    self.wait(control.steps(), target, WaitSubject::Tokens)?;
                }
                if control.last_step().is_some_and(|last| begun > last) {
                    break;
                }
                let step = Step { of_program: steps, of_group: begun, group, stage: index };
                self.run_list(program, step, std::mem::take(&mut instruction))?;
                steps += 1;
                // Only steps that draw tokens are counted.
                begun += u32::from(program.shape.samples() > 0);
            }
            self.executor.wait_until_complete()?;
            control.lane(self.setup.lane.index()).count_arrival();
            self.barrier(control)?;
            self.advance_bases(program.id, std::mem::take(&mut steps));
        }
        self.steps_base = self.steps_base.wrapping_add(begun);
        if is_hybrid {
            // All lanes have seen that no stage follows.
            self.barrier(control)?;
        }
        if self.first_of_all {
            control.drained().signal();
        }
        Ok(())
    }

    /// Runs this lane's list once, starting at instruction `first`.
    fn run_list(&mut self, program: &Program, step: Step, first: usize) -> Result<(), LaneError> {
        let Some(list) = program.lane(self.setup.lane) else { return Ok(()) };
        let program = program.id;
        let control = self.setup.control.clone();
        let words = control.lane(self.setup.lane.index());
        self.executor.begin_list(StepOfGroup { group: step.group, step: step.of_group });
        for (index, instruction) in list.instructions.iter().enumerate().skip(first) {
            if !self.executor.is_asynchronous() {
                // An asynchronous executor begins the instruction later, and then sets the position
                // itself.
                words.set_position(Position {
                    program: program.0.into(),
                    step: step.of_program,
                    instruction: index as u32,
                });
            }
            match instruction {
                Instruction::Wait(wait) => self.wait_lane(program, step.of_program, wait)?,
                Instruction::Signal => self.executor.signal(&words.timeline),
                work => {
                    self.wait_for_table(program, step, work)?;
                    let step_of_program = step.of_program;
                    self.work(Task { program, step: step_of_program, index, instruction: work })?;
                    if self.last_sample[program.index()] == Some(index) {
                        announce(&control, &self.table, step.of_group, step.stage);
                    }
                }
            }
        }
        Ok(())
    }

    fn work(&mut self, task: Task<'_>) -> Result<(), LaneError> {
        let Task { program, step, index, instruction } = task;
        let start_ns = now_ns();
        let Some(work) = self.executor.execute(task)? else { return Ok(()) };
        if let (Some(speed), Instruction::Copy(_)) = (self.setup.link_bytes_per_s, instruction) {
            let min_ns = u128::from(work.bytes) * 1_000_000_000 / u128::from(speed.max(1));
            let min_duration = Duration::from_nanos(u64::try_from(min_ns).unwrap_or(u64::MAX));
            let spent = Duration::from_nanos(now_ns().saturating_sub(start_ns));
            std::thread::sleep(min_duration.saturating_sub(spent));
        }
        let Some(trace) = &mut self.setup.trace else { return Ok(()) };
        trace.push(TraceRecord {
            start_ns,
            end_ns: now_ns(),
            bytes: work.bytes,
            rows: work.rows,
            instruction: index as u32,
            step,
            program: program.0.into(),
        });
        Ok(())
    }

    fn wait_lane(
        &mut self,
        program: ProgramId,
        step: u32,
        wait: &TimelineWait,
    ) -> Result<(), LaneError> {
        let signals = self.signals[program.index()][wait.lane.index()];
        let target = wait_target(self.bases[wait.lane.index()], signals, step, wait);
        let control = self.setup.control.clone();
        let timeline = &control.lane(wait.lane.index()).timeline;
        if self.executor.is_asynchronous()
            && (reached(timeline.value(), target)
                || self.executor.order_after(wait.lane, target)?)
        {
            return Ok(());
        }
        self.wait(timeline, target, WaitSubject::Lane(wait.lane))
    }

    /// Waits for the sampler of the step before, which wrote the sizes that the instruction reads.
    /// On a device the sizes are read when the instruction is enqueued, and the instruction's own
    /// waits may be performed by the stream, so this wait has to happen on the host.
    fn wait_for_table(
        &mut self,
        program: ProgramId,
        step: Step,
        instruction: &Instruction,
    ) -> Result<(), LaneError> {
        if !self.executor.is_asynchronous() || step.of_program == 0 {
            return Ok(());
        }
        let Some(batch) = table_batch(instruction) else { return Ok(()) };
        let control = self.setup.control.clone();
        match self.sample_dependencies[program.index()][usize::from(batch)] {
            SampleDependency::OwnList => Ok(()),
            SampleDependency::LaneSignal(wait) => {
                let signals = self.signals[program.index()][wait.lane.index()];
                let target =
                    wait_target(self.bases[wait.lane.index()], signals, step.of_program, &wait);
                let timeline = &control.lane(wait.lane.index()).timeline;
                self.wait(timeline, target, WaitSubject::Lane(wait.lane))
            }
            SampleDependency::EndOfStep => {
                let target = self.steps_base.wrapping_add(step.of_group);
                self.wait(control.steps(), target, WaitSubject::Tokens)
            }
        }
    }

    /// Waits until `timeline` has reached `target`. The bound applies to lack of progress: as long
    /// as any lane moves from instruction to instruction, a long program is not a failure.
    fn wait(
        &mut self,
        timeline: &Timeline,
        target: u32,
        awaited: WaitSubject,
    ) -> Result<(), LaneError> {
        if !reached(timeline.value(), target) {
            self.executor.on_blocked();
        }
        let control = &self.setup.control;
        let timeout = self.setup.stall_bounds.current(control);
        let mut detector = StallDetector::new(control, self.bases.len(), timeout);
        loop {
            match timeline.wait_until(target, control.poison(), detector.slice()) {
                Ok(()) => return Ok(()),
                Err(WaitError::TimedOut { .. }) if detector.check() < timeout => {}
                Err(error) => return Err(self.lane_error(&error, awaited, timeout)),
            }
        }
    }

    fn wait_for_group(&self, control: &Control, group: u32) -> Result<(), LaneError> {
        loop {
            match control.groups().wait_until(group, control.poison(), GROUP_SLICE) {
                Ok(()) => return Ok(()),
                // A timeout is no failure: the coordinator may have nothing to do.
                Err(WaitError::TimedOut { .. }) => {}
                Err(WaitError::Poisoned(_)) => return Err(LaneError::Poisoned),
            }
        }
    }

    fn barrier(&mut self, control: &Control) -> Result<(), LaneError> {
        let met = control.barrier().wait(control.poison(), BARRIER_TIMEOUT);
        let is_last =
            met.map_err(|error| self.lane_error(&error, WaitSubject::Lanes, BARRIER_TIMEOUT))?;
        if !is_last {
            self.executor.on_blocked();
        }
        Ok(())
    }

    fn lane_error(&self, error: &WaitError, awaited: WaitSubject, limit: Duration) -> LaneError {
        let lane = self.setup.lane;
        let place = || {
            let position = self.setup.control.lane(lane.index()).position();
            describe_position(&self.setup.plan, lane, position)
        };
        let plan = &self.setup.plan;
        let awaited = match awaited {
            WaitSubject::Lane(lane) => plan.lane_name(lane),
            WaitSubject::Tokens => "the sampled tokens",
            WaitSubject::Lanes => "the other lanes",
        };
        LaneError::from_wait(error, plan.lane_name(lane), awaited, place, limit.as_secs())
    }

    fn advance_bases(&mut self, program: ProgramId, steps: u32) {
        for (base, signals) in self.bases.iter_mut().zip(&self.signals[program.index()]) {
            *base = base.wrapping_add(signals.wrapping_mul(steps));
        }
    }
}

/// Returns the timeline value that a wait requires, in wrapping arithmetic. A wait for the previous
/// step is already satisfied in the first step of a program.
pub fn wait_target(base: u32, signals_per_step: u32, step: u32, wait: &TimelineWait) -> u32 {
    let target = base.wrapping_add(step.wrapping_mul(signals_per_step)).wrapping_add(wait.offset);
    if wait.previous_step { target.wrapping_sub(signals_per_step) } else { target }
}

/// The step being run.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Index within the stage.
    of_program: u32,
    /// Index within the group.
    of_group: u32,
    group: u32,
    /// Index of the stage within the group.
    stage: usize,
}

/// Target of a wait, as named in errors.
#[derive(Debug, Clone, Copy)]
enum WaitSubject {
    Lane(LaneId),
    Tokens,
    /// All lanes that have work.
    Lanes,
}
