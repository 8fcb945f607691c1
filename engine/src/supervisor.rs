//! Supervision of worker processes: detects that they exit, stop or fall silent, and describes the
//! failure.
//!
//! There is no supervising thread: any code that waits for the workers waits in slices and calls
//! [`Supervisor::check`] between them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use program::plan::Plan;
use program::topology::WorkerId;
use protocol::messages::{FailureKind, FromWorker};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use shm::{Channel, Control};
use workers::error::describe_position;

/// Maximum time without a heartbeat, after which a worker is given up although its process exists.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a worker which poisoned the run may take to report the reason, on an
/// overloaded machine. The other workers linger longer than this.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to wait for killed workers to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time that workers may take to exit by themselves.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why the workers cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerFailure {
    #[error("the {worker} (process {pid}) was killed by signal {signal} {place}")]
    Killed { worker: String, pid: u32, signal: i32, place: String },
    #[error("the {worker} (process {pid}) exited with code {code} {place}")]
    Exited { worker: String, pid: u32, code: i32, place: String },
    #[error("the {worker} (process {pid}) was stopped by signal {signal} {place}")]
    Stopped { worker: String, pid: u32, signal: i32, place: String },
    #[error("the {worker} (process {pid}) has not answered for {seconds} s {place}")]
    Unresponsive { worker: String, pid: u32, seconds: u64, place: String },
    #[error("the {worker}: {message}")]
    Reported { worker: String, kind: FailureKind, message: String },
    #[error("a lane stopped waiting, and no worker reported a reason")]
    Unknown,
}

impl WorkerFailure {
    /// Returns true if this is a failure of the worker with this name.
    pub(super) fn is_from(&self, name: &str) -> bool {
        match self {
            WorkerFailure::Killed { worker, .. }
            | WorkerFailure::Exited { worker, .. }
            | WorkerFailure::Stopped { worker, .. }
            | WorkerFailure::Unresponsive { worker, .. }
            | WorkerFailure::Reported { worker, .. } => worker == name,
            WorkerFailure::Unknown => false,
        }
    }

    /// Returns true if no lane made progress within the bound.
    pub(super) fn is_stall(&self) -> bool {
        matches!(self, WorkerFailure::Reported { kind: FailureKind::Stuck, .. })
    }

    /// Returns true if the device has too little memory.
    pub fn is_out_of_device_memory(&self) -> bool {
        matches!(self, WorkerFailure::Reported { kind: FailureKind::DeviceMemory, .. })
    }
}

/// A running worker process.
#[derive(Debug)]
pub(super) struct SupervisedWorker {
    pub(super) id: WorkerId,
    /// Name in errors and reports.
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) channel: Channel,
    inbox: VecDeque<(FromWorker, Vec<OwnedFd>)>,
    reported_failure: Option<(FailureKind, String)>,
    last_tick: u32,
    last_tick_at: Instant,
}

impl SupervisedWorker {
    pub(super) fn new(
        id: WorkerId,
        name: String,
        child: Child,
        channel: Channel,
    ) -> SupervisedWorker {
        SupervisedWorker {
            id,
            name,
            child,
            channel,
            inbox: VecDeque::new(),
            reported_failure: None,
            last_tick: 0,
            last_tick_at: Instant::now(),
        }
    }

    /// Returns the next message, waiting at most `timeout` for it.
    pub(super) fn receive(&mut self, timeout: Duration) -> Option<(FromWorker, Vec<OwnedFd>)> {
        self.receive_pending(timeout);
        self.inbox.pop_front()
    }

    /// Returns the failure that the worker reported. Called again for a worker that is found to
    /// have exited, since it may have reported a failure after the previous call.
    fn take_reported_failure(&mut self) -> Option<WorkerFailure> {
        self.receive_pending(Duration::ZERO);
        let (kind, message) = self.reported_failure.clone()?;
        Some(WorkerFailure::Reported { worker: self.name.clone(), kind, message })
    }

    /// Moves received messages to the inbox. A reported failure is kept for [`Supervisor::check`].
    fn receive_pending(&mut self, timeout: Duration) {
        let mut timeout = if self.inbox.is_empty() { timeout } else { Duration::ZERO };
        while let Ok((bytes, descriptors)) = self.channel.recv(timeout) {
            timeout = Duration::ZERO;
            match postcard::from_bytes(&bytes) {
                Ok(FromWorker::Failed { kind, message }) => {
                    self.reported_failure = Some((kind, message))
                }
                Ok(message) => self.inbox.push_back((message, descriptors)),
                Err(error) => {
                    let message = format!("sent an unreadable message: {error}");
                    self.reported_failure = Some((FailureKind::Other, message));
                }
            }
        }
    }
}

/// All workers of a run. Dropping it kills those that still run, so that none outlives the
/// coordinator.
#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) workers: Vec<SupervisedWorker>,
    control: Control,
    checked_at: Instant,
}

impl Supervisor {
    pub(super) fn new(control: Control) -> Supervisor {
        Supervisor { workers: Vec::new(), control, checked_at: Instant::now() }
    }

