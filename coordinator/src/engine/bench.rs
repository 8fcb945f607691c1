//! Runs the profiler's plans on real worker processes, which are launched like those of a run but
//! with dummy weights.

use std::sync::Arc;

use profiler::{Runner, RunnerError, Session, Threads};
use program::plan::Plan;
use program::topology::LaneId;
use shm::{TraceReader, TraceRecord, WaitError};
use workers::shared::group::{BATCH, Placed, fill, list_work};
use workers::shared::protocol::WeightsFrom;
use workers::shared::table::StepTable;

use super::Interrupt;
use super::device_use::starts_carefully;
use super::launch::{LaunchError, LaunchOptions, Launched, SLICE, launch};

/// Starts workers for the profiler's plans. Except for threads and weights, `options` are those of
/// the run to come.
pub struct WorkerRunner {
    pub options: LaunchOptions,
    pub interrupt: Arc<Interrupt>,
}

impl std::fmt::Debug for WorkerRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerRunner").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Runner for WorkerRunner {
    fn start(&mut self, plan: Plan, threads: Threads) -> Result<Box<dyn Session>, RunnerError> {
        let options = LaunchOptions {
            weights: WeightsFrom::EvenlyRouted { seed: 0 },
            cpu_threads: threads.cpu,
            gpu_threads: threads.gpu,
            ..self.options.clone()
        };
        let session = WorkerSession::start(plan, options, Arc::clone(&self.interrupt))?;
        Ok(Box::new(session))
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> RunnerError {
    RunnerError::Failed(Box::new(error))
}

struct WorkerSession {
    launched: Launched,
    /// Options with which the workers were launched.
    options: LaunchOptions,
    plan: Plan,
    table: StepTable,
    readers: Vec<(LaneId, TraceReader)>,
    interrupt: Arc<Interrupt>,
    /// True while the workers are in a group.
    busy: bool,
}

/// A trace ring that was not drained in time.
#[derive(Debug, thiserror::Error)]
#[error("the trace of {lane} lost {count} records")]
struct Lost {
    lane: String,
    count: u64,
}

impl WorkerSession {
    fn start(
        plan: Plan,
        options: LaunchOptions,
        interrupt: Arc<Interrupt>,
    ) -> Result<WorkerSession, RunnerError> {
        let launched =
            launch(&plan, &options, &mut |_, _| !interrupt(), &mut |_| {}).map_err(|error| {
                match error {
                    LaunchError::Interrupted => RunnerError::Interrupted,
                    error => RunnerError::Failed(Box::new(error)),
                }
            })?;
        let readers = launched.trace_readers(&plan).map_err(failed)?;
        let table = StepTable::new(launched.control.extra(0, plan.table.words()), &plan);
        Ok(WorkerSession { launched, options, plan, table, readers, interrupt, busy: false })
    }

    /// Runs a group once and returns the records of all lanes.
    fn attempt(&mut self, group: &[Placed]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let control = self.launched.control.clone();
        fill(&self.table, &self.plan, group);
        let target = control.drained().value().wrapping_add(1);
        self.busy = true;
        control.release(&BATCH, list_work(&self.table));
        let mut records: Vec<Vec<(LaneId, TraceRecord)>> = vec![Vec::new(); self.readers.len()];
        let mut drained = false;
        while !drained {
            drained = match control.drained().wait_at_least(target, control.poison(), SLICE) {
                Ok(()) => true,
                Err(WaitError::TimedOut { .. }) if (self.interrupt)() => {
                    return Err(RunnerError::Interrupted);
                }
                Err(WaitError::TimedOut { .. }) => {
                    self.launched.supervisor.check(&self.plan).map_err(failed)?;
                    false
                }
                Err(WaitError::Poisoned(_)) => {
                    return Err(failed(self.launched.supervisor.cause(&self.plan)));
                }
            };
            for ((lane, reader), records) in self.readers.iter_mut().zip(&mut records) {
                reader.drain(|record| records.push((*lane, *record)));
            }
        }
        self.busy = false;
        if let Some((lane, reader)) = self.readers.iter().find(|(_, reader)| reader.lost() > 0) {
            let lane = self.plan.lane_name(*lane).to_owned();
            return Err(failed(Lost { lane, count: reader.lost() }));
        }
        Ok(records.into_iter().flatten().collect())
    }
}

impl Session for WorkerSession {
    fn run(&mut self, group: &[Placed]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let ended = self.attempt(group);
        let Err(RunnerError::Failed(error)) = &ended else { return ended };
        let Some(failure) = error.downcast_ref() else { return ended };
        if !starts_carefully(self.options.cuda, failure) {
            return ended;
        }
        self.launched.supervisor.leave(true);
        let (plan, options) = (self.plan.clone(), self.options.clone());
        *self = WorkerSession::start(plan, options, Arc::clone(&self.interrupt))?;
        self.attempt(group)
    }
}

impl Drop for WorkerSession {
    fn drop(&mut self) {
        self.launched.control.release(&[], 0);
        self.launched.supervisor.leave(self.busy);
    }
}
