//! A lane: one thread that interprets one list of instructions, group after group, step after step.
//!
//! Every lane derives the same timeline bases and the same number of steps from the program and the
//! control words, so nothing is negotiated: waits compare with `base + step * signals_per_step +
//! offset`, and all lanes leave decode after the same step because the sampler announces the last
//! step one step ahead of whoever may run furthest.

use std::sync::Arc;
use std::time::Duration;

use model::ops::Op;
use program::ir::{Instruction, LaneProgram, Phase, Program, Wait};
use program::plan::Plan;
use program::topology::{LaneId, WorkerId};
use shm::timeline::reached;
use shm::{Control, Position, Timeline, TraceRecord, TraceWriter, WaitError, WorkerState, now_ns};

use crate::error::{LaneError, place};
use crate::execute::sample;
use crate::lane_executor::{LaneExecutor, Task};
use crate::protocol::EXIT;
use crate::still::Stillness;
use crate::table::StepTable;

/// How long a lane sleeps for the next group before it looks again; releases end it at once.
const GROUP_SLICE: Duration = Duration::from_secs(60);
/// Lanes without work in a phase wait at its end for as long as the phase lasts. A lane that hangs
/// is noticed by those that wait for its timeline, and their poison releases the barrier too.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What a lane needs beside its executor.
#[derive(Debug)]
pub struct LaneSetup {
    pub lane: LaneId,
    /// The worker that runs it.
    pub worker: WorkerId,
    pub plan: Arc<Plan>,
    pub control: Control,
    /// `None` where the device's side of the lane writes it.
    pub trace: Option<TraceWriter>,
    /// Bound of a wait for a lane that makes no progress.
    pub wait_timeout: Duration,
    /// Copies take at least this long per byte; `None`: as fast as memory.
    pub link_bytes_per_s: Option<u64>,
}

/// A lane of a worker; see the module header.
#[derive(Debug)]
pub struct LaneRunner {
    setup: LaneSetup,
    executor: Box<dyn LaneExecutor>,
    table: StepTable,
    /// Timelines at the start of the present phase, by lane.
    bases: Vec<u32>,
    /// Signals that a lane gives in a step, by phase and lane.
    signals: [Vec<u32>; 2],
    /// `Control::steps` at the start of the group.
    steps_base: u32,
    /// Index of the last `Sample` of this lane's list, per phase.
    last_sample: [Option<usize>; 2],
    /// Per batch the `Sample` of decode.
    sampled: Vec<Sampled>,
    /// The first lane of its worker, which moves the worker's state on.
    first_of_worker: bool,
    /// The first lane of all, which says that a group has drained.
    first_of_all: bool,
}