    /// Returns the names and process ids of the workers, for reports.
    pub(super) fn processes(&self) -> impl Iterator<Item = (&str, u32)> + '_ {
        self.workers.iter().map(|worker| (worker.name.as_str(), worker.child.id()))
    }

    /// Checks every worker once.
    ///
    /// # Errors
    /// The first failure that a worker has reported; otherwise that of the first worker that is
    /// dead, stopped or silent.
    pub(super) fn check(&mut self, plan: &Plan) -> Result<(), WorkerFailure> {
        // While this process itself was stopped, it observed no heartbeats, which is not a failure
        // of any worker.
        let slept = self.checked_at.elapsed() > HEARTBEAT_TIMEOUT / 2;
        self.checked_at = Instant::now();
        // A reported failure explains any exit better than an exit code.
        if let Some(reported) =
            self.workers.iter_mut().find_map(SupervisedWorker::take_reported_failure)
        {
            return Err(reported);
        }
        for worker in &mut self.workers {
            let id = worker.id;
            if let Some(failure) = status(worker, || describe(&self.control, plan, id)) {
                return Err(worker.take_reported_failure().unwrap_or(failure));
            }
            let tick = self.control.worker(id.index()).ticks();
            if tick != worker.last_tick || slept {
                worker.last_tick = tick;
                worker.last_tick_at = Instant::now();
            } else if worker.last_tick_at.elapsed() > HEARTBEAT_TIMEOUT {
                return Err(WorkerFailure::Unresponsive {
                    worker: worker.name.clone(),
                    pid: worker.child.id(),
                    seconds: worker.last_tick_at.elapsed().as_secs(),
                    place: describe(&self.control, plan, worker.id),
                });
            }
        }
        Ok(())
    }

    /// Waits, after a poisoned wait, until the failure of the worker that caused it is found. A
    /// worker may poison the run before it reports the reason.
    pub(super) fn wait_for_cause(&mut self, plan: &Plan) -> WorkerFailure {
        let until = Instant::now() + CAUSE_TIMEOUT;
        while Instant::now() < until {
            if let Err(failure) = self.check(plan) {
                return failure;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        WorkerFailure::Unknown
    }

    /// Waits for the workers to exit by themselves; those that are `busy` with a group do not, and
    /// are killed at once. Returns true if all of them exited successfully.
    pub(super) fn shut_down(&mut self, busy: bool) -> bool {
        if busy {
            self.kill();
            return false;
        }
        let until = Instant::now() + EXIT_TIMEOUT;
        let all_exited = self.workers.iter_mut().all(|worker| {
            loop {
                match worker.child.try_wait() {
                    Ok(Some(status)) => return status.success(),
                    // A stopped worker never exits; its work is done.
                    Ok(None) if status(worker, String::new).is_some() => return false,
                    Ok(None) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    _ => return false,
                }
            }
        });
        self.kill();
        all_exited
    }

    /// Kills and reaps all workers that still run.
    fn kill(&mut self) {
        for worker in &mut self.workers {
            // An error means that the process has ended already, as intended.
            let _ = worker.child.kill();
        }
        let until = Instant::now() + KILL_TIMEOUT;
        for worker in &mut self.workers {
            // A process that a drive holds in the kernel ends with its system call, if that ever
            // returns.
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.workers.clear();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the failure of a worker that has exited or is stopped; `None` while it runs. Leaves the
/// exit status to be reaped by `kill`.
fn status(worker: &SupervisedWorker, place: impl Fn() -> String) -> Option<WorkerFailure> {
    let pid = worker.child.id();
    let id = Pid::from_raw(pid.cast_signed())?;
    let options = WaitIdOptions::EXITED
        | WaitIdOptions::STOPPED
        | WaitIdOptions::NOHANG
        | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(id), options).ok()??;
    let name = worker.name.clone();
    if let Some(signal) = status.terminating_signal() {
        return Some(WorkerFailure::Killed { worker: name, pid, signal, place: place() });
    }
    if let Some(signal) = status.stopping_signal() {
        // A stopped process cannot clean up, so it is killed.
        let _ = kill_process(id, Signal::KILL);
        return Some(WorkerFailure::Stopped { worker: name, pid, signal, place: place() });
    }
    let code = status.exit_status()?;
    Some(WorkerFailure::Exited { worker: name, pid, code, place: place() })
}

/// Describes the state of a worker, or the positions of its lanes that have work, such as
/// `(cpu.compute in decode step 12, fc0, layer 3, batch 1)`.
fn describe(control: &Control, plan: &Plan, id: WorkerId) -> String {
    use shm::WorkerState;
    match control.worker(id.index()).state() {
        WorkerState::Attach | WorkerState::Map => return "while it started".to_owned(),
        WorkerState::Load => return "while it loaded weights".to_owned(),
        WorkerState::Ready => return "before the first group".to_owned(),
        _ => {}
    }
    let with_work = plan.lanes();
    let lanes = plan.topology.lanes_of(id).into_iter().filter(|lane| with_work.contains(lane));
    let places: Vec<String> = lanes
        .map(|lane| {
            let position = control.lane(lane.index()).position();
            format!("{} in {}", plan.lane_name(lane), describe_position(plan, lane, position))
        })
        .collect();
    format!("({})", places.join("; "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_worker_said_before_it_exited_is_its_failure() {
        let (ours, theirs) = Channel::pair().expect("a socket");
        let child = Command::new("true").spawn().expect("it starts");
        let mut worker = SupervisedWorker::new(WorkerId(0), "cpu worker".to_owned(), child, ours);
        assert_eq!(worker.take_reported_failure(), None);
        // Reported after the coordinator has read the channel, and before it observes the exit.
        let (kind, message) = (FailureKind::Other, "no more memory".to_owned());
        let failed = FromWorker::Failed { kind, message: message.clone() };
        theirs.send(&postcard::to_stdvec(&failed).expect("bytes"), &[]).expect("room");
        drop(theirs);
        while status(&worker, String::new).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let name = worker.name.clone();
        let reported = WorkerFailure::Reported { worker: name, kind, message };
        assert_eq!(worker.take_reported_failure(), Some(reported));
        worker.child.wait().expect("a child");
    }
}
