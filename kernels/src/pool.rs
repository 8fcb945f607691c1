//! A pool of persistent threads for one worker process: one op at a time is cut into tasks that the
//! threads take from a counter.
//!
//! - The caller is thread 0 and works too; a pool of one thread spawns none.
//! - A run allocates nothing and takes no lock. A thread that wakes late finds the run closed and
//!   sleeps again, so a short op never pays for a slow wake-up.
//! - Between runs the threads sleep on a futex. The only spin is at the end of a run, while the last
//!   tasks of other threads finish.
//! - A panic in a task aborts the process: a worker that lost a thread in the middle of an op must
//!   not signal its timeline.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::JoinHandle;

use shm::futex;
use shm::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, spin_loop};

/// A task function: `(task, thread)`.
type Task<'a> = &'a (dyn Fn(usize, usize) + Sync + 'a);

/// What the threads of a run share, valid while the run is open or a thread is inside it.
#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    function: Option<Task<'static>>,
}

/// In `Shared::state`: the run takes new threads.
const OPEN: u64 = 1 << 31;
/// In `Shared::state`: number of pool threads inside the run.
const INSIDE: u64 = OPEN - 1;
/// In `Shared::state`: one run, counted in the upper half.
const RUN: u64 = 1 << 32;

struct Shared {
    /// Run number, `OPEN`, threads inside; see the constants.
    state: AtomicU64,
    /// Next task nobody has taken.
    next: AtomicUsize,
    /// Changes when a run opens or the pool stops; idle threads sleep on it.
    wake: AtomicU32,
    /// Threads that sleep or are about to: without any, opening a run needs no system call.
    sleepers: AtomicU32,
    /// Threads that have reached their loop.
    started: AtomicUsize,
    stop: AtomicBool,
    job: UnsafeCell<Job>,
}

// SAFETY: `job` is written only by the caller of `run`, while the run is closed and no thread is
// inside; threads read it only after entering an open run. Everything else is atomic.
unsafe impl Sync for Shared {}
// SAFETY: the function pointer in `job` is `Sync`, so it may be called from any thread.
unsafe impl Send for Shared {}

