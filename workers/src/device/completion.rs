//! Work that a lane has enqueued, and the thread that detects its completion on the device.
//!
//! For each piece of work, in order, the thread updates the lane's position, waits for the end of
//! the work and writes its span to the trace; a signal then advances the timeline. A GPU's write to
//! memory would not wake a futex, so this thread stores and wakes.
//!
//! A failure is kept for the lane to report, and poisons the run at once, so that other lanes, and
//! this lane's own host waits, do not wait until their bounds expire.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuda::{Context, CudaError, Event, Stream};
use program::ir::ProgramId;
use program::plan::Plan;
use program::topology::LaneId;
use rustix::thread::set_current_timer_slack;
use shm::{Control, Position, TraceRecord, TraceWriter, now_ns};

use super::depth::{ENTRIES_MAX, INSTRUCTIONS_MAX};
use super::stall_check::{StallStatus, check_stall};
use crate::error::{LaneError, PoisonCode, describe_position};
use crate::lane_executor::WorkAmount;
use crate::stall::{StallBounds, StallDetector};

/// Time during which the device is polled without a pause. Polling is less frequent afterwards.
const SPIN_TIME: Duration = Duration::from_micros(30);
/// Interval between polls after that: an instruction takes longer, and so does waking a thread.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Interval between checks for poison while nothing is enqueued.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Identifies an instruction in a particular run of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InstructionRun {
    pub(super) program: ProgramId,
    /// Index of the step within its program.
    pub(super) step: u32,
    pub(super) instruction: u32,
}

impl InstructionRun {
    /// Returns the position in the representation of the control segment.
    fn position(self) -> Position {
        let program = self.program.0.into();
        Position { program, step: self.step, instruction: self.instruction }
    }
}

#[derive(Debug, Clone, Copy)]
enum PendingWork {
    /// Work between the two events of a pair.
    Device {
        pair: usize,
        run: InstructionRun,
        work: WorkAmount,
        /// Number of stream entries up to the end of the work.
        entries: u64,
    },
    Signal,
}

/// Reason why the device's side of a lane has ended.
#[derive(Debug, Clone)]
enum Failure {
    Poisoned,
    Stalled { run: InstructionRun, stalled_for: Duration },
    Cuda { run: Option<InstructionRun>, error: CudaError },
}

#[derive(Debug)]
struct Queue {
    pending: VecDeque<PendingWork>,
    /// Indices of the pairs of events that are not in use.
    free: Vec<usize>,
    /// Number of stream entries that the device is known to have completed.
    done_entries: u64,
    failure: Option<Failure>,
    closed: bool,
}

#[derive(Debug)]
struct CompletionQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
    pairs: Vec<[Event; 2]>,
}

impl CompletionQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or for [`IDLE_CHECK_INTERVAL`] at most.
    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout(queue, IDLE_CHECK_INTERVAL);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn fail(&self, failure: Failure) {
        self.lock().failure.get_or_insert(failure);
        self.changed.notify_all();
    }
}

/// Arguments of the completion thread.
#[derive(Debug)]
pub(super) struct CompletionSetup {
    pub(super) lane: LaneId,
    /// Plan that describes the instructions in error messages.
    pub(super) plan: Arc<Plan>,
    pub(super) context: Context,
    pub(super) control: Control,
    pub(super) trace: TraceWriter,
    pub(super) stall_bounds: StallBounds,
}

/// Work of a lane on the device; see the module documentation.
#[derive(Debug)]
pub(super) struct CompletionTracker {
    shared: Arc<CompletionQueue>,
    lane: LaneId,
    plan: Arc<Plan>,
    control: Control,
    thread: Option<JoinHandle<()>>,
}

/// A pair of events around work that is being enqueued.
#[derive(Debug)]
pub(super) struct OpenWork {
    pair: usize,
    run: InstructionRun,
}

