//! All lanes on one thread, one instruction at a time, in an order that the test chooses.
//!
//! Any such order is one in which lanes in threads of their own could have run: a lane proceeds
//! only when its wait is satisfied, and between steps and programs the rules are those of
//! [`crate::lane`]. A race therefore shows reliably: the test delays the lane that a missing wait
//! would have waited for. Since no two instructions are ever in progress at once, plans that would
//! race between threads can be run soundly here.

use std::sync::Arc;

use model::ops::{Op, Value};
use model::source::WeightSource;
use program::ir::{Compute, Instruction, LaneProgram, Program, ProgramId};
use program::plan::Plan;
use program::topology::LaneId;
use protocol::table::StepTable;
use shm::{Control, Timeline};

use super::group::{Outcome, PlacedRequest, fill, list_work};
use super::prepare::Prepared;
use crate::error::WorkerError;
use crate::execute::announce::announce;
use crate::lane::wait_target;
use crate::lane_executor::{LaneExecutor, Task};
use crate::memory::View;
use crate::setup::{LaneOptions, SharedState, lane_executor, skew};
use crate::work_items;

/// The logits from which one token of one sequence was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledLogits {
    pub program: ProgramId,
    /// Step in which the token was drawn: 0 is prefill, decode counts from 1.
    pub step: u32,
    pub batch: usize,
    pub slot: usize,
    /// `[vocab]`.
    pub logits: Vec<f32>,
}

/// Error if every lane that has not ended waits for another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("No lane can go on: {}.", .waiting.join("; "))]
pub struct DeadlockError {
    /// Each lane that has not ended, and its position.
    pub waiting: Vec<String>,
}

/// Position of a lane within a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Within the list of prefill; the index may be one past its end.
    Prefill(usize),
    /// Prefill is complete for this lane.
    Barrier,
    Decode {
        step: u32,
        index: usize,
    },
    Drained,
}

#[derive(Debug)]
struct InterleavedLane {
    lane: LaneId,
    executor: Box<dyn LaneExecutor>,
    place: Place,
    /// Index of the last `Sample` of its list, per program.
    last_sample: Vec<Option<usize>>,
}

/// A plan whose lanes take turns; see the module documentation.
#[derive(Debug)]
pub struct Interleaved {
    plan: Arc<Plan>,
    control: Control,
    table: StepTable,
    view: View,
    lanes: Vec<InterleavedLane>,
    /// Timelines at the start of the group.
    bases: Vec<u32>,
    /// `Control::steps` at the start of the group.
    steps_base: u32,
}

impl Interleaved {
    /// Maps memory, loads weights from `source` and creates the lanes. The plan need not be valid.
    ///
    /// # Errors
    /// Returns the error that a worker would have reported.
    pub fn start(
        plan: Plan,
        source: &dyn WeightSource,
        options: LaneOptions,
    ) -> Result<Interleaved, WorkerError> {
        let prepared = Prepared::new(plan, source)?;
        let Prepared { plan, control, all, .. } = &prepared;
        let mut lanes = Vec::new();
        let skew = skew(plan, all, &options)?;
        for lane in plan.lanes() {
            let memories = prepared.memories(plan.topology.lane(lane).worker)?;
            let shared = SharedState { skew: skew.as_ref(), hidden: None };
            // SAFETY: an instruction is the only user of memory while it is executed, since all are
            // executed by one thread and none keeps a slice.
            let executor =
                unsafe { lane_executor(lane, plan, &memories, control, &options, shared) }?;
            let last_sample = plan.programs.iter().map(|program| {
                let list = program.lane(lane)?;
                list.instructions.iter().rposition(|other| sample(other).is_some())
            });
            let last_sample = last_sample.collect();
            lanes.push(InterleavedLane { lane, executor, place: Place::Drained, last_sample });
        }
        let table = StepTable::new(control.extra(0, plan.table.words()), plan);
        // SAFETY: as above; it is read between instructions.
        let view = unsafe { View::new(Arc::clone(all)) };
        let (plan, control) = (Arc::clone(plan), control.clone());
        let bases = vec![0; plan.topology.lanes.len()];
        Ok(Interleaved { plan, control, table, view, lanes, bases, steps_base: 0 })
    }

    /// Returns the step table, for callers that change it between instructions.
    pub fn table(&self) -> StepTable {
        self.table.clone()
    }

    /// Runs one group. `choose` receives the lanes that can proceed and returns the index of the
    /// one that executes an instruction. Returns the result of each sequence, and the logits in the
    /// order in which they were read.
    ///
    /// # Errors
    /// Returns an error if the lanes wait for each other and none can proceed.
    pub fn run_group(
        &mut self,
        group: &[PlacedRequest],
        choose: &mut dyn FnMut(&[LaneId]) -> usize,
    ) -> Result<(Vec<Outcome>, Vec<SampledLogits>), DeadlockError> {
        fill(&self.table, &self.plan, group);
        self.control.set_last_step(Some(list_work(&self.table)));
        self.lanes.iter_mut().for_each(|lane| lane.place = Place::Prefill(0));
        let mut sampled = Vec::new();
        let mut last = 0;
        while self.lanes.iter().any(|lane| lane.place != Place::Drained) {
            let ready: Vec<usize> =
                (0..self.lanes.len()).filter(|lane| self.is_ready(*lane)).collect();
            if ready.is_empty() {
                return Err(self.stuck());
            }
            let names: Vec<LaneId> = ready.iter().map(|lane| self.lanes[*lane].lane).collect();
            let chosen = ready[choose(&names)];
            if let Place::Decode { step, .. } = self.lanes[chosen].place {
                last = last.max(step);
            }
            self.advance(chosen, &mut sampled);
        }
        for lane in self.plan.topology.lane_ids() {
            let [prefill, decode] =
                [self.plan.prefill(), self.plan.decode()].map(|program| signals(program, lane));
            let base = &mut self.bases[lane.index()];
            *base = base.wrapping_add(prefill).wrapping_add(decode.wrapping_mul(last));
        }
        self.steps_base = self.steps_base.wrapping_add(1 + last);
        let outcomes = group.iter().map(|placed| Outcome::read(&self.table, placed)).collect();
        Ok((outcomes, sampled))
    }

