//! What a lane has enqueued, and the thread that notices when the device has done it.
//!
//! In order, for each piece of work: the lane's position moves to it, its end is awaited, its span
//! goes to the trace; a signal then advances the timeline. A GPU's write to memory would wake no
//! futex, so it is this thread that stores and wakes.
//!
//! A failure is kept for the lane to report, and poisons the run at once: other lanes, and this
//! lane's own host waits, must not sit out their bounds.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuda::{Context, CudaError, Event, Stream};
use program::ir::ProgramId;
use program::plan::Plan;
use program::topology::LaneId;
use shm::{Control, Position, TraceRecord, TraceWriter, now_ns};

use super::depth::{ENTRIES_MAX, INSTRUCTIONS_MAX};
use super::verdict::{Verdict, judge};
use crate::error::{LaneError, PoisonCode, place};
use crate::lane_executor::Work;
use crate::still::{StillBounds, Stillness};

/// The device is asked without a pause for this long, then less often.
const SPIN: Duration = Duration::from_micros(30);
/// Between two questions after that: an instruction takes longer, and so does waking a thread.
const PAUSE: Duration = Duration::from_micros(20);
/// Between two looks at poison while nothing is enqueued.
const IDLE: Duration = Duration::from_millis(100);

/// Which instruction of which run of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) program: ProgramId,
    /// Index of the step within its program.
    pub(super) step: u32,
    pub(super) instruction: u32,
}

impl Which {
    /// As the control segment says it.
    fn position(self) -> Position {
        let program = self.program.0.into();
        Position { program, step: self.step, instruction: self.instruction }
    }
}

#[derive(Debug, Clone, Copy)]
enum Pending {
    /// Between the two events of a pair.
    Device {
        pair: usize,
        which: Which,
        work: Work,
        /// Entries of the stream up to its end.
        entries: u64,
    },
    Signal,
}

/// Why the device's side of a lane has ended.
#[derive(Debug, Clone)]
enum Failure {
    Poisoned,
    Stuck { which: Which, still: Duration },
    Cuda { which: Option<Which>, error: CudaError },
}

#[derive(Debug)]
struct Queue {
    pending: VecDeque<Pending>,
    /// Pairs of events that nothing uses.
    free: Vec<usize>,
    /// Entries of the stream that the device is known to have done.
    done_entries: u64,
    failure: Option<Failure>,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    pairs: Vec<[Event; 2]>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or for a while.
    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout(queue, IDLE);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn fail(&self, failure: Failure) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }
}

/// What the thread needs.
#[derive(Debug)]
pub(super) struct CompletionSetup {
    pub(super) lane: LaneId,
    /// What instructions mean, for errors.
    pub(super) plan: Arc<Plan>,
    pub(super) context: Context,
    pub(super) control: Control,
    pub(super) trace: TraceWriter,
    pub(super) still: StillBounds,
}

/// A lane's work on the device; see the module header.
#[derive(Debug)]
pub(super) struct Completion {
    shared: Arc<Shared>,
    lane: LaneId,
    plan: Arc<Plan>,
    control: Control,
    thread: Option<JoinHandle<()>>,
}

/// A pair of events around work that is being enqueued.
#[derive(Debug)]
pub(super) struct Open {
    pair: usize,
    which: Which,
}

