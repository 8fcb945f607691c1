//! A lane: one thread that interprets one list of instructions, group after group, step after step.
//!
//! Every lane derives the same timeline bases and the same number of steps from the program and the
//! control words, so nothing is negotiated: waits compare with `base + step * signals_per_step +
//! offset`, and all lanes leave decode after the same step because the sampler announces the last
//! step one step ahead of whoever may run furthest.

use std::sync::Arc;
use std::time::Duration;

use model::ops::Op;
use program::ir::{Instruction, Lane, LaneProgram, Phase, Program, Wait};
use program::plan::Plan;
use shm::timeline::reached;
use shm::{Control, Position, Timeline, TraceRecord, TraceWriter, WaitError, WorkerState, now_ns};

use crate::device::DeviceLane;
use crate::error::{LaneError, place};
use crate::execute::Executor;
use crate::protocol::{EXIT, Role};
use crate::still::Stillness;
use crate::timed::Timed;

const LANES: usize = Lane::ALL.len();
/// How long a lane sleeps for the next group before it looks again; releases end it at once.
const GROUP_SLICE: Duration = Duration::from_secs(60);
/// Lanes without work in a phase wait at its end for as long as the phase lasts. A lane that hangs
/// is noticed by those that wait for its timeline, and their poison releases the barrier too.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What a lane needs beside its executor.
#[derive(Debug)]
pub struct LaneSetup {
    pub lane: Lane,
    pub role: Role,
    pub plan: Arc<Plan>,
    pub control: Control,
    /// `None` where the device's side of the lane writes it.
    pub trace: Option<TraceWriter>,
    /// Bound of a wait for a lane that makes no progress.
    pub wait_timeout: Duration,
    /// Copies take at least this long per byte; `None`: as fast as memory.
    pub link_bytes_per_s: Option<u64>,
}

/// What carries out the work of a lane.
#[derive(Debug)]
enum Doing {
    Work(Box<Executor>),
    /// Work is enqueued on a device, and is complete later.
    Device(Box<DeviceLane>),
    /// Only time passes.
    Timed(Timed),
}

/// A lane of a worker; see the module header.
#[derive(Debug)]
pub struct LaneRunner {
    setup: LaneSetup,
    doing: Doing,
    /// Timelines at the start of the present phase.
    bases: [u32; LANES],
    signals: [[u32; LANES]; 2],
    /// `Control::steps` at the start of the group.
    steps_base: u32,
    /// Index of the last `Sample` of this lane's list, per phase.
    last_sample: [Option<usize>; 2],
    /// Per batch the `Sample` of decode.
    sampled: Vec<Sampled>,
    /// The first lane of its worker, which moves the worker's state on.
    first_of_role: bool,
}

impl LaneRunner {
    /// A lane that has run nothing yet; the control segment must be fresh.
    pub fn new(setup: LaneSetup, executor: Executor) -> LaneRunner {
        LaneRunner::with(setup, Doing::Work(Box::new(executor)))
    }

    /// The same for a lane that only lets time pass.
    pub fn timed(setup: LaneSetup, timed: Timed) -> LaneRunner {
        LaneRunner::with(setup, Doing::Timed(timed))
    }

    /// The same for a lane on a device.
    pub fn on_device(setup: LaneSetup, device: DeviceLane) -> LaneRunner {
        LaneRunner::with(setup, Doing::Device(Box::new(device)))
    }

    fn with(setup: LaneSetup, doing: Doing) -> LaneRunner {
        let plan = Arc::clone(&setup.plan);
        let signals = [&plan.prefill, &plan.decode].map(|program| {
            Lane::ALL.map(|lane| program.lane(lane).map_or(0, |list| list.signals_per_step))
        });
        let last_sample = [&plan.prefill, &plan.decode]
            .map(|program| program.lane(setup.lane).and_then(last_sample));
        let batches = 0..plan.shape.batches;
        let sampled = batches.map(|batch| Sampled::find(&plan.decode, setup.lane, batch)).collect();
        let lanes = plan.lanes();
        let first = setup.role.lanes().iter().find(|lane| lanes.contains(lane));
        let first_of_role = first == Some(&setup.lane);
        LaneRunner {
            setup,
            doing,
            bases: [0; LANES],
            signals,
            steps_base: 0,
            last_sample,
            sampled,
            first_of_role,
        }
    }

    /// The lane it runs.
    pub fn lane(&self) -> Lane {
        self.setup.lane
    }

    /// Runs groups until the coordinator says that it was the last.
    ///
    /// # Errors
    /// Poison, or a lane that stood still for longer than the bound; the caller poisons.
    pub fn run(&mut self) -> Result<(), LaneError> {
        let ended = self.run_groups();
        match (&self.doing, ended) {
            // The poison that a failure on the device brought is not another's.
            (Doing::Device(device), Err(LaneError::Poisoned)) => {
                Err(device.own_failure().unwrap_or(LaneError::Poisoned))
            }
            (_, ended) => ended,
        }
    }

    fn run_groups(&mut self) -> Result<(), LaneError> {
        let control = self.setup.control.clone();
        match &self.doing {
            Doing::Work(_) => {}
            Doing::Device(device) => device.begin()?,
            Doing::Timed(timed) => timed.begin(),
        }
        for group in 1u32.. {
            self.wait_for_group(&control, group)?;
            if control.last_step() == Some(EXIT) {
                return Ok(());
            }
            if self.first_of_role
                && control.worker(self.setup.role.index()).state() == WorkerState::Ready
            {
                control.worker(self.setup.role.index()).set_state(WorkerState::Run);
            }
            self.run_group(&control)?;
        }
        Ok(())
    }

