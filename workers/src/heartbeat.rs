//! Heartbeat of a worker: a thread that ticks whenever its process is scheduled, so that the
//! coordinator notices a stopped worker, and that publishes the allocation count.

use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use shm::Control;
use shm::sync::{AtomicU32, Ordering};

use crate::alloc_counter;
use crate::error::WorkerError;

/// Interval between ticks.
const PERIOD: Duration = Duration::from_millis(100);

/// Thread that ticks until this value is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the heartbeat of a worker.
    pub(crate) fn start(control: Control, worker: usize) -> Result<Heartbeat, WorkerError> {
        let stop = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&stop);
        // A starting thread allocates a little, which must not happen after ready.
        let started = Arc::new(Barrier::new(2));
        let up = Arc::clone(&started);
        let thread = std::thread::Builder::new()
            .name("heartbeat".to_owned())
            .spawn(move || {
                up.wait();
                while seen.load(Ordering::Relaxed) == 0 {
                    publish(&control, worker);
                    std::thread::park_timeout(PERIOD);
                }
            })
            .map_err(WorkerError::Thread)?;
        started.wait();
        Ok(Heartbeat { stop, thread: Some(thread) })
    }
}

/// Publishes one tick, with the current allocation count.
pub(crate) fn publish(control: &Control, worker: usize) {
    let words = control.worker(worker);
    words.allocations.store(alloc_counter::count(), Ordering::Relaxed);
    words.beat();
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(1, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
