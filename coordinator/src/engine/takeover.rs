//! When a storage worker is lost, another one goes on with its lanes: every storage holds all
//! weights that the others do.

use std::time::{Duration, Instant};

use program::plan::Plan;
use program::topology::{LaneId, Role, WorkerId};
use shm::Control;

use super::supervise::{Supervisor, WorkerFailure};

/// How long a lost worker's process may take to end. Reads that it had under way end with it, and
/// a drive that does not answer holds it up until the system gives up on the drive.
const END_MAX: Duration = Duration::from_secs(180);
/// Between two looks at it.
const END_SLICE: Duration = Duration::from_millis(2);

/// A storage that a run went on without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostStorage {
    /// The lost worker's name.
    pub worker: String,
    /// What happened, and where in the run.
    pub reason: String,
    /// Who went on with its work.
    pub successor: String,
    /// From noticing it to handing its work over, ms.
    pub handover_ms: u64,
}

/// Hands a lost worker's lanes over to another that reads the same; `None` where it reads no
/// storage, or where nobody is left who does.
pub(super) fn take_over(
    supervisor: &mut Supervisor,
    (plan, control): (&Plan, &Control),
    failure: &WorkerFailure,
) -> Option<LostStorage> {
    let begun = Instant::now();
    let place = supervisor.workers.iter().position(|worker| failure.is_of(&worker.name))?;
    let lost = supervisor.workers[place].id;
    let reads = |id: WorkerId| plan.topology.worker(id).role == Role::Storage;
    if !reads(lost) || control.poison().check().is_err() {
        return None;
    }
    let others = supervisor.workers.iter().map(|worker| worker.id).filter(|id| *id != lost);
    let others: Vec<WorkerId> = others.filter(|id| reads(*id)).collect();
    // The next one in their order.
    let successor = others.iter().find(|id| **id > lost).or_else(|| others.first()).copied()?;
    let mut worker = supervisor.workers.remove(place);
    // It may be gone already.
    let _ = worker.child.kill();
    while !matches!(worker.child.try_wait(), Ok(Some(_))) {
        if begun.elapsed() > END_MAX {
            supervisor.workers.push(worker);
            return None;
        }
        std::thread::sleep(END_SLICE);
    }
    let runs = |lane: &LaneId| match control.lane(lane.index()).successor() {
        Some(worker) => worker == lost.index(),
        None => plan.topology.lane(*lane).worker == lost,
    };
    let lanes: Vec<LaneId> = plan.lanes().into_iter().filter(runs).collect();
    lanes.iter().for_each(|lane| control.hand_over(lane.index(), successor.index()));
    Some(LostStorage {
        worker: worker.name.clone(),
        reason: failure.to_string(),
        successor: plan.topology.worker(successor).name.clone(),
        handover_ms: begun.elapsed().as_millis() as u64,
    })
}
