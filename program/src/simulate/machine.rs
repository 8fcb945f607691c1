//! Event loop of the simulator.

use crate::ir::{Instruction, LaneProgram, Program, ProgramId, TimelineWait};
use crate::topology::{LaneId, LaneSet, Topology};

use super::costs::SimulationCosts;
use super::place::Place;
use super::span::Span;
use super::usage::LaneUsage;

/// A simulated run of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedTimeline {
    /// Sorted by start, then lane; times are rounded to nanoseconds.
    pub spans: Vec<Span>,
    /// Time from 0 to the end of the last instruction.
    pub total_ns: f64,
    /// End of the last instruction of each step.
    pub step_end_ns: Vec<f64>,
}

impl SimulatedTimeline {
    /// Returns busy times, overlap and idle time.
    pub fn usage(&self, topology: &Topology) -> LaneUsage {
        LaneUsage::from_spans(&self.spans, topology)
    }
}

/// Reason for which a simulation has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    #[error("lane {lane} is stuck at instruction {instruction} of step {step}")]
    Stuck { lane: LaneId, instruction: usize, step: u32 },
    #[error("the cost of {place:?} is {work_ns} ns; costs are finite and not negative")]
    Work { place: Place, work_ns: f64 },
    #[error("the rate of lane {lane} is {rate}; rates are finite and positive")]
    Rate { lane: LaneId, rate: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Can execute its next instruction.
    Ready,
    /// Blocked on its next instruction, a wait, since this time.
    Blocked {
        since_ns: f64,
    },
    /// Released; continues at this time.
    Waking {
        until_ns: f64,
    },
    /// Executing its next instruction.
    Working {
        start_ns: f64,
        remaining_ns: f64,
    },
    Done,
}

/// An instruction of a list, without what does not affect time.
#[derive(Debug, Clone, Copy)]
enum TimedStep {
    Work,
    Signal,
    /// Blocks until the lane at this place among the program's lists has signalled `offset` times
    /// in the step, or in the previous one. `None`: a lane without work.
    Wait {
        lane: Option<u8>,
        offset: u32,
        previous_step: bool,
    },
}

impl TimedStep {
    fn new(instruction: &Instruction, lists: &[LaneProgram]) -> TimedStep {
        match instruction {
            Instruction::Wait(wait) => {
                let lane = lists.iter().position(|list| list.lane == wait.lane);
                let lane = lane.and_then(|lane| u8::try_from(lane).ok());
                let TimelineWait { offset, previous_step, .. } = *wait;
                TimedStep::Wait { lane, offset, previous_step }
            }
            Instruction::Signal => TimedStep::Signal,
            _ => TimedStep::Work,
        }
    }
}

struct Runner<'a> {
    program: &'a LaneProgram,
    steps: Vec<TimedStep>,
    index: usize,
    step: u32,
    /// True if the current step is known to take place.
    admitted: bool,
    state: State,
    signals: i64,
}

impl<'a> Runner<'a> {
    fn new(program: &'a LaneProgram, lists: &[LaneProgram]) -> Runner<'a> {
        let steps = program.instructions.iter().map(|one| TimedStep::new(one, lists)).collect();
        let state = State::Ready;
        Runner { program, steps, index: 0, step: 0, admitted: false, state, signals: 0 }
    }
}

struct Machine<'a> {
    program: ProgramId,
    costs: &'a dyn SimulationCosts,
    runners: Vec<Runner<'a>>,
    /// Remaining time of each lane's state, and the rate at which its work advances.
    ends: Vec<(f64, f64)>,
    /// Lane and index of the last sampling instruction of a step.
    sample: Option<(LaneId, usize)>,
    sampled_steps: u32,
    steps: u32,
    now_ns: f64,
    timeline: SimulatedTimeline,
    records_spans: bool,
}