impl CompletionTracker {
    /// Creates the events and starts the thread.
    ///
    /// # Errors
    /// Returns the driver's error, or `Ok(Err(_))` if the system cannot start a thread.
    pub(super) fn start(
        setup: CompletionSetup,
    ) -> Result<Result<CompletionTracker, std::io::Error>, CudaError> {
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
        let shared =
            Arc::new(CompletionQueue { queue: Mutex::new(queue), changed: Condvar::new(), pairs });
        let (lane, control) = (setup.lane, setup.control.clone());
        let (thread_shared, plan) = (Arc::clone(&shared), Arc::clone(&setup.plan));
        let thread = std::thread::Builder::new()
            .name(format!("{} done", plan.lane_name(lane)))
            .spawn(move || CompletionThread { shared: thread_shared, setup, last_end_ns: 0 }.run());
        Ok(thread.map(|thread| {
            let thread = Some(thread);
            CompletionTracker { shared, lane, plan, control, thread }
        }))
    }

    /// Begins a piece of work, which comprises everything enqueued until
    /// [`CompletionTracker::close`]. Blocks while the stream is full.
    ///
    /// # Errors
    /// Returns an earlier failure of the lane.
    pub(super) fn open(&self, stream: &Stream, run: InstructionRun) -> Result<OpenWork, LaneError> {
        let mut queue = self.shared.lock();
        let pair = loop {
            if let Some(failure) = &queue.failure {
                return Err(self.error(failure.clone()));
            }
            // Waits alone, which belong to no piece of work, cannot fill the stream.
            let in_flight = stream.enqueued().saturating_sub(queue.done_entries);
            let is_full = in_flight >= ENTRIES_MAX && !queue.pending.is_empty();
            if !is_full && let Some(pair) = queue.free.pop() {
                break pair;
            }
            queue = self.shared.wait(queue);
        };
        drop(queue);
        let recorded = self.shared.pairs[pair][0].record(stream);
        recorded.map_err(|error| self.cuda(run, error))?;
        Ok(OpenWork { pair, run })
    }