impl Shared {
    /// Wakes up to `count` sleeping threads, after a change they should see.
    fn wake_threads(&self, count: usize) {
        self.wake.fetch_add(1, Ordering::SeqCst);
        // A thread that is not counted yet will find `wake` changed when it tries to sleep: it
        // counts itself first, and both sides are sequentially consistent.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.wake, u32::try_from(count).unwrap_or(futex::EVERYONE));
        }
    }

    /// Sleeps unless `wake` has changed since it was `seen`.
    fn sleep(&self, seen: u32) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        futex::wait(&self.wake, seen, None);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// See the module header.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Guards against a task that calls `run` again; also makes the pool `!Sync`: one run at a time.
    running: Cell<bool>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Aborts when dropped by unwinding.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller included; spawns `threads - 1`.
    ///
    /// # Errors
    /// The system refused to start a thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        assert!(threads >= 1, "a pool has at least the calling thread");
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            wake: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            started: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(Job { tasks: 0, function: None }),
        });
        let mut pool =
            Pool { shared: Arc::clone(&shared), workers: Vec::new(), running: Cell::new(false) };
        for thread in 1..threads {
            let shared = Arc::clone(&shared);
            pool.workers.push(
                std::thread::Builder::new()
                    .name(format!("kernels-{thread}"))
                    .spawn(move || worker(&shared, thread))?,
            );
        }
        // A starting thread allocates; afterwards nothing does, so its start belongs here.
        while shared.started.load(Ordering::Relaxed) < threads - 1 {
            std::thread::yield_now();
        }
        Ok(pool)
    }

    /// Threads that work on a run, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `function(task, thread)` once for every task in `0..tasks` and returns when all have
    /// returned. `thread` is below [`Pool::threads`], and no two calls with the same `thread` overlap.
    pub fn run(&self, tasks: usize, function: &(dyn Fn(usize, usize) + Sync)) {
        assert!(!self.running.replace(true), "a task must not start a run of its own pool");
        let guard = AbortOnPanic;
        if self.workers.is_empty() || tasks <= 1 {
            for task in 0..tasks {
                function(task, 0);
            }
        } else {
            self.run_shared(tasks, function);
        }
        std::mem::forget(guard);
        self.running.set(false);
    }

    fn run_shared(&self, tasks: usize, function: &(dyn Fn(usize, usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. No thread uses the reference after this function
        // returns: it waits below until every thread that entered has left, and a closed run takes
        // no new thread.
        let function: Task<'static> = unsafe { std::mem::transmute(function) };
        // SAFETY: the last run is closed and empty, so no thread reads `job` now.
        shared.job.with_mut(|job| unsafe { *job = Job { tasks, function: Some(function) } });
        shared.next.store(0, Ordering::Relaxed);
        let run = (shared.state.load(Ordering::Relaxed) & !(OPEN | INSIDE)).wrapping_add(RUN);
        // SYNC POINT: `job` and `next` are visible to a thread that enters.
        shared.state.store(run | OPEN, Ordering::Release);
        shared.wake_threads(tasks - 1);
        work(shared, tasks, function, 0);
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0u32;
        // SYNC POINT: what the tasks of other threads wrote is visible to the caller.
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < 10_000 {
                spin_loop();
            } else {
                // The thread that is still inside may need this core.
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake_threads(usize::MAX);
        for worker in self.workers.drain(..) {
            // A worker cannot panic: tasks abort, and the loop around them has nothing to panic at.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, tasks: usize, function: Task<'_>, thread: usize) {
    loop {
        let task = shared.next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        function(task, thread);
    }
}

fn worker(shared: &Shared, thread: usize) {
    let guard = AbortOnPanic;
    let mut last_run = 0;
    shared.started.fetch_add(1, Ordering::Relaxed);
    loop {
        // SYNC POINT: what happened before `wake` changed (a run opened, stop) is visible below.
        let seen = shared.wake.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::Acquire) {
            break;
        }
        let state = shared.state.load(Ordering::Relaxed);
        let run = state & !(OPEN | INSIDE);
        if state & OPEN == 0 || run == last_run {
            shared.sleep(seen);
            continue;
        }
        // SYNC POINT: pairs with the store that opened the run.
        let entered = shared.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if entered.is_err() {
            continue;
        }
        // SAFETY: this thread is inside an open run, so `job` is not written until it leaves.
        let job = shared.job.with(|job| unsafe { *job });
        if let Some(function) = job.function {
            work(shared, job.tasks, function, thread);
        }
        // SYNC POINT: pairs with the caller's wait for the last thread.
        shared.state.fetch_sub(1, Ordering::Release);
        last_run = run;
    }
    std::mem::forget(guard);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once_in_thousands_of_short_runs() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            let counts: Vec<AtomicUsize> = (0..67).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..2_000usize {
                let tasks = round % 68;
                pool.run(tasks, &|task, thread| {
                    assert!(thread < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                for (task, count) in counts.iter().enumerate() {
                    let expected = usize::from(task < tasks);
                    assert_eq!(count.swap(0, Ordering::Relaxed), expected, "{threads} {task}");
                }
            }
        }
    }

    #[test]
    fn no_two_tasks_share_a_thread_index_at_a_time_and_plain_writes_are_visible() {
        let pool = Pool::new(4).unwrap();
        let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        let mut slots = vec![0u64; 64];
        for round in 1..500u64 {
            let base = slots.as_mut_ptr() as usize;
            pool.run(64, &|task, thread| {
                assert!(!busy[thread].swap(true, Ordering::Relaxed));
                // SAFETY: each task writes its own slot of a vector that outlives the run.
                unsafe { *(base as *mut u64).add(task) += round };
                busy[thread].store(false, Ordering::Relaxed);
            });
            assert!(slots.iter().all(|slot| *slot == round * (round + 1) / 2));
        }
    }
}