/// Simulates `steps` consecutive steps of a program.
///
/// # Errors
/// Lanes that block each other forever, or a cost that is not a valid duration.
pub fn simulate(
    program: &Program,
    costs: &dyn SimulationCosts,
    steps: u32,
) -> Result<SimulatedTimeline, SimulateError> {
    let mut timeline = run(program, costs, steps, true)?;
    timeline.spans.sort_by_key(|span| (span.start_ns, span.end_ns, span.lane));
    Ok(timeline)
}

/// Simulates like [`simulate`], without recording spans.
///
/// # Errors
/// Fails like [`simulate`].
pub fn simulate_ends(
    program: &Program,
    costs: &dyn SimulationCosts,
    steps: u32,
) -> Result<SimulatedTimeline, SimulateError> {
    run(program, costs, steps, false)
}

fn run(
    program: &Program,
    costs: &dyn SimulationCosts,
    steps: u32,
    records_spans: bool,
) -> Result<SimulatedTimeline, SimulateError> {
    let lists = &program.lanes;
    let mut machine = Machine {
        program: program.id,
        costs,
        runners: lists.iter().map(|list| Runner::new(list, lists)).collect(),
        ends: Vec::with_capacity(lists.len()),
        sample: last_sample(program),
        sampled_steps: 0,
        steps,
        now_ns: 0.0,
        timeline: SimulatedTimeline {
            spans: Vec::new(),
            total_ns: 0.0,
            step_end_ns: vec![0.0; steps as usize],
        },
        records_spans,
    };
    loop {
        machine.settle()?;
        if !machine.pass_time()? {
            break;
        }
    }
    if let Some(stuck) = machine.runners.iter().find(|runner| runner.state != State::Done) {
        let (lane, instruction, step) = (stuck.program.lane, stuck.index, stuck.step);
        return Err(SimulateError::Stuck { lane, instruction, step });
    }
    Ok(machine.timeline)
}

fn last_sample(program: &Program) -> Option<(LaneId, usize)> {
    program.lanes.iter().find_map(|list| {
        let index = list.instructions.iter().rposition(Instruction::is_sample)?;
        Some((list.lane, index))
    })
}

