//! Threads of a worker process, one for each lane, and the handling of their failures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use program::topology::{LaneId, Role, WorkerId};
use shm::{Channel, Control, Timeline, WaitError, WorkerState};

use crate::counting;
use crate::errands::Errands;
use crate::error::{LaneError, PoisonCode, WorkerError};
use crate::lane::LaneRunner;
use crate::messages::{MESSAGE_SLICE, send, tell};
use crate::pulse::Pulse;
use crate::shared::protocol::FromWorker;
use crate::standby::Standby;

/// Interval between checks of reads in progress.
const PULSE_SLICE: Duration = Duration::from_millis(100);
/// Stack size of a background thread: the parser of grammars recurses, within the bounds on
/// grammars.
const ERRANDS_STACK_BYTES: usize = 4 << 20;
/// Exit code of a worker whose storage cannot be read.
const STORAGE_LOST: i32 = 3;

/// Lanes and background tasks of a worker.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) own: Vec<LaneRunner>,
    pub(crate) standbys: Vec<Standby>,
    /// Watchdogs of the lanes that read storages.
    pub(crate) pulses: Vec<Arc<Pulse>>,
    /// Maximum time that a drive may take to answer before it is given up.
    pub(crate) silence_max: Duration,
    /// Background tasks of a serving run.
    pub(crate) errands: Errands,
}

/// Body of a lane's thread.
enum Body {
    Own(LaneRunner),
    Standby(Standby),
}

impl Body {
    fn runner(&self) -> &LaneRunner {
        match self {
            Body::Own(runner) => runner,
            Body::Standby(standby) => standby.runner(),
        }
    }

    fn run(&mut self) -> Result<(), LaneError> {
        match self {
            Body::Own(runner) => runner.run(),
            Body::Standby(standby) => standby.run(),
        }
    }
}

/// State of a worker once its control segment is attached.
#[derive(Clone, Copy)]
pub(crate) struct Worker<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) control: &'a Control,
    pub(crate) id: WorkerId,
    pub(crate) role: Role,
}

impl Worker<'_> {
    pub(crate) fn state(&self, state: WorkerState) {
        self.control.worker(self.id.index()).set_state(state);
    }

    /// Runs each lane on a thread of its own until the coordinator ends the run.
    pub(crate) fn run_lanes(
        &self,
        lanes: Lanes,
        kernels: &str,
        culprit: LaneId,
    ) -> Result<(), WorkerError> {
        let Lanes { own, standbys, pulses, silence_max, errands } = lanes;
        let own = own.into_iter().map(Body::Own);
        let bodies: Vec<Body> = own.chain(standbys.into_iter().map(Body::Standby)).collect();
        let (arrived, gate) = (Timeline::new(0), Timeline::new(0));
        let failure = Mutex::new(None);
        let poison = self.control.poison();
        let count = bodies.len() as u32;
        let (ended, pulses) = (Timeline::new(0), &pulses);
        let errands = errands.threads().map_err(WorkerError::Thread)?;
        let threads = count + errands.len() as u32;
        std::thread::scope(|scope| {
            for mut lane in bodies {
                let (arrived, gate, failure, ended) = (&arrived, &gate, &failure, &ended);
                let (name, thread) = (lane.runner().lane(), lane.runner().name().to_owned());
                let body = move || {
                    arrived.signal();
                    // The lane's first wait sees and handles poison again.
                    let _ = gate.wait_at_least(1, poison, MESSAGE_SLICE);
                    if let Err(error) = lane.run() {
                        let error = WorkerError::Lane(error);
                        self.report(&error, PoisonCode::TimedOut, name);
                        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                        failure.get_or_insert(error);
                    }
                    ended.signal();
                };
                let builder = std::thread::Builder::new().name(thread);
                self.begin(builder.spawn_scoped(scope, body), gate, culprit)?;
            }
            let (arrived, ended, channel) = (&arrived, &ended, self.channel);
            for (name, errand) in errands {
                let body = move || {
                    arrived.signal();
                    errand(channel, (ended, count));
                };
                let builder = std::thread::Builder::new().name(name.to_owned());
                let builder = builder.stack_size(ERRANDS_STACK_BYTES);
                self.begin(builder.spawn_scoped(scope, body), &gate, culprit)?;
            }
            let ready = FromWorker::Ready { kernel_variant: kernels.to_owned() };
            // Counting begins once all threads run, since a starting one allocates. No other thread
            // poisons the run before the first group, and the lanes detect a failed wait.
            let _ = arrived.wait_at_least(threads, poison, MESSAGE_SLICE);
            self.state(WorkerState::Ready);
            let sent = send(self.channel, &ready, &[]);
            if let Err(error) = &sent {
                self.report(error, PoisonCode::Setup, culprit);
            }
            // Nothing is allocated from here on: the lanes start after the gate.
            counting::arm();
            gate.signal();
            if !pulses.is_empty() {
                self.watch((pulses, silence_max), (ended, count), culprit);
            }
            sent
        })?;
        if count == 0 {
            self.idle()?;
        }
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Reports a failure to start a thread: the run ends and the threads already started are
    /// released.
    fn begin<T>(
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
            match groups.wait_at_least(group, poison, MESSAGE_SLICE) {
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
        (pulses, limit): (&[Arc<Pulse>], Duration),
        (ended, lanes): (&Timeline, u32),
        culprit: LaneId,
    ) {
        while let Err(WaitError::TimedOut { .. }) =
            ended.wait_at_least(lanes, self.control.poison(), PULSE_SLICE)
        {
            let Some(silence) = pulses.iter().map(|pulse| pulse.silence()).max() else { return };
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
        tell(self.channel, error);
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
