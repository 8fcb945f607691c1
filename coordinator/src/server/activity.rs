//! What connections are doing, by which one is chosen to be closed where there are too many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shm::sync::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// A request that is sent for less time than this is not given up for another connection.
const SENDING_TIME: Duration = Duration::from_secs(5);

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Phase {
    /// No request has come, or its head is not complete.
    Idle = 0,
    /// The body of a request is read.
    Receiving = 1,
    /// A request is worked on or answered.
    Answering = 2,
}

/// What one connection is doing, and since when.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    /// Milliseconds since the connection was opened, and the phase in the lowest two bits.
    state: AtomicU64,
    /// The response to the request that is worked on has begun.
    has_head: AtomicBool,
    /// The client of that request speaks HTTP/1.0.
    is_old: AtomicBool,
    /// Notified when the connection is to close.
    evicted: Notify,
    /// Notified when the client may be gone.
    doubted: Notify,
}

impl Activity {
    fn new() -> Activity {
        Activity {
            began: Instant::now(),
            state: AtomicU64::new(0),
            has_head: AtomicBool::new(false),
            is_old: AtomicBool::new(false),
            evicted: Notify::new(),
            doubted: Notify::new(),
        }
    }

    /// Notes that another phase begins.
    pub fn set(&self, phase: Phase) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        // Relaxed: it orders nothing else.
        self.state.store(since << 2 | phase as u64, Ordering::Relaxed);
    }

    /// The phase, and when it began.
    pub fn phase(&self) -> (Phase, Instant) {
        let state = self.state.load(Ordering::Relaxed);
        let phase = match state & 3 {
            0 => Phase::Idle,
            1 => Phase::Receiving,
            _ => Phase::Answering,
        };
        (phase, self.began + Duration::from_millis(state >> 2))
    }

    /// Notes that a request begins, the phase being that of its method.
    pub fn begin(&self, phase: Phase, is_old: bool) {
        self.has_head.store(false, Ordering::Relaxed);
        self.is_old.store(is_old, Ordering::Relaxed);
        self.set(phase);
    }

    /// Notes that the response begins.
    pub fn set_has_head(&self) {
        self.has_head.store(true, Ordering::Relaxed);
    }

    /// Returns true if the response has begun.
    pub fn has_head(&self) -> bool {
        self.has_head.load(Ordering::Relaxed)
    }

    /// Returns true if the client speaks HTTP/1.0, which has no interim responses.
    pub fn is_old(&self) -> bool {
        self.is_old.load(Ordering::Relaxed)
    }

    /// Asks the answer to write something, by which a client shows whether it is there.
    pub fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Returns when the client may be gone.
    pub async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// Returns when the connection is to close in favour of another one.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Activities(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    open: HashMap<u64, Arc<Activity>>,
}

/// A connection among all of them, until it is dropped.
#[derive(Debug)]
pub struct OpenConnection {
    all: Arc<Activities>,
    number: u64,
    pub activity: Arc<Activity>,
}

impl Activities {
    /// Adds a connection.
    pub fn open(self: &Arc<Activities>) -> OpenConnection {
        let activity = Arc::new(Activity::new());
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.open.insert(number, Arc::clone(&activity));
        drop(inner);
        OpenConnection { all: Arc::clone(self), number, activity }
    }

    /// Asks the connection to close that has been idle for longest or, where none is idle, the one
    /// whose request has been coming for longest. Returns false if there is neither.
    pub fn evict(&self) -> bool {
        let mut inner = self.inner();
        let candidates = inner.open.iter().map(|(number, activity)| (activity.phase(), *number));
        let candidates = candidates.filter(|((phase, since), _)| match phase {
            Phase::Idle => true,
            Phase::Receiving => since.elapsed() > SENDING_TIME,
            Phase::Answering => false,
        });
        let Some((_, number)) = candidates.min() else { return false };
        if let Some(activity) = inner.open.remove(&number) {
            activity.evicted.notify_one();
        }
        true
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.inner().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_goes_first_and_answers_never() {
        let all = Arc::new(Activities::default());
        let open: Vec<OpenConnection> = (0..3).map(|_| all.open()).collect();
        std::thread::sleep(Duration::from_millis(5));
        open[0].activity.set(Phase::Idle);
        open[2].activity.set(Phase::Answering);
        let is_there = |number: u64| all.inner().open.contains_key(&number);
        assert!(all.evict() && !is_there(1), "idle since it was opened");
        assert!(all.evict() && !is_there(0));
        assert!(!all.evict() && is_there(2));
        open[2].activity.set(Phase::Receiving);
        assert!(!all.evict(), "it has only begun");
        drop(open);
        assert!(all.inner().open.is_empty());
    }
}