impl Completion {
    /// Makes the events and starts the thread.
    ///
    /// # Errors
    /// The driver's refusal; `Ok(Err(_))` where the system refused a thread.
    pub(super) fn start(
        setup: CompletionSetup,
    ) -> Result<Result<Completion, std::io::Error>, CudaError> {
        let mut pairs = Vec::with_capacity(INSTRUCTIONS_MAX);
        for _ in 0..INSTRUCTIONS_MAX {
            pairs.push([Event::new(&setup.context)?, Event::new(&setup.context)?]);
        }
        let queue = Queue {
            pending: VecDeque::with_capacity(4 * INSTRUCTIONS_MAX),
            free: (0..INSTRUCTIONS_MAX).collect(),
            done_entries: 0,
            failure: None,
            closed: false,
        };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new(), pairs });
        let (lane, control) = (setup.lane, setup.control.clone());
        let (theirs, plan) = (Arc::clone(&shared), Arc::clone(&setup.plan));
        let thread = std::thread::Builder::new()
            .name(format!("{} done", plan.lane_name(lane)))
            .spawn(move || Finisher { shared: theirs, setup, last_end_ns: 0 }.run());
        Ok(thread.map(|thread| {
            let thread = Some(thread);
            Completion { shared, lane, plan, control, thread }
        }))
    }

    /// Begins a piece of work: what is enqueued until [`Completion::close`] belongs to it. Waits
    /// while the stream holds as much as it may.
    ///
    /// # Errors
    /// An earlier failure of the lane.
    pub(super) fn open(&self, stream: &Stream, which: Which) -> Result<Open, LaneError> {
        let mut queue = self.shared.lock();
        let pair = loop {
            if let Some(failure) = &queue.failure {
                return Err(self.error(failure.clone()));
            }
            // Waits alone, which belong to no piece of work, are never too many.
            let in_flight = stream.entries().saturating_sub(queue.done_entries);
            let is_full = in_flight >= ENTRIES_MAX && !queue.pending.is_empty();
            if !is_full && let Some(pair) = queue.free.pop() {
                break pair;
            }
            queue = self.shared.wait(queue);
        };
        drop(queue);
        let recorded = self.shared.pairs[pair][0].record(stream);
        recorded.map_err(|error| self.cuda(which, error))?;
        Ok(Open { pair, which })
    }

    /// Ends a piece of work.
    ///
    /// # Errors
    /// The driver's refusal.
    pub(super) fn close(&self, stream: &Stream, open: Open, work: Work) -> Result<(), LaneError> {
        let Open { pair, which } = open;
        let recorded = self.shared.pairs[pair][1].record(stream);
        recorded.map_err(|error| self.cuda(which, error))?;
        self.push(Pending::Device { pair, which, work, entries: stream.entries() });
        Ok(())
    }

    /// Advances the timeline once everything before is done.
    pub(super) fn signal(&self) {
        self.push(Pending::Signal);
    }

    fn push(&self, pending: Pending) {
        let mut queue = self.shared.lock();
        queue.pending.push_back(pending);
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// What failed instead.
    pub(super) fn settle(&self) -> Result<(), LaneError> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(failure) = &queue.failure {
                return Err(self.error(failure.clone()));
            }
            if queue.pending.is_empty() {
                return Ok(());
            }
            queue = self.shared.wait(queue);
        }
    }

    /// Why this lane has failed, if it has and not only followed another.
    pub(super) fn own_failure(&self) -> Option<LaneError> {
        let failure = self.shared.lock().failure.clone()?;
        (!matches!(failure, Failure::Poisoned)).then(|| self.error(failure))
    }

    /// The error of a call that enqueues.
    pub(super) fn cuda(&self, which: Which, error: CudaError) -> LaneError {
        let failure = Failure::Cuda { which: Some(which), error };
        self.shared.fail(failure.clone());
        self.error(failure)
    }

    fn error(&self, failure: Failure) -> LaneError {
        let lane = self.plan.lane_name(self.lane).to_owned();
        let place = |which: Option<Which>| match which {
            Some(which) => place(&self.plan, self.lane, which.position()),
            None => "no instruction".to_owned(),
        };
        match failure {
            Failure::Poisoned => LaneError::Poisoned,
            Failure::Stuck { which, still } => {
                LaneError::Stuck { lane, place: place(Some(which)), still_s: still.as_secs() }
            }
            Failure::Cuda { which, error } => {
                LaneError::Device { lane, place: place(which), source: error }
            }
        }
    }

    /// Poisons the run, for a failure that this lane found.
    pub(super) fn stop(&self) {
        self.control.stop(self.lane.index() as u32, PoisonCode::Device as u32);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to panic at.
            let _ = thread.join();
        }
    }
}

