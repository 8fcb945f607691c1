//! Synchronisation of the caller and the threads of a pool: a run is opened, threads enter,
//! distribute its tasks among themselves and leave; the caller closes it and waits until no thread
//! is inside.
//!
//! Used by `pool`, and by its model check, which supplies its own threads. Correctness relies on
//! three orderings, each named at both sides: `SYNC POINT: job` (the run's description is visible
//! to threads that enter), `SYNC POINT: left` (the writes of the tasks are visible to the caller,
//! and the description is not modified while it is read) and `SYNC POINT: sleeper` (the caller sees
//! that a thread sleeps, or the thread sees the run).

use std::time::{Duration, Instant};

use shm::futex;
use shm::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, fence, spin_loop};

/// In `Rendezvous::state`: number of pool threads inside the run.
const INSIDE_MASK: u64 = (1 << 16) - 1;
/// In `Rendezvous::state`: threads may enter the run.
const OPEN: u64 = 1 << 16;
/// In `Rendezvous::state`: the pool ends.
const STOP: u64 = 1 << 17;
/// In `Rendezvous::state`: first bit of the number of threads that take part.
const THREADS_SHIFT: u32 = 18;
/// Maximum number of threads of a pool: the largest value of the field.
const THREADS_MAX: usize = (1 << 14) - 1;
/// In `Rendezvous::state`: one run, counted in the upper half.
const RUN: u64 = 1 << 32;

/// Value of `ThreadState::parked`.
const AWAKE: u32 = 0;
const PARKED: u32 = 1;

/// Number of polls of the state between two reads of the clock.
const POLLS_PER_CLOCK: u32 = 16;
/// Number of times that the caller spins for the last tasks of others before it yields its core.
const SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 2_000 };

/// Data shared by the threads of a run, valid while the run is open or a thread is inside it.
#[derive(Clone, Copy)]
struct RunJob {
    tasks: usize,
    function: Option<Task<'static>>,
}

/// State of one thread, on its own cache lines (adjacent ones are fetched in pairs).
#[cfg_attr(not(loom), repr(align(128)))]
struct ThreadState {
    /// Next task of this thread's range that no thread has taken.
    next: AtomicUsize,
    /// `PARKED` while the thread sleeps on it or is about to.
    parked: AtomicU32,
}

/// Rendezvous of the threads of a pool; see the module header.
pub(super) struct Rendezvous {
    /// Run number, threads that take part, `STOP`, `OPEN`, threads inside; see the constants.
    state: AtomicU64,
    spin_ns: AtomicU64,
    job: UnsafeCell<RunJob>,
    thread_states: Box<[ThreadState]>,
}

// SAFETY: `job` is written only by the caller of `run`, while the run is closed and no thread is
// inside; threads read it only after entering an open run. Everything else is atomic.
unsafe impl Sync for Rendezvous {}
// SAFETY: the function in `job` is `Sync`, so it may be called from any thread.
unsafe impl Send for Rendezvous {}

impl Rendezvous {
    /// Creates a rendezvous for `threads` threads, including the caller.
    pub(super) fn new(threads: usize) -> Rendezvous {
        assert!(threads <= THREADS_MAX, "a pool has at most {THREADS_MAX} threads");
        let thread_state =
            || ThreadState { next: AtomicUsize::new(0), parked: AtomicU32::new(AWAKE) };
        Rendezvous {
            state: AtomicU64::new(0),
            spin_ns: AtomicU64::new(0),
            job: UnsafeCell::new(RunJob { tasks: 0, function: None }),
            thread_states: (0..threads).map(|_| thread_state()).collect(),
        }
    }

    pub(super) fn set_spin(&self, spin: Duration) {
        let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
        self.spin_ns.store(spin_ns, Ordering::Relaxed);
    }

    pub(super) fn spins(&self) -> bool {
        self.spin_ns.load(Ordering::Relaxed) > 0
    }

    /// Runs `tasks` tasks on threads `0..threads`, of which the caller is 0. One caller at a time.
    pub(super) fn run(
        &self,
        threads: usize,
        tasks: usize,
        function: &(dyn Fn(usize, usize) + Sync),
    ) {
        debug_assert!(threads <= self.thread_states.len());
        // SAFETY: only the lifetime changes. No thread uses the reference after this function
        // returns: it waits below until every thread that entered has left, and a closed run takes
        // no new thread.
        let function: Task<'static> = unsafe { std::mem::transmute(function) };
        // SAFETY: the previous run is closed and empty, so no thread reads `job` now.
        self.job.with_mut(|job| unsafe { *job = RunJob { tasks, function: Some(function) } });
        for (thread, state) in self.thread_states[..threads].iter().enumerate() {
            state.next.store(share_start(tasks, threads, thread), Ordering::Relaxed);
        }
        let run = (self.state.load(Ordering::Relaxed) & !(RUN - 1)).wrapping_add(RUN);
        // SYNC POINT: job. No other thread changes the closed and empty state.
        self.state.store(run | (threads as u64) << THREADS_SHIFT | OPEN, Ordering::Release);
        self.wake(threads);
        self.work(threads, tasks, function, 0);
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0;
        // SYNC POINT: left.
        while self.state.load(Ordering::Acquire) & INSIDE_MASK != 0 {
            spins += 1;
            if spins < SPINS_MAX {
                spin_loop();
            } else {
                // The thread that is still inside may need this core.
                yield_now();
            }
        }
    }