impl Machine<'_> {
    /// Executes everything that takes no time, until every lane works, sleeps or is done.
    fn settle(&mut self) -> Result<(), SimulateError> {
        let mut progress = true;
        while progress {
            progress = false;
            for lane in 0..self.runners.len() {
                while self.advance(lane)? {
                    progress = true;
                }
            }
        }
        Ok(())
    }

    /// Advances a lane by one instruction or state; returns `false` if only time can advance it.
    fn advance(&mut self, lane: usize) -> Result<bool, SimulateError> {
        let runner = &self.runners[lane];
        match runner.state {
            State::Working { .. } | State::Waking { .. } | State::Done => return Ok(false),
            State::Ready | State::Blocked { .. } => {}
        }
        if runner.step == self.steps {
            self.runners[lane].state = State::Done;
            return Ok(true);
        }
        if self.must_wait(lane) {
            let blocked = matches!(runner.state, State::Blocked { .. });
            if !blocked {
                self.runners[lane].state = State::Blocked { since_ns: self.now_ns };
            }
            return Ok(!blocked);
        }
        if let State::Blocked { since_ns } = runner.state {
            // Released at the instant of its arrival: it never slept.
            let wake_ns = if since_ns < self.now_ns { self.costs.wake_ns() } else { 0.0 };
            let runner = &mut self.runners[lane];
            runner.state = if wake_ns > 0.0 {
                State::Waking { until_ns: self.now_ns + wake_ns }
            } else {
                State::Ready
            };
            return Ok(true);
        }
        self.execute(lane)
    }

    /// Returns true if the next instruction, or the step it would start, is not released yet.
    fn must_wait(&self, lane: usize) -> bool {
        let Runner { index, step, admitted, ref steps, .. } = self.runners[lane];
        if !admitted {
            // The step before the previous one determines whether this one takes place.
            return self.sample.is_some() && step >= 2 && self.sampled_steps < step - 1;
        }
        let Some(TimedStep::Wait { lane, offset, previous_step }) = steps.get(index) else {
            return false;
        };
        let (signals, per_step) = lane.map_or((0, 0), |lane| {
            let other = &self.runners[usize::from(lane)];
            (other.signals, other.program.signals_per_step)
        });
        let step = i64::from(step) - i64::from(*previous_step);
        step >= 0 && signals < step * i64::from(per_step) + i64::from(*offset)
    }

    fn execute(&mut self, lane: usize) -> Result<bool, SimulateError> {
        let runner = &mut self.runners[lane];
        if !runner.admitted {
            runner.admitted = true;
            return Ok(true);
        }
        match runner.steps.get(runner.index) {
            None => {
                runner.index = 0;
                runner.step += 1;
                runner.admitted = false;
                return Ok(true);
            }
            Some(TimedStep::Work) => {}
            Some(other) => {
                runner.signals += i64::from(matches!(other, TimedStep::Signal));
                runner.index += 1;
                return Ok(true);
            }
        }
        let instruction = &runner.program.instructions[runner.index];
        let place = Place {
            program: self.program,
            lane: runner.program.lane,
            instruction: runner.index as u32,
        };
        let work_ns = self.costs.work_ns(place, instruction, runner.step);
        if !(work_ns.is_finite() && work_ns >= 0.0) {
            return Err(SimulateError::Work { place, work_ns });
        }
        runner.state = State::Working { start_ns: self.now_ns, remaining_ns: work_ns };
        Ok(true)
    }

    /// Advances to the next instant at which something ends; returns `false` if nothing is running.
    fn pass_time(&mut self) -> Result<bool, SimulateError> {
        let working = |runner: &&Runner<'_>| matches!(runner.state, State::Working { .. });
        let busy = self
            .runners
            .iter()
            .filter(working)
            .fold(LaneSet::EMPTY, |busy, runner| busy.with(runner.program.lane));
        self.ends.clear();
        for runner in &self.runners {
            self.ends.push(match runner.state {
                State::Working { remaining_ns, .. } => {
                    let lane = runner.program.lane;
                    let instruction = runner.index as u32;
                    let rate =
                        self.costs.rate(Place { program: self.program, lane, instruction }, busy);
                    if !(rate.is_finite() && rate > 0.0) {
                        return Err(SimulateError::Rate { lane, rate });
                    }
                    (remaining_ns / rate, rate)
                }
                State::Waking { until_ns } => ((until_ns - self.now_ns).max(0.0), 0.0),
                State::Ready | State::Blocked { .. } | State::Done => (f64::INFINITY, 0.0),
            });
        }
        let passed_ns = self.ends.iter().map(|end| end.0).fold(f64::INFINITY, f64::min);
        if passed_ns.is_infinite() {
            return Ok(false);
        }
        self.now_ns += passed_ns;
        for lane in 0..self.runners.len() {
            let (end_ns, rate) = self.ends[lane];
            let runner = &mut self.runners[lane];
            match &mut runner.state {
                State::Working { start_ns, .. } if end_ns <= passed_ns => {
                    let start_ns = *start_ns;
                    self.finish(lane, start_ns);
                }
                State::Working { remaining_ns, .. } => *remaining_ns -= rate * passed_ns,
                State::Waking { .. } if end_ns <= passed_ns => runner.state = State::Ready,
                _ => {}
            }
        }
        Ok(true)
    }

    fn finish(&mut self, lane: usize, start_ns: f64) {
        let runner = &mut self.runners[lane];
        let (name, index, step) = (runner.program.lane, runner.index, runner.step);
        runner.index += 1;
        runner.state = State::Ready;
        if self.sample == Some((name, index)) {
            self.sampled_steps += 1;
        }
        if self.records_spans {
            self.timeline.spans.push(Span {
                lane: name,
                program: self.program,
                step,
                instruction: index as u32,
                start_ns: start_ns.round() as u64,
                end_ns: self.now_ns.round() as u64,
            });
        }
        self.timeline.total_ns = self.now_ns;
        self.timeline.step_end_ns[step as usize] = self.now_ns;
    }
}
