//! Threads of a worker process, one for each lane, and the handling of their failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use program::topology::{LaneId, Role, WorkerId};
use protocol::messages::FromWorker;
use shm::{Channel, Control, Timeline, WaitError, WorkerState};

use crate::alloc_counter;
use crate::background::BackgroundTasks;
use crate::error::{LaneError, PoisonCode, WorkerError};
use crate::lane::LaneRunner;
use crate::messages::{MESSAGE_TIMEOUT, report_failure, send};
use crate::read_watchdog::ReadWatchdog;
use crate::standby::Standby;

/// Interval between checks of reads in progress.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);
/// Stack size of a background thread: the parser of grammars recurses, within the bounds on
/// grammars.
const BACKGROUND_STACK_BYTES: usize = 4 << 20;
/// Exit code of a worker whose storage cannot be read.
const STORAGE_LOST: i32 = 3;

/// Lanes and background tasks of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLanes {
    pub(crate) runners: Vec<LaneRunner>,
    pub(crate) standbys: Vec<Standby>,
    /// Watchdogs of the lanes that read storages.
    pub(crate) watchdogs: Vec<Arc<ReadWatchdog>>,
    /// Maximum time that a drive may take to answer before it is given up.
    pub(crate) silence_max: Duration,
    /// Background tasks of a serving run.
    pub(crate) background: BackgroundTasks,
}

/// Body of a lane's thread.
enum LaneBody {
    Own(LaneRunner),
    Standby(Standby),
}

impl LaneBody {
    fn runner(&self) -> &LaneRunner {
        match self {
            LaneBody::Own(runner) => runner,
            LaneBody::Standby(standby) => standby.runner(),
        }
    }

    fn run(&mut self) -> Result<(), LaneError> {
        match self {
            LaneBody::Own(runner) => runner.run(),
            LaneBody::Standby(standby) => standby.run(),
        }
    }
}

/// State of a worker once its control segment is attached.
#[derive(Clone, Copy)]
pub(crate) struct WorkerRuntime<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) control: &'a Control,
    pub(crate) id: WorkerId,
    pub(crate) role: Role,
}