    /// Ends every [`Rendezvous::serve`]; no run may be open.
    pub(super) fn stop(&self) {
        self.state.fetch_or(STOP, Ordering::Release);
        self.wake(self.thread_states.len());
    }

    /// Wakes sleeping threads among `1..threads`, after the state has changed.
    fn wake(&self, threads: usize) {
        // SYNC POINT: sleeper. The state changes before `parked` is read; the fence keeps that
        // order. Together with the fence in `park` one of the two sides sees the other.
        fence(Ordering::SeqCst);
        for state in &self.thread_states[1..threads] {
            if state.parked.load(Ordering::Relaxed) == PARKED
                && state.parked.swap(AWAKE, Ordering::AcqRel) == PARKED
            {
                futex::wake(&state.parked, 1);
            }
        }
    }

    /// Body of pool thread `thread`: takes part in every run that includes it, until
    /// [`Rendezvous::stop`].
    pub(super) fn serve(&self, thread: usize) {
        // The state that opened the last run this thread took part in, without the threads inside.
        let mut last = 0;
        while let Some(state) = self.await_run(thread, last) {
            // SYNC POINT: job. Fails if the state has changed meanwhile; the loop then retries.
            let entered = self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if entered.is_err() {
                continue;
            }
            last = state & !INSIDE_MASK;
            // SAFETY: this thread is inside an open run, so `job` is not written until it leaves.
            let job = self.job.with(|job| unsafe { *job });
            if let Some(function) = job.function {
                self.work(threads_of(state), job.tasks, function, thread);
            }
            // SYNC POINT: left.
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Takes tasks until none is left: first those of this thread's range, then those that the
    /// others have not started.
    fn work(&self, threads: usize, tasks: usize, function: Task<'_>, thread: usize) {
        for turn in 0..threads {
            let owner = (thread + turn) % threads;
            let next = &self.thread_states[owner].next;
            let end = share_start(tasks, threads, owner + 1);
            // The load before the addition avoids writing the cache line of a thread that is done.
            while next.load(Ordering::Relaxed) < end {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                function(task, thread);
            }
        }
    }

    /// Waits for a run after `last` that includes `thread` and returns the state that it observed;
    /// `None` when the pool ends.
    fn await_run(&self, thread: usize, last: u64) -> Option<u64> {
        let news = || {
            let state = self.state.load(Ordering::Relaxed);
            let fresh = state & OPEN != 0 && state & !INSIDE_MASK != last;
            (state & STOP != 0 || (fresh && thread < threads_of(state))).then_some(state)
        };
        loop {
            if let Some(state) = self.spin_for(news) {
                return (state & STOP == 0).then_some(state);
            }
            self.park(thread, news);
        }
    }

    /// Polls `news` for as long as spinning is allowed, at least once.
    fn spin_for(&self, news: impl Fn() -> Option<u64>) -> Option<u64> {
        let spin_ns = self.spin_ns.load(Ordering::Relaxed);
        if spin_ns == 0 {
            return news();
        }
        let start = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if let Some(state) = news() {
                    return Some(state);
                }
                spin_loop();
            }
            if start.elapsed().as_nanos() >= u128::from(spin_ns) {
                return None;
            }
        }
    }

    /// Sleeps until the caller wakes this thread, unless `news` returns a state.
    fn park(&self, thread: usize, news: impl Fn() -> Option<u64>) {
        let parked = &self.thread_states[thread].parked;
        // Exchanges instead of stores: each follows the caller's exchange before it.
        parked.swap(PARKED, Ordering::AcqRel);
        // SYNC POINT: sleeper. `parked` changes before the state is read again; the fence keeps
        // that order.
        fence(Ordering::SeqCst);
        if news().is_some() {
            parked.swap(AWAKE, Ordering::AcqRel);
            return;
        }
        while parked.load(Ordering::Relaxed) == PARKED {
            futex::wait(parked, PARKED, None);
        }
    }
}

/// Returns the number of threads that take part in the run of `state`.
fn threads_of(state: u64) -> usize {
    (state >> THREADS_SHIFT) as usize & THREADS_MAX
}

/// Returns the first task of the range of `thread`, for any `thread` up to and including `threads`:
/// the sizes of ranges differ by at most one task.
fn share_start(tasks: usize, threads: usize, thread: usize) -> usize {
    let (each, more) = (tasks / threads, tasks % threads);
    each * thread + thread.min(more)
}

#[cfg(not(loom))]
use std::thread::yield_now;

#[cfg(loom)]
use loom::thread::yield_now;

/// A task function: `(task, thread)`.
pub(super) type Task<'a> = &'a (dyn Fn(usize, usize) + Sync + 'a);