    fn list(&self, lane: usize, program: ProgramId) -> &[Instruction] {
        let program = self.plan.program(program);
        program.lane(self.lanes[lane].lane).map_or(&[], |list: &LaneProgram| &list.instructions)
    }

    /// Returns true if a lane would not wait.
    fn is_ready(&self, lane: usize) -> bool {
        let (program, step, index) = match self.lanes[lane].place {
            Place::Drained => return false,
            Place::Barrier => {
                return !self.lanes.iter().any(|other| matches!(other.place, Place::Prefill(_)));
            }
            Place::Prefill(index) => (ProgramId::PREFILL, 0, index),
            Place::Decode { step, index } => (ProgramId::DECODE, step, index),
        };
        match self.list(lane, program).get(index) {
            Some(Instruction::Wait(wait)) => {
                let mut base = self.bases[wait.lane.index()];
                let mut signals_per_step = signals(self.plan.prefill(), wait.lane);
                if program == ProgramId::DECODE {
                    base = base.wrapping_add(signals_per_step);
                    signals_per_step = signals(self.plan.decode(), wait.lane);
                }
                let target = wait_target(base, signals_per_step, step.saturating_sub(1), wait);
                has_reached(&self.control.lane(wait.lane.index()).timeline, target)
            }
            // The next step begins once the previous one was sampled.
            None if program == ProgramId::DECODE => {
                has_reached(self.control.steps(), self.steps_base.wrapping_add(step))
            }
            _ => true,
        }
    }

    /// Executes one instruction of a lane that is ready, or moves it to its next list.
    fn advance(&mut self, lane: usize, sampled: &mut Vec<SampledLogits>) {
        let begin = |step: u32| match self.control.last_step() {
            Some(last) if step > last => Place::Drained,
            _ => Place::Decode { step, index: 0 },
        };
        let (program, step, index, next) = match self.lanes[lane].place {
            Place::Drained => return,
            Place::Barrier => {
                self.lanes[lane].place = begin(1);
                return;
            }
            Place::Prefill(index) => (ProgramId::PREFILL, 0, index, Place::Prefill(index + 1)),
            Place::Decode { step, index } => {
                (ProgramId::DECODE, step, index, Place::Decode { step, index: index + 1 })
            }
        };
        let Some(instruction) = self.list(lane, program).get(index).cloned() else {
            self.lanes[lane].place =
                if program == ProgramId::PREFILL { Place::Barrier } else { begin(step + 1) };
            return;
        };
        if let Some(compute) = sample(&instruction) {
            self.record(program, step, compute, sampled);
        }
        let lane_state = &mut self.lanes[lane];
        match &instruction {
            Instruction::Wait(_) => {}
            Instruction::Signal => self.control.lane(lane_state.lane.index()).timeline.signal(),
            work => {
                let task = Task { program, step: step.saturating_sub(1), index, instruction: work };
                if let Err(error) = lane_state.executor.execute(task) {
                    panic!("{error}");
                }
                if lane_state.last_sample[program.index()] == Some(index) {
                    announce(&self.control, &self.table, step, 0);
                }
            }
        }
        lane_state.place = next;
    }

    fn record(
        &self,
        program: ProgramId,
        step: u32,
        compute: &Compute,
        sampled: &mut Vec<SampledLogits>,
    ) {
        let vocab = Value::Logits.row_elements(&self.plan.config).unwrap_or(0);
        let logits = compute.inputs[0].buffer;
        for (row, found) in work_items::logits_rows(&self.table, program, compute.at).enumerate() {
            let first_bytes = row * vocab * size_of::<f32>();
            sampled.push(SampledLogits {
                program,
                step,
                batch: usize::from(compute.at.batch),
                slot: found.item.slot,
                logits: self.view.read::<f32>(logits, first_bytes, vocab).to_vec(),
            });
        }
    }

    fn stuck(&self) -> DeadlockError {
        let running = self.lanes.iter().filter(|lane| lane.place != Place::Drained);
        let waiting =
            running.map(|lane| format!("{} at {:?}", self.plan.lane_name(lane.lane), lane.place));
        DeadlockError { waiting: waiting.collect() }
    }
}

fn signals(program: &Program, lane: LaneId) -> u32 {
    program.lane(lane).map_or(0, |list| list.signals_per_step)
}

fn has_reached(timeline: &Timeline, target: u32) -> bool {
    shm::timeline::reached(timeline.value(), target)
}

fn sample(instruction: &Instruction) -> Option<&Compute> {
    match instruction {
        Instruction::Compute(compute) if compute.op == Op::Sample => Some(compute),
        _ => None,
    }
}