    /// Ends a piece of work.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(super) fn close(
        &self,
        stream: &Stream,
        open: OpenWork,
        work: WorkAmount,
    ) -> Result<(), LaneError> {
        let OpenWork { pair, run } = open;
        let recorded = self.shared.pairs[pair][1].record(stream);
        recorded.map_err(|error| self.cuda(run, error))?;
        self.push(PendingWork::Device { pair, run, work, entries: stream.enqueued() });
        Ok(())
    }

    /// Advances the timeline once all earlier work is complete.
    pub(super) fn signal(&self) {
        self.push(PendingWork::Signal);
    }

    fn push(&self, pending: PendingWork) {
        let mut queue = self.shared.lock();
        queue.pending.push_back(pending);
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Waits until all work is complete.
    ///
    /// # Errors
    /// Returns the failure that prevented it.
    pub(super) fn wait_until_complete(&self) -> Result<(), LaneError> {
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

    /// Returns the failure of this lane, unless it only followed another lane's failure.
    pub(super) fn own_failure(&self) -> Option<LaneError> {
        let failure = self.shared.lock().failure.clone()?;
        (!matches!(failure, Failure::Poisoned)).then(|| self.error(failure))
    }

    /// Records a failed call that enqueues work and returns it as an error of the lane.
    pub(super) fn cuda(&self, run: InstructionRun, error: CudaError) -> LaneError {
        let failure = Failure::Cuda { run: Some(run), error };
        self.shared.fail(failure.clone());
        self.error(failure)
    }

    fn error(&self, failure: Failure) -> LaneError {
        let lane = self.plan.lane_name(self.lane).to_owned();
        let place = |run: Option<InstructionRun>| match run {
            Some(run) => describe_position(&self.plan, self.lane, run.position()),
            None => "no instruction".to_owned(),
        };
        match failure {
            Failure::Poisoned => LaneError::Poisoned,
            Failure::Stalled { run, stalled_for } => {
                LaneError::Stuck { lane, place: place(Some(run)), still_s: stalled_for.as_secs() }
            }
            Failure::Cuda { run, error } => {
                LaneError::Device { lane, place: place(run), source: error }
            }
        }
    }

    /// Poisons the run after a failure that this lane detected.
    pub(super) fn poison_run(&self) {
        self.control.stop(self.lane.index() as u32, PoisonCode::Device as u32);
    }
}

impl Drop for CompletionTracker {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Lets the thread's sleeps end when they are due. By default the kernel adds up to 50 µs, more
/// than [`POLL_INTERVAL`], to each, and so to each hop from lane to lane.
pub(super) fn shorten_sleeps() {
    // Without it everything works, only later.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}

/// State of the completion thread.
struct CompletionThread {
    shared: Arc<CompletionQueue>,
    setup: CompletionSetup,
    last_end_ns: u64,
}

impl CompletionThread {
    fn run(mut self) {
        if let Err(error) = self.setup.context.make_current() {
            return self.fail(Failure::Cuda { run: None, error });
        }
        shorten_sleeps();
        while let Some(pending) = self.next() {
            if let Err(failure) = self.finish(pending) {
                return self.fail(failure);
            }
            let mut queue = self.shared.lock();
            queue.pending.pop_front();
            if let PendingWork::Device { pair, entries, .. } = pending {
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

    /// Returns the oldest unfinished entry, which stays in the queue, or `None` once the queue is
    /// closed and empty.
    fn next(&self) -> Option<PendingWork> {
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

    fn finish(&mut self, pending: PendingWork) -> Result<(), Failure> {
        let (run, work, start_ns, end_ns) = match pending {
            PendingWork::Signal => {
                self.lane().timeline.signal();
                return Ok(());
            }
            PendingWork::Device { pair, run, work, .. } => {
                self.lane().set_position(run.position());
                let failed = |error| Failure::Cuda { run: Some(run), error };
                self.wait(pair, run)?;
                let end_ns = now_ns();
                let [start, end] = &self.shared.pairs[pair];
                let elapsed_ns = end.elapsed_ns(start).map_err(failed)?;
                let start_ns = end_ns.saturating_sub(elapsed_ns).max(self.last_end_ns);
                (run, work, start_ns, end_ns)
            }
        };
        self.last_end_ns = end_ns;
        self.setup.trace.push(TraceRecord {
            start_ns,
            end_ns,
            bytes: work.bytes,
            rows: work.rows,
            instruction: run.instruction,
            step: run.step,
            program: run.program.0.into(),
        });
        Ok(())
    }

    fn lane(&self) -> &shm::lane::Lane {
        self.setup.control.lane(self.setup.lane.index())
    }

    /// Waits until the device has passed the end of a pair. The bound applies to lack of progress,
    /// as in lanes of the host, since the work may include a wait for another lane. It counts from
    /// the last movement, which all lanes observe equally.
    fn wait(&self, pair: usize, run: InstructionRun) -> Result<(), Failure> {
        let control = &self.setup.control;
        let bound = self.setup.stall_bounds.current(control);
        let lanes = self.setup.plan.topology.lanes.len();
        let mut detector = StallDetector::new(control, lanes, bound);
        let spinning = Instant::now();
        let [start, end] = &self.shared.pairs[pair];
        loop {
            match end.is_done() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(Failure::Cuda { run: Some(run), error }),
            }
            if spinning.elapsed() < SPIN_TIME {
                if control.poison().cause().is_some() {
                    return Err(Failure::Poisoned);
                }
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(POLL_INTERVAL);
            let begun = || start.is_done().unwrap_or(true);
            let stalled_for = detector.check();
            match check_stall(control, stalled_for, bound, begun) {
                StallStatus::InProgress => {}
                StallStatus::Poisoned => return Err(Failure::Poisoned),
                StallStatus::Stalled => return Err(Failure::Stalled { run, stalled_for }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::current_timer_slack;

    use super::shorten_sleeps;

    #[test]
    fn sleeps_end_when_they_are_due() {
        let slack_ns = std::thread::spawn(|| {
            shorten_sleeps();
            current_timer_slack()
        });
        assert_eq!(slack_ns.join().expect("it ends"), Ok(1));
    }
}