    fn run_group(&mut self, control: &Control) -> Result<(), LaneError> {
        let plan = Arc::clone(&self.setup.plan);
        self.run_list(&plan.prefill, 0)?;
        self.settle()?;
        self.barrier(control)?;
        self.advance_bases(Phase::Prefill, 1);
        let mut steps = 0;
        loop {
            let step = steps + 1;
            if step >= 2 {
                // Prefill counted one: the `Sample` of step - 2 is done, so the last step is known
                // to be this one or not.
                let target = self.steps_base.wrapping_add(step - 1);
                self.wait(control.steps(), target, "the sampled tokens")?;
            }
            if control.last_step().is_some_and(|last| step > last) {
                break;
            }
            self.run_list(&plan.decode, step)?;
            steps = step;
        }
        self.settle()?;
        self.barrier(control)?;
        self.advance_bases(Phase::Decode, steps);
        self.steps_base = self.steps_base.wrapping_add(1 + steps);
        if self.setup.lane == Lane::CpuCompute {
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
        if let Doing::Device(device) = &mut self.doing {
            device.begin_list();
        }
        for (index, instruction) in list.instructions.iter().enumerate() {
            if !matches!(self.doing, Doing::Device(_)) {
                // On a device the instruction is under way only later.
                words.set_position(Position {
                    phase: phase as u32,
                    step: index_of_step,
                    instruction: index as u32,
                });
            }
            match instruction {
                Instruction::Wait(wait) => self.wait_lane(phase, index_of_step, wait)?,
                Instruction::Signal => match &self.doing {
                    Doing::Device(device) => device.signal(),
                    _ => words.timeline.signal(),
                },
                work => {
                    self.wait_for_table(phase, index_of_step, work)?;
                    self.work(phase, index_of_step, index, work)?;
                    if self.last_sample[phase as usize] == Some(index) {
                        match &self.doing {
                            Doing::Work(executor) => executor.end_step(step),
                            Doing::Device(device) => device.end_step(step),
                            Doing::Timed(timed) => timed.end_step(step),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn work(
        &mut self,
        phase: Phase,
        step: u32,
        index: usize,
        instruction: &Instruction,
    ) -> Result<(), LaneError> {
        let start_ns = now_ns();
        let work = match &mut self.doing {
            Doing::Work(executor) => executor.execute(phase, instruction),
            Doing::Device(device) => return device.execute(phase, step, index, instruction),
            Doing::Timed(timed) => timed.execute(phase, index, instruction),
        };
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
        if let Doing::Device(device) = &self.doing
            && (reached(timeline.value(), target) || device.wait(wait.lane, target)?)
        {
            return Ok(());
        }
        self.wait(timeline, target, wait.lane.name())
    }

    /// On a device an instruction's sizes are read when it is enqueued, and its waits may be the
    /// stream's. So the host waits here for the sampler that wrote them, in the step before.
    fn wait_for_table(
        &mut self,
        phase: Phase,
        step: u32,
        instruction: &Instruction,
    ) -> Result<(), LaneError> {
        if !matches!(self.doing, Doing::Device(_)) || phase == Phase::Prefill || step == 0 {
            return Ok(());
        }
        let Some(batch) = table_batch(instruction) else { return Ok(()) };
        let control = self.setup.control.clone();
        match self.sampled[usize::from(batch)] {
            Sampled::Here => Ok(()),
            Sampled::By(wait) => {
                let signals = self.signals[phase as usize][wait.lane.index()];
                let target = wait_target(self.bases[wait.lane.index()], signals, step, &wait);
                self.wait(&control.lane(wait.lane.index()).timeline, target, wait.lane.name())
            }
            Sampled::Step => {
                // Prefill counted one, and so did each step before.
                let target = self.steps_base.wrapping_add(1 + step);
                self.wait(control.steps(), target, "the sampled tokens")
            }
        }
    }

    /// Waits until all that a device has been given is complete.
    fn settle(&self) -> Result<(), LaneError> {
        match &self.doing {
            Doing::Device(device) => device.settle(),
            _ => Ok(()),
        }
    }

    /// Waits until `timeline` has reached `target`. The bound is on standing still: as long as any
    /// lane moves on from instruction to instruction, a long phase is no failure.
    fn wait(
        &mut self,
        timeline: &Timeline,
        target: u32,
        awaited: &'static str,
    ) -> Result<(), LaneError> {
        if let Doing::Timed(timed) = &mut self.doing
            && !reached(timeline.value(), target)
        {
            timed.blocked();
        }
        let timeout = self.setup.wait_timeout;
        let control = &self.setup.control;
        let mut stillness = Stillness::new(control, timeout);
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
        met.map(|_| ()).map_err(|error| self.lane_error(&error, "the other lanes", BARRIER_TIMEOUT))
    }

    fn lane_error(&self, error: &WaitError, awaited: &'static str, limit: Duration) -> LaneError {
        let lane = self.setup.lane;
        let place = || {
            let position = self.setup.control.lane(lane.index()).position();
            let prefill = position.phase == Phase::Prefill as u32;
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            place(&self.setup.plan, lane, phase, position.step, position.instruction)
        };
        LaneError::from_wait(error, lane, awaited, place, limit.as_secs())
    }

    fn advance_bases(&mut self, phase: Phase, steps: u32) {
        for (base, signals) in self.bases.iter_mut().zip(self.signals[phase as usize]) {
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
    fn find(decode: &Program, own: Lane, batch: u16) -> Sampled {
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
        Instruction::Decompress(_) | Instruction::Wait(_) | Instruction::Signal => None,
    }
}

fn is_sample(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Compute(compute) if compute.op == Op::Sample)
}

fn last_sample(list: &LaneProgram) -> Option<usize> {
    list.instructions.iter().rposition(is_sample)
}