/// The thread.
struct Finisher {
    shared: Arc<Shared>,
    setup: CompletionSetup,
    last_end_ns: u64,
}

impl Finisher {
    fn run(mut self) {
        if let Err(error) = self.setup.context.make_current() {
            return self.fail(Failure::Cuda { which: None, error });
        }
        while let Some(pending) = self.next() {
            if let Err(failure) = self.finish(pending) {
                return self.fail(failure);
            }
            let mut queue = self.shared.lock();
            queue.pending.pop_front();
            if let Pending::Device { pair, entries, .. } = pending {
                queue.free.push(pair);
                queue.done_entries = entries;
            }
            drop(queue);
            self.shared.changed.notify_all();
        }
    }

    fn fail(&self, failure: Failure) {
        let poisoned = matches!(failure, Failure::Poisoned);
        self.shared.fail(failure);
        if !poisoned {
            let lane = self.setup.lane.index() as u32;
            self.setup.control.stop(lane, PoisonCode::Device as u32);
        }
    }

    /// The oldest that is not finished; it stays in the queue meanwhile. `None`: no more will come.
    fn next(&self) -> Option<Pending> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(pending) = queue.pending.front() {
                return Some(*pending);
            }
            if queue.closed {
                return None;
            }
            queue = self.shared.wait(queue);
        }
    }

    fn finish(&mut self, pending: Pending) -> Result<(), Failure> {
        let (which, work, start_ns, end_ns) = match pending {
            Pending::Signal => {
                self.lane().timeline.signal();
                return Ok(());
            }
            Pending::Device { pair, which, work, .. } => {
                self.lane().set_position(which.position());
                let failed = |error| Failure::Cuda { which: Some(which), error };
                self.wait(pair, which)?;
                let end_ns = now_ns();
                let [start, end] = &self.shared.pairs[pair];
                let elapsed_ns = end.elapsed_ns(start).map_err(failed)?;
                let start_ns = end_ns.saturating_sub(elapsed_ns).max(self.last_end_ns);
                (which, work, start_ns, end_ns)
            }
        };
        self.last_end_ns = end_ns;
        self.setup.trace.push(TraceRecord {
            start_ns,
            end_ns,
            bytes: work.bytes,
            rows: work.rows,
            instruction: which.instruction,
            step: which.step,
            program: which.program.0.into(),
        });
        Ok(())
    }

    fn lane(&self) -> &shm::lane::Lane {
        self.setup.control.lane(self.setup.lane.index())
    }

    /// Waits until the device has passed a pair's end. The bound is on standing still, as in lanes
    /// of the host: a wait for another lane may be part of it. It counts from the last movement,
    /// which all lanes see alike.
    fn wait(&self, pair: usize, which: Which) -> Result<(), Failure> {
        let control = &self.setup.control;
        let bound = self.setup.still.now(control);
        let lanes = self.setup.plan.topology.lanes.len();
        let mut stillness = Stillness::new(control, lanes, bound);
        let spinning = Instant::now();
        let [start, end] = &self.shared.pairs[pair];
        loop {
            match end.is_done() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(Failure::Cuda { which: Some(which), error }),
            }
            if spinning.elapsed() < SPIN {
                if control.poison().cause().is_some() {
                    return Err(Failure::Poisoned);
                }
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(PAUSE);
            let begun = || start.is_done().unwrap_or(true);
            let still = stillness.look();
            match judge(control, still, bound, begun) {
                Verdict::Wait => {}
                Verdict::Poisoned => return Err(Failure::Poisoned),
                Verdict::Stuck => return Err(Failure::Stuck { which, still }),
            }
        }
    }
}