impl LaneRunner {
    /// A lane that has run nothing yet; the control segment must be fresh.
    pub fn new(setup: LaneSetup, executor: Box<dyn LaneExecutor>) -> LaneRunner {
        let plan = Arc::clone(&setup.plan);
        let topology = &plan.topology;
        let signals = [&plan.prefill, &plan.decode].map(|program| {
            let signals = |lane| program.lane(lane).map_or(0, |list| list.signals_per_step);
            topology.lane_ids().map(signals).collect()
        });
        let last_sample = [&plan.prefill, &plan.decode]
            .map(|program| program.lane(setup.lane).and_then(last_sample));
        let batches = 0..plan.shape.batches;
        let sampled = batches.map(|batch| Sampled::find(&plan.decode, setup.lane, batch)).collect();
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
            sampled,
        }
    }

    /// The lane's name.
    pub fn name(&self) -> &str {
        self.setup.plan.lane_name(self.setup.lane)
    }

    /// The lane it runs.
    pub fn lane(&self) -> LaneId {
        self.setup.lane
    }

    /// Runs groups until the coordinator says that it was the last.
    ///
    /// # Errors
    /// Poison, or a lane that stood still for longer than the bound; the caller poisons.
    pub fn run(&mut self) -> Result<(), LaneError> {
        let ended = self.run_groups();
        match ended {
            // The poison that its own failure brought is not another's.
            Err(LaneError::Poisoned) => {
                Err(self.executor.own_failure().unwrap_or(LaneError::Poisoned))
            }
            ended => ended,
        }
    }

    fn run_groups(&mut self) -> Result<(), LaneError> {
        let control = self.setup.control.clone();
        self.executor.begin()?;
        for group in 1u32.. {
            self.wait_for_group(&control, group)?;
            if control.last_step() == Some(EXIT) {
                return Ok(());
            }
            let words = control.worker(self.setup.worker.index());
            if self.first_of_worker && words.state() == WorkerState::Ready {
                words.set_state(WorkerState::Run);
            }
            self.run_group(&control)?;
        }
        Ok(())
    }

    fn run_group(&mut self, control: &Control) -> Result<(), LaneError> {
        let plan = Arc::clone(&self.setup.plan);
        self.run_list(&plan.prefill, 0)?;
        self.executor.settle()?;
        self.barrier(control)?;
        self.advance_bases(Phase::Prefill, 1);
        let mut steps = 0;
        loop {
            let step = steps + 1;
            if step >= 2 {
                // Prefill counted one: the `Sample` of step - 2 is done, so the last step is known
                // to be this one or not.
                let target = self.steps_base.wrapping_add(step - 1);
                self.wait(control.steps(), target, Awaited::Tokens)?;
            }
            if control.last_step().is_some_and(|last| step > last) {
                break;
            }
            self.run_list(&plan.decode, step)?;
            steps = step;
        }
        self.executor.settle()?;
        self.barrier(control)?;
        self.advance_bases(Phase::Decode, steps);
        self.steps_base = self.steps_base.wrapping_add(1 + steps);
        if self.first_of_all {
            control.drained().signal();
        }
        Ok(())
    }

    /// Runs this lane's list once; `step` is 0 for prefill and counts from 1 in decode.
    fn run_list(&mut self, program: &Program, step: u32) -> Result<(), LaneError> {
        let Some(list) = program.lane(self.setup.lane) else { return Ok(()) };
        let phase = program.phase;
        let index_of_step = step.saturating_sub(1);
        let control = self.setup.control.clone();
        let words = control.lane(self.setup.lane.index());
        self.executor.begin_list();
        for (index, instruction) in list.instructions.iter().enumerate() {
            if !self.executor.is_asynchronous() {
                // Of others the instruction is under way only later.
                words.set_position(Position {
                    phase: phase as u32,
                    step: index_of_step,
                    instruction: index as u32,
                });
            }
            match instruction {
                Instruction::Wait(wait) => self.wait_lane(phase, index_of_step, wait)?,
                Instruction::Signal => self.executor.signal(&words.timeline),
                work => {
                    self.wait_for_table(phase, index_of_step, work)?;
                    self.work(Task { phase, step: index_of_step, index, instruction: work })?;
                    if self.last_sample[phase as usize] == Some(index) {
                        sample::announce(&control, &self.table, step);
                    }
                }
            }
        }
        Ok(())
    }

    fn work(&mut self, task: Task<'_>) -> Result<(), LaneError> {
        let Task { phase, step, index, instruction } = task;
        let start_ns = now_ns();
        let Some(work) = self.executor.execute(task)? else { return Ok(()) };
        if let (Some(speed), Instruction::Copy(_)) = (self.setup.link_bytes_per_s, instruction) {
            let least_ns = u128::from(work.bytes) * 1_000_000_000 / u128::from(speed.max(1));
            let least = Duration::from_nanos(u64::try_from(least_ns).unwrap_or(u64::MAX));
            let spent = Duration::from_nanos(now_ns().saturating_sub(start_ns));
            std::thread::sleep(least.saturating_sub(spent));
        }
        let Some(trace) = &mut self.setup.trace else { return Ok(()) };
        trace.push(TraceRecord {
            start_ns,
            end_ns: now_ns(),
            bytes: work.bytes,
            rows: work.rows,
            instruction: index as u32,
            step,
            phase: phase as u32,
        });
        Ok(())
    }

    fn wait_lane(&mut self, phase: Phase, step: u32, wait: &Wait) -> Result<(), LaneError> {
        let signals = self.signals[phase as usize][wait.lane.index()];
        let target = wait_target(self.bases[wait.lane.index()], signals, step, wait);
        let control = self.setup.control.clone();
        let timeline = &control.lane(wait.lane.index()).timeline;
        if self.executor.is_asynchronous()
            && (reached(timeline.value(), target)
                || self.executor.order_behind(wait.lane, target)?)
        {
            return Ok(());
        }
        self.wait(timeline, target, Awaited::Lane(wait.lane))
    }

    /// On a device an instruction's sizes are read when it is enqueued, and its waits may be the
    /// stream's. So the host waits here for the sampler that wrote them, in the step before.
    fn wait_for_table(
        &mut self,
        phase: Phase,
        step: u32,
        instruction: &Instruction,
    ) -> Result<(), LaneError> {
        if !self.executor.is_asynchronous() || phase == Phase::Prefill || step == 0 {
            return Ok(());
        }
        let Some(batch) = table_batch(instruction) else { return Ok(()) };
        let control = self.setup.control.clone();
        match self.sampled[usize::from(batch)] {
            Sampled::Here => Ok(()),
            Sampled::By(wait) => {
                let signals = self.signals[phase as usize][wait.lane.index()];
                let target = wait_target(self.bases[wait.lane.index()], signals, step, &wait);
                let timeline = &control.lane(wait.lane.index()).timeline;
                self.wait(timeline, target, Awaited::Lane(wait.lane))
            }
            Sampled::Step => {
                // Prefill counted one, and so did each step before.
                let target = self.steps_base.wrapping_add(1 + step);
                self.wait(control.steps(), target, Awaited::Tokens)
            }
        }
    }

    /// Waits until `timeline` has reached `target`. The bound is on standing still: as long as any
    /// lane moves on from instruction to instruction, a long phase is no failure.
    fn wait(
        &mut self,
        timeline: &Timeline,
        target: u32,
        awaited: Awaited,
    ) -> Result<(), LaneError> {
        if !reached(timeline.value(), target) {
            self.executor.blocked();
        }
        let timeout = self.setup.wait_timeout;
        let control = &self.setup.control;
        let mut stillness = Stillness::new(control, self.bases.len(), timeout);
        loop {
            match timeline.wait_at_least(target, control.poison(), stillness.slice()) {
                Ok(()) => return Ok(()),
                Err(WaitError::TimedOut { .. }) if stillness.look() < timeout => {}
                Err(error) => return Err(self.lane_error(&error, awaited, timeout)),
            }
        }
    }

    fn wait_for_group(&self, control: &Control, group: u32) -> Result<(), LaneError> {
        loop {
            match control.groups().wait_at_least(group, control.poison(), GROUP_SLICE) {
                Ok(()) => return Ok(()),
                // Nothing is late: the coordinator may have nothing to do.
                Err(WaitError::TimedOut { .. }) => {}
                Err(WaitError::Poisoned(_)) => return Err(LaneError::Poisoned),
            }
        }
    }

    fn barrier(&self, control: &Control) -> Result<(), LaneError> {
        let met = control.barrier().wait(control.poison(), BARRIER_TIMEOUT);
        met.map(|_| ()).map_err(|error| self.lane_error(&error, Awaited::Lanes, BARRIER_TIMEOUT))
    }

    fn lane_error(&self, error: &WaitError, awaited: Awaited, limit: Duration) -> LaneError {
        let lane = self.setup.lane;
        let place = || {
            let position = self.setup.control.lane(lane.index()).position();
            let prefill = position.phase == Phase::Prefill as u32;
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            place(&self.setup.plan, lane, phase, position.step, position.instruction)
        };
        let plan = &self.setup.plan;
        let awaited = match awaited {
            Awaited::Lane(lane) => plan.lane_name(lane),
            Awaited::Tokens => "the sampled tokens",
            Awaited::Lanes => "the other lanes",
        };
        LaneError::from_wait(error, (plan.lane_name(lane), awaited), place, limit.as_secs())
    }

    fn advance_bases(&mut self, phase: Phase, steps: u32) {
        for (base, signals) in self.bases.iter_mut().zip(&self.signals[phase as usize]) {
            *base = base.wrapping_add(signals.wrapping_mul(steps));
        }
    }
}

