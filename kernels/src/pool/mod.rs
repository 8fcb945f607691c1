//! A pool of persistent threads for one worker process: one op at a time is cut into tasks that are
//! distributed over the threads.
//!
//! - The caller is thread 0 and works too; a pool of one thread spawns none.
//! - Every thread first takes its own contiguous range of the tasks, so that from step to step the
//!   same thread reads the same weights and no two threads fetch the same pages; a thread that is
//!   done helps the others.
//! - A run allocates nothing and takes no lock. A thread that wakes late finds its tasks taken and
//!   the run closed, so a short op never pays for a slow wake-up.
//! - Between runs the threads sleep on a futex each, after spinning for as long as
//!   [`ThreadPool::set_spin`] allows: not at all by default, because spinning threads take cores
//!   from the threads they wait for. At the end of a run the caller spins while others finish
//!   their last tasks.
//! - Threads may be pinned to CPUs; then the caller is pinned too, from its first run.
//! - A panic in a task aborts the process: a worker that lost a thread in the middle of an op must
//!   not signal its timeline.

mod rendezvous;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use shm::sync::{AtomicUsize, Ordering};

use rendezvous::Rendezvous;

/// Options of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Number of threads that work on a run, including the caller; at least 1.
    pub threads: usize,
    /// CPU of each thread in the system's numbering, the caller's first; empty if no thread is
    /// pinned. More CPUs than threads are ignored.
    pub cpus: Vec<usize>,
    /// Spin duration; see [`ThreadPool::set_spin`].
    pub spin: Duration,
}

impl PoolOptions {
    /// Returns the options of a pool of `threads` threads that are not pinned and do not spin
    /// between runs.
    pub fn unpinned(threads: usize) -> PoolOptions {
        PoolOptions { threads, cpus: Vec::new(), spin: Duration::ZERO }
    }
}

/// A pool of threads; see the module header.
pub struct ThreadPool {
    shared: Arc<Rendezvous>,
    workers: Vec<JoinHandle<()>>,
    /// CPU of the caller, until it has been pinned.
    caller_cpu: Cell<Option<usize>>,
    /// Guards against a task that calls `run` again; also makes the pool `!Sync`: one run at a
    /// time.
    running: Cell<bool>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Aborts when dropped by unwinding.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl ThreadPool {
    /// Creates a pool of `threads` threads that are not pinned and do not spin between runs.
    ///
    /// # Errors
    /// The errors of [`ThreadPool::with_options`].
    pub fn new(threads: usize) -> std::io::Result<ThreadPool> {
        ThreadPool::with_options(&PoolOptions::unpinned(threads))
    }

    /// Starts `options.threads - 1` threads.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or to pin one to its CPU (offline, or outside the
    /// CPUs that this process may use).
    ///
    /// # Panics
    /// If there are no threads, or CPUs for some of the threads only.
    pub fn with_options(options: &PoolOptions) -> std::io::Result<ThreadPool> {
        let PoolOptions { threads, ref cpus, spin } = *options;
        assert!(threads >= 1, "a pool has at least the calling thread");
        assert!(cpus.is_empty() || cpus.len() >= threads, "every thread has a CPU, or none has");
        let mut pool = ThreadPool {
            shared: Arc::new(Rendezvous::new(threads)),
            workers: Vec::with_capacity(threads - 1),
            caller_cpu: Cell::new(cpus.first().copied()),
            running: Cell::new(false),
        };
        pool.set_spin(spin);
        let started = Arc::new(AtomicUsize::new(0));
        let refused = Arc::new(std::sync::Mutex::new(None));
        for thread in 1..threads {
            let (shared, started) = (Arc::clone(&pool.shared), Arc::clone(&started));
            let (refused, cpu) = (Arc::clone(&refused), cpus.get(thread).copied());
            let body = move || {
                if let Some(Err(error)) = cpu.map(pin_this_thread) {
                    refused
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .replace(error);
                }
                drop(refused);
                started.fetch_add(1, Ordering::Release);
                drop(started);
                let guard = AbortOnPanic;
                shared.serve(thread);
                std::mem::forget(guard);
            };
            let name = format!("kernels-{thread}");
            pool.workers.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        // A starting thread allocates; afterwards nothing does, so its start is awaited here.
        while started.load(Ordering::Acquire) < threads - 1 {
            std::thread::yield_now();
        }
        let error = refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        error.map_or(Ok(pool), Err)
    }

    /// Returns the number of threads that work on a run, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Sets the time for which an idle thread polls for the next run before it sleeps. A sleeping
    /// thread joins microseconds later, and waking it costs the caller a system call; a spinning
    /// one keeps its core from others. Allow it only if all threads that can be busy have cores of
    /// their own.
    pub fn set_spin(&self, spin: Duration) {
        self.shared.set_spin(spin);
    }

    /// Returns true if idle threads poll for the next run at all.
    pub fn spins(&self) -> bool {
        self.shared.spins()
    }

    /// Calls `function(task, thread)` once for every task in `0..tasks` and returns when all have
    /// returned. `thread` is below [`ThreadPool::threads`], and no two calls with the same `thread`
    /// overlap.
    pub fn run(&self, tasks: usize, function: &(dyn Fn(usize, usize) + Sync)) {
        self.run_on(usize::MAX, tasks, function);
    }

    /// Runs the tasks like [`ThreadPool::run`], on the first `threads_max` threads only (at least
    /// the caller).
    pub fn run_on(
        &self,
        threads_max: usize,
        tasks: usize,
        function: &(dyn Fn(usize, usize) + Sync),
    ) {
        assert!(!self.running.replace(true), "a task must not start a run of its own pool");
        if let Some(cpu) = self.caller_cpu.take() {
            // The pool's own threads were pinned when they started; failure to pin the caller is no
            // reason to end the run, it only runs where the system puts it.
            let _ = pin_this_thread(cpu);
        }
        let guard = AbortOnPanic;
        let threads = threads_max.min(self.threads()).min(tasks);
        if threads <= 1 {
            for task in 0..tasks {
                function(task, 0);
            }
        } else {
            self.shared.run(threads, tasks, function);
        }
        std::mem::forget(guard);
        self.running.set(false);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // A worker cannot panic: tasks abort, and the loop that calls them contains nothing
            // that panics.
            let _ = worker.join();
        }
    }
}

/// Pins the calling thread to `cpu`.
fn pin_this_thread(cpu: usize) -> std::io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