impl WorkerRuntime<'_> {
    pub(crate) fn set_state(&self, state: WorkerState) {
        self.control.worker(self.id.index()).set_state(state);
    }

    /// Runs each lane on a thread of its own until the coordinator ends the run.
    pub(crate) fn run_lanes(
        &self,
        lanes: WorkerLanes,
        kernels: &str,
        culprit: LaneId,
    ) -> Result<(), WorkerError> {
        let WorkerLanes { runners, standbys, watchdogs, silence_max, background } = lanes;
        let runners = runners.into_iter().map(LaneBody::Own);
        let bodies: Vec<LaneBody> =
            runners.chain(standbys.into_iter().map(LaneBody::Standby)).collect();
        let (arrived, gate) = (Timeline::new(0), Timeline::new(0));
        let failure = Mutex::new(None);
        let poison = self.control.poison();
        let count = bodies.len() as u32;
        let (ended, watchdogs) = (Timeline::new(0), &watchdogs);
        let background_threads = background.threads().map_err(WorkerError::Thread)?;
        let threads = count + background_threads.len() as u32;
        std::thread::scope(|scope| {
            for mut lane in bodies {
                let (arrived, gate, failure, ended) = (&arrived, &gate, &failure, &ended);
                let (name, thread) = (lane.runner().lane(), lane.runner().name().to_owned());
                let body = move || {
                    arrived.signal();
                    // The lane's first wait sees and handles poison again.
                    let _ = gate.wait_until(1, poison, MESSAGE_TIMEOUT);
                    if let Err(error) = lane.run() {
                        let error = WorkerError::Lane(error);
                        self.report(&error, PoisonCode::TimedOut, name);
                        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                        failure.get_or_insert(error);
                    }
                    ended.signal();
                };
                let builder = std::thread::Builder::new().name(thread);
                self.check_spawned(builder.spawn_scoped(scope, body), gate, culprit)?;
            }
            let (arrived, ended, channel) = (&arrived, &ended, self.channel);
            for (name, task) in background_threads {
                let body = move || {
                    arrived.signal();
                    task(channel, ended, count);
                };
                let builder = std::thread::Builder::new().name(name.to_owned());
                let builder = builder.stack_size(BACKGROUND_STACK_BYTES);
                self.check_spawned(builder.spawn_scoped(scope, body), &gate, culprit)?;
            }
            let ready = FromWorker::Ready { kernel_variant: kernels.to_owned() };
            // Counting begins once all threads run, since a starting one allocates. No other thread
            // poisons the run before the first group, and the lanes detect a failed wait.
            let _ = arrived.wait_until(threads, poison, MESSAGE_TIMEOUT);
            self.set_state(WorkerState::Ready);
            let sent = send(self.channel, &ready, &[]);
            if let Err(error) = &sent {
                self.report(error, PoisonCode::Setup, culprit);
            }
            // Nothing is allocated from here on: the lanes start after the gate.
            alloc_counter::arm();
            gate.signal();
            if !watchdogs.is_empty() {
                self.watch(watchdogs, silence_max, ended, count, culprit);
            }
            sent
        })?;
        if count == 0 {
            self.idle()?;
        }
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Reports a failure to start a thread: the run ends and the threads already started are
    /// released.
    fn check_spawned<T>(
        &self,
        spawned: std::io::Result<T>,
        gate: &Timeline,
        culprit: LaneId,
    ) -> Result<(), WorkerError> {
        spawned.map(|_| ()).map_err(|error| {
            let error = WorkerError::Thread(error);
            self.report(&error, PoisonCode::Setup, culprit);
            gate.signal();
            error
        })
    }

    /// Waits until the last group or poison. The coordinator treats a worker that leaves early as
    /// failed, even one for which the plan has no work.
    ///
    /// # Errors
    /// Returns poison like a lane, which delays the exit: a worker that leaves at once would be
    /// taken for the one that failed.
    fn idle(&self) -> Result<(), LaneError> {
        let (groups, poison) = (self.control.groups(), self.control.poison());
        let mut group = 1;
        loop {
            match groups.wait_until(group, poison, MESSAGE_TIMEOUT) {
                Ok(()) if self.control.stages().next().is_none() => return Ok(()),
                Ok(()) => group += 1,
                // A timeout is no failure: the coordinator may have nothing to do.
                Err(WaitError::TimedOut { .. }) => {}
                Err(WaitError::Poisoned(_)) => return Err(LaneError::Poisoned),
            }
        }
    }

    /// Monitors reads until all lanes have ended. A drive that no longer answers ends the process,
    /// since the thread that waits for it cannot be woken.
    fn watch(
        &self,
        pulses: &[Arc<ReadWatchdog>],
        limit: Duration,
        ended: &Timeline,
        lanes: u32,
        culprit: LaneId,
    ) {
        while let Err(WaitError::TimedOut { .. }) =
            ended.wait_until(lanes, self.control.poison(), WATCHDOG_INTERVAL)
        {
            let Some(silence) = pulses.iter().map(|watchdog| watchdog.silence()).max() else {
                return;
            };
            if silence > limit {
                let reason = format!("The drive has not answered for {} s", limit.as_secs_f64());
                let error = LaneError::Silent { reason };
                self.report(&WorkerError::Lane(error), PoisonCode::TimedOut, culprit);
            }
        }
    }

    /// Reports an error and then ends the run for all workers. A worker that only follows another's
    /// poison reports nothing. Repeated reports are harmless, since the coordinator takes the
    /// first.
    pub(crate) fn report(&self, error: &WorkerError, code: PoisonCode, lane: LaneId) {
        if matches!(error, WorkerError::Lane(LaneError::Poisoned)) {
            return;
        }
        report_failure(self.channel, error);
        if let WorkerError::Lane(LaneError::Storage { .. } | LaneError::Silent { .. }) = error {
            // The coordinator decides whether another worker resumes the lane. Until this process
            // has ended a read may be in progress: the system waits for it.
            #[expect(
                clippy::disallowed_methods,
                reason = "threads wait for a drive, perhaps for ever"
            )]
            std::process::exit(STORAGE_LOST);
        }
        self.control.stop(lane.index() as u32, code as u32);
    }
}
