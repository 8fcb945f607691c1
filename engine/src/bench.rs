//! Runs the profiler's plans on real worker processes, which are launched like those of a run but
//! with dummy weights.

use std::sync::Arc;

use profiler::{ComputeThreads, Runner, RunnerError, RunnerSession};
use program::plan::Plan;
use program::topology::LaneId;
use protocol::group::{BATCH_STAGES, PlacedRequest, fill, list_work};
use protocol::messages::WeightsOrigin;
use protocol::table::StepTable;
use shm::{TraceReader, TraceRecord, WaitError};

use super::InterruptFn;
use super::launch::{LaunchError, LaunchOptions, LaunchedWorkers, POLL_INTERVAL, launch};

/// Starts workers for the profiler's plans. Except for threads and weights, `options` are those of
/// the run to come.
pub struct WorkerRunner {
    pub options: LaunchOptions,
    pub interrupt: Arc<InterruptFn>,
}

impl std::fmt::Debug for WorkerRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerRunner").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Runner for WorkerRunner {
    fn start(
        &mut self,
        plan: Plan,
        threads: ComputeThreads,
    ) -> Result<Box<dyn RunnerSession>, RunnerError> {
        let options = LaunchOptions {
            weights: WeightsOrigin::DummyRandomRouting { seed: 0 },
            cpu_threads: threads.cpu,
            gpu_threads: threads.gpu,
            ..self.options.clone()
        };
        let session = WorkerSession::start(plan, options, Arc::clone(&self.interrupt))?;
        Ok(Box::new(session))
    }
}

fn to_runner_error(error: impl std::error::Error + Send + Sync + 'static) -> RunnerError {
    RunnerError::Failed(Box::new(error))
}

struct WorkerSession {
    launched: LaunchedWorkers,
    /// Options with which the workers were launched.
    options: LaunchOptions,
    plan: Plan,
    table: StepTable,
    readers: Vec<(LaneId, TraceReader)>,
    interrupt: Arc<InterruptFn>,
    /// True while the workers are in a group.
    is_busy: bool,
}

/// A trace ring that was not drained in time.
#[derive(Debug, thiserror::Error)]
#[error("the trace of {lane} lost {count} records")]
struct LostTraceRecords {
    lane: String,
    count: u64,
}

impl WorkerSession {
    fn start(
        plan: Plan,
        options: LaunchOptions,
        interrupt: Arc<InterruptFn>,
    ) -> Result<WorkerSession, RunnerError> {
        let launched =
            launch(&plan, &options, &mut |_, _| !interrupt(), &mut |_| {}).map_err(|error| {
                match error {
                    LaunchError::Interrupted => RunnerError::Interrupted,
                    error => RunnerError::Failed(Box::new(error)),
                }
            })?;
        let readers = launched.trace_readers(&plan).map_err(to_runner_error)?;
        let table = StepTable::new(launched.control.extra(0, plan.table.words()), &plan);
        Ok(WorkerSession { launched, options, plan, table, readers, interrupt, is_busy: false })
    }

    /// Runs a group once and returns the records of all lanes.
    fn run_once(
        &mut self,
        group: &[PlacedRequest],
    ) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let control = self.launched.control.clone();
        fill(&self.table, &self.plan, group);
        let target = control.drained().value().wrapping_add(1);
        self.is_busy = true;
        control.release(&BATCH_STAGES, list_work(&self.table));
        let mut records: Vec<Vec<(LaneId, TraceRecord)>> = vec![Vec::new(); self.readers.len()];
        let mut drained = false;
        while !drained {
            drained = match control.drained().wait_until(target, control.poison(), POLL_INTERVAL) {
                Ok(()) => true,
                Err(WaitError::TimedOut { .. }) if (self.interrupt)() => {
                    return Err(RunnerError::Interrupted);
                }
                Err(WaitError::TimedOut { .. }) => {
                    self.launched.supervisor.check(&self.plan).map_err(to_runner_error)?;
                    false
                }
                Err(WaitError::Poisoned(_)) => {
                    return Err(to_runner_error(
                        self.launched.supervisor.wait_for_cause(&self.plan),
                    ));
                }
            };
            for ((lane, reader), records) in self.readers.iter_mut().zip(&mut records) {
                reader.drain(|record| records.push((*lane, *record)));
            }
        }
        self.is_busy = false;
        if let Some((lane, reader)) = self.readers.iter().find(|(_, reader)| reader.lost() > 0) {
            let lane = self.plan.lane_name(*lane).to_owned();
            return Err(to_runner_error(LostTraceRecords { lane, count: reader.lost() }));
        }
        Ok(records.into_iter().flatten().collect())
    }
}

impl RunnerSession for WorkerSession {
    fn run(&mut self, group: &[PlacedRequest]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let outcome = self.run_once(group);
        let Err(RunnerError::Failed(error)) = &outcome else { return outcome };
        let Some(failure) = error.downcast_ref() else { return outcome };
        if !self.options.enter_safe_mode(failure) {
            return outcome;
        }
        self.launched.supervisor.shut_down(true);
        let (plan, options) = (self.plan.clone(), self.options.clone());
        *self = WorkerSession::start(plan, options, Arc::clone(&self.interrupt))?;
        self.run_once(group)
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        self.launched.control.release(&[], 0);
        self.launched.supervisor.shut_down(self.is_busy);
    }
}