/// The timeline value that a wait asks for, in wrapping arithmetic. A wait for the step before is
/// already satisfied in the first step of a phase.
pub fn wait_target(base: u32, signals_per_step: u32, step: u32, wait: &Wait) -> u32 {
    let target = base.wrapping_add(step.wrapping_mul(signals_per_step)).wrapping_add(wait.offset);
    if wait.previous_step { target.wrapping_sub(signals_per_step) } else { target }
}

/// What a lane waits for, as errors name it.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Lane(LaneId),
    Tokens,
    /// All that have work.
    Lanes,
}

/// Where a batch's `Sample` of decode is.
#[derive(Debug, Clone, Copy)]
enum Sampled {
    /// In this lane's own list.
    Here,
    /// Before this signal of another lane.
    By(Wait),
    /// No signal follows it: only the end of the step tells.
    Step,
}

impl Sampled {
    fn find(decode: &Program, own: LaneId, batch: u16) -> Sampled {
        let samples = |instruction: &Instruction| {
            is_sample(instruction) && instruction.at().is_some_and(|at| at.batch == batch)
        };
        for list in &decode.lanes {
            let Some(place) = list.instructions.iter().rposition(samples) else { continue };
            if list.lane == own {
                return Sampled::Here;
            }
            let signals = |instructions: &[Instruction]| {
                let signals = |instruction: &&Instruction| **instruction == Instruction::Signal;
                instructions.iter().filter(signals).count() as u32
            };
            let (before, after) = list.instructions.split_at(place);
            if signals(after) > 0 {
                let offset = signals(before) + 1;
                return Sampled::By(Wait { lane: list.lane, offset, previous_step: true });
            }
        }
        Sampled::Step
    }
}

/// The batch whose part of the step table an instruction reads.
fn table_batch(instruction: &Instruction) -> Option<u16> {
    match instruction {
        Instruction::Compute(compute) => Some(compute.at.batch),
        Instruction::Copy(copy) => copy.table.map(|_| copy.at.batch),
        Instruction::Append(append) => Some(append.at.batch),
        Instruction::Decompress(_)
        | Instruction::Read(_)
        | Instruction::Wait(_)
        | Instruction::Signal => None,
    }
}

fn is_sample(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Compute(compute) if compute.op == Op::Sample)
}

fn last_sample(list: &LaneProgram) -> Option<usize> {
    list.instructions.iter().rposition(is_sample)
}
