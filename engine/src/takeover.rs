//! Takeover of the lanes of a lost storage worker by another one: every storage holds all weights
//! that the others hold.

use std::time::{Duration, Instant};

use program::plan::Plan;
use program::topology::{LaneId, Role, WorkerId};
use shm::Control;

use super::supervisor::{Supervisor, WorkerFailure};

/// Maximum time that a lost worker's process may take to end. Its pending reads end with it; a
/// drive that does not answer delays this until the system gives up on the drive.
const EXIT_TIMEOUT: Duration = Duration::from_secs(180);
/// Interval between checks of the lost worker's process.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A storage without which a run continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostStorage {
    /// Name of the lost worker.
    pub worker: String,
    /// Description of the failure, with its location in the run.
    pub reason: String,
    /// Name of the worker that took over its lanes.
    pub successor: String,
    /// Time from the detection of the failure to the handover, in ms.
    pub handover_ms: u64,
}

/// Hands the lanes of a lost storage worker over to another one. Returns `None` if the worker reads
/// no storage, if no other worker does, if the run is poisoned, or if the process of the lost
/// worker does not end.
pub(super) fn take_over(
    supervisor: &mut Supervisor,
    plan: &Plan,
    control: &Control,
    failure: &WorkerFailure,
) -> Option<LostStorage> {
    let begun = Instant::now();
    let place = supervisor.workers.iter().position(|worker| failure.is_from(&worker.name))?;
    let lost = supervisor.workers[place].id;
    let is_storage = |id: WorkerId| plan.topology.worker(id).role == Role::Storage;
    if !is_storage(lost) || control.poison().check().is_err() {
        return None;
    }
    let survivors = supervisor.workers.iter().map(|worker| worker.id).filter(|id| *id != lost);
    let survivors: Vec<WorkerId> = survivors.filter(|id| is_storage(*id)).collect();
    // The next one by id, after the last the first.
    let successor =
        survivors.iter().find(|id| **id > lost).or_else(|| survivors.first()).copied()?;
    let mut worker = supervisor.workers.remove(place);
    // The process may have ended already.
    let _ = worker.child.kill();
    while !matches!(worker.child.try_wait(), Ok(Some(_))) {
        if begun.elapsed() > EXIT_TIMEOUT {
            supervisor.workers.push(worker);
            return None;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    let is_run_by_lost = |lane: &LaneId| match control.lane(lane.index()).successor() {
        Some(worker) => worker == lost.index(),
        None => plan.topology.lane(*lane).worker == lost,
    };
    let lanes: Vec<LaneId> = plan.lanes().into_iter().filter(is_run_by_lost).collect();
    lanes.iter().for_each(|lane| control.hand_over(lane.index(), successor.index()));
    Some(LostStorage {
        worker: worker.name.clone(),
        reason: failure.to_string(),
        successor: plan.topology.worker(successor).name.clone(),
        handover_ms: begun.elapsed().as_millis() as u64,
    })
}
