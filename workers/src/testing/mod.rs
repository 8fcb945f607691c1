//! Harness that runs all lanes of a plan in one process, over real segments: for tests here and for
//! tests of placement elsewhere. The gpu worker's lane has access to the device's memory only, as
//! in its process.
//!
//! [`InProcess`] runs the workers' own lanes, one thread each. [`Interleaved`] executes the same
//! instructions on the calling thread in an order of the test's choosing. Both begin with memory
//! full of NaN, so that reads of unwritten memory show.

mod group;
mod interleaved;
mod prepare;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use model::ops::{Op, Value};
use model::source::WeightSource;
use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::topology::LaneId;
use shm::{Control, ProgramStage, TraceReader, TraceRecord, WaitError};

use crate::error::{LaneError, WorkerError};
use crate::memory::View;
use crate::setup::{LaneBuildContext, LaneOptions, build_lanes};
use protocol::table::StepTable;

pub use group::{
    BATCH_STAGES, GenerationRequest, Outcome, PlacedRequest, Pooling, continue_group, fill,
    fill_even, list_work, place_request,
};
pub use interleaved::{DeadlockError, Interleaved, SampledLogits};

use prepare::Prepared;

/// Duration after which a run is considered stuck.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// A running set of lanes.
#[derive(Debug)]
pub struct InProcess {
    plan: Arc<Plan>,
    control: Control,
    table: StepTable,
    view: View,
    readers: Vec<(LaneId, TraceReader)>,
    threads: Vec<JoinHandle<Result<(), LaneError>>>,
}

impl InProcess {
    /// Creates the segments, loads weights from `source` and starts all lanes. The plan must be a
    /// compiled one, or one whose lanes wait for no less: copies may be missing and signals lost,
    /// but a plan that lacks a wait would race ([`Interleaved`] is for those).
    ///
    /// # Errors
    /// Returns the error that a worker would have reported.
    pub fn start(
        plan: Plan,
        source: &dyn WeightSource,
        options: LaneOptions,
    ) -> Result<InProcess, WorkerError> {
        let prepared = Prepared::new(plan, source)?;
        let Prepared { plan, control, trace, all, .. } = &prepared;
        let lanes = plan.lanes();
        let mut threads = Vec::new();
        for worker in plan.topology.worker_ids() {
            let memories = prepared.memories(worker)?;
            let context = LaneBuildContext { worker, plan, control, trace, start_timeout: None };
            // SAFETY: each worker is built once and the weights are in place. Plans are compiled,
            // or keep the order of a compiled one (contract of this function).
            let runners = unsafe { build_lanes(context, &memories, &options) }?;
            for mut runner in runners {
                let control = control.clone();
                let thread = std::thread::Builder::new()
                    .name(runner.name().to_owned())
                    .spawn(move || {
                        let ended = runner.run();
                        if let Err(LaneError::TimedOut { .. }) = &ended {
                            control.stop(runner.lane().index() as u32, 1);
                        }
                        ended
                    })
                    .map_err(WorkerError::Thread)?;
                threads.push(thread);
            }
        }
        let mut readers = Vec::new();
        for lane in lanes {
            readers.push((lane, trace.reader(lane.index())?));
        }
        let table = StepTable::new(control.extra(0, plan.table.words()), plan);
        // SAFETY: the harness reads values only between groups, after all lanes have drained.
        let view = unsafe { View::new(Arc::clone(all)) };
        let (plan, control) = (Arc::clone(plan), control.clone());
        Ok(InProcess { plan, control, table, view, readers, threads })
    }

    /// Returns the plan in use.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the control segment.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns the step table.
    pub fn table(&self) -> &StepTable {
        &self.table
    }

    /// Runs one group to its end.
    ///
    /// # Panics
    /// Panics if the lanes do not drain within the watchdog's time, or one of them fails.
    pub fn run_group(&mut self, group: &[PlacedRequest]) -> Vec<Outcome> {
        match self.try_group(group) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.control.stop(u32::from(u16::MAX), 1);
                panic!("the lanes did not drain: {error}");
            }
        }
    }

    /// Runs one group to its end.
    ///
    /// # Errors
    /// Returns an error if a lane failed, in which case [`InProcess::finish`] returns which and
    /// why, or if the watchdog's time is up.
    pub fn try_group(&mut self, group: &[PlacedRequest]) -> Result<Vec<Outcome>, WaitError> {
        fill(&self.table, &self.plan, group);
        self.release()?;
        Ok(group.iter().map(|placed| Outcome::read(&self.table, placed)).collect())
    }

    /// Runs the group in the table to its end.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`InProcess::try_group`].
    pub fn release(&mut self) -> Result<(), WaitError> {
        let last_step = list_work(&self.table);
        self.release_listed(last_step)
    }

    /// Runs the group in the table with its current work lists, for at most `last_step` decode
    /// steps.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`InProcess::try_group`].
    pub fn release_listed(&mut self, last_step: u32) -> Result<(), WaitError> {
        self.release_stages(&BATCH_STAGES, last_step)
    }

    /// Runs the group in the table with the given stages, for at most `last_step` steps after the
    /// first.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`InProcess::try_group`].
    pub fn release_stages(
        &mut self,
        stages: &[ProgramStage],
        last_step: u32,
    ) -> Result<(), WaitError> {
        let drained = self.control.drained().value();
        self.control.release(stages, last_step);
        let target = drained.wrapping_add(1);
        self.control.drained().wait_until(target, self.control.poison(), RUN_TIMEOUT)
    }

    /// Returns the first `rows` rows of the logits that the last `Sample` of `program` for a stream
    /// read. They are valid between groups, until another step overwrites them.
    pub fn logits(&self, program: ProgramId, batch: u16, stream: u16, rows: usize) -> Vec<f32> {
        let program = self.plan.program(program);
        let instructions = program.lanes.iter().flat_map(|list| &list.instructions);
        let region = instructions
            .filter_map(|instruction| match instruction {
                Instruction::Compute(compute) if compute.op == Op::Sample => Some(compute),
                _ => None,
            })
            .find(|compute| (compute.at.batch, compute.at.stream) == (batch, stream))
            .map(|compute| compute.inputs[0]);
        let elements = Value::Logits.row_elements(&self.plan.config).unwrap_or(0);
        region
            .map(|region| self.view.read::<f32>(region.buffer, 0, rows * elements).to_vec())
            .unwrap_or_default()
    }

    /// Returns the trace records published since the last call.
    pub fn drain_trace(&mut self) -> Vec<(LaneId, TraceRecord)> {
        let mut records = Vec::new();
        for (lane, reader) in &mut self.readers {
            reader.drain(|record| records.push((*lane, *record)));
        }
        records
    }

    /// Ends the lanes and returns how each of them ended.
    ///
    /// # Panics
    /// Panics if a lane panicked.
    pub fn finish(self) -> Vec<Result<(), LaneError>> {
        self.control.release(&[], 0);
        self.threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panic!("a lane panicked")))
            .collect()
    }
}
