//! Phases of the open connections, which determine the connection to close when there are too many
//! of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shm::sync::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

/// Minimum time for which a request is received before its connection may be closed in favour of
/// another one.
const MIN_RECEIVE_TIME: Duration = Duration::from_secs(5);

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum ConnectionPhase {
    /// No request was received yet, or its head is incomplete.
    Idle = 0,
    /// The body of a request is being read.
    Receiving = 1,
    /// A request is being processed or answered.
    Answering = 2,
}

/// Current phase of a connection and the time at which it began.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    /// Time at which the current phase began, in milliseconds since the connection was opened,
    /// shifted left by two bits; the phase is in the lowest two bits.
    state: AtomicU64,
    /// True once the response to the current request has begun.
    has_response_begun: AtomicBool,
    /// True if the client of the current request speaks HTTP/1.0.
    is_http_1_0: AtomicBool,
    /// Notified when the connection must close.
    evicted: Notify,
    /// Notified when the client may have disconnected.
    liveness_check: Notify,
}

impl Activity {
    fn new() -> Activity {
        Activity {
            began: Instant::now(),
            state: AtomicU64::new(0),
            has_response_begun: AtomicBool::new(false),
            is_http_1_0: AtomicBool::new(false),
            evicted: Notify::new(),
            liveness_check: Notify::new(),
        }
    }

    /// Begins another phase.
    pub fn set_phase(&self, phase: ConnectionPhase) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        // Relaxed: no other memory access depends on the order.
        self.state.store(since << 2 | phase as u64, Ordering::Relaxed);
    }

    /// Returns the current phase and the time at which it began.
    pub fn phase(&self) -> (ConnectionPhase, Instant) {
        let state = self.state.load(Ordering::Relaxed);
        let phase = match state & 3 {
            0 => ConnectionPhase::Idle,
            1 => ConnectionPhase::Receiving,
            _ => ConnectionPhase::Answering,
        };
        (phase, self.began + Duration::from_millis(state >> 2))
    }

    /// Begins a request in the given phase, which depends on its method.
    pub fn begin_request(&self, phase: ConnectionPhase, is_http_1_0: bool) {
        self.has_response_begun.store(false, Ordering::Relaxed);
        self.is_http_1_0.store(is_http_1_0, Ordering::Relaxed);
        self.set_phase(phase);
    }

    /// Records that the response has begun.
    pub fn set_response_begun(&self) {
        self.has_response_begun.store(true, Ordering::Relaxed);
    }

    /// Returns true if the response has begun.
    pub fn has_response_begun(&self) -> bool {
        self.has_response_begun.load(Ordering::Relaxed)
    }

    /// Returns true if the client speaks HTTP/1.0, which has no interim responses.
    pub fn is_http_1_0(&self) -> bool {
        self.is_http_1_0.load(Ordering::Relaxed)
    }

    /// Makes the response write something, which shows whether the client is still connected.
    pub fn request_liveness_check(&self) {
        self.liveness_check.notify_one();
    }

    /// Waits until the client may have disconnected.
    pub async fn liveness_check_requested(&self) {
        self.liveness_check.notified().await;
    }

    /// Waits until the connection must close in favour of another one.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub struct ConnectionRegistry(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    open: HashMap<u64, Arc<Activity>>,
}

/// Registration of an open connection, which is removed when this is dropped.
#[derive(Debug)]
pub struct OpenConnection {
    registry: Arc<ConnectionRegistry>,
    number: u64,
    pub activity: Arc<Activity>,
}

impl ConnectionRegistry {
    /// Registers a connection.
    pub fn open(self: &Arc<ConnectionRegistry>) -> OpenConnection {
        let activity = Arc::new(Activity::new());
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.open.insert(number, Arc::clone(&activity));
        drop(inner);
        OpenConnection { registry: Arc::clone(self), number, activity }
    }

    /// Closes the connection that has been idle for longest or, if none is idle, the one that has
    /// been receiving a request for longest, unless that has begun only recently. Returns false if
    /// there is no such connection.
    pub fn evict_idle(&self) -> bool {
        let mut inner = self.inner();
        let candidates = inner.open.iter().map(|(number, activity)| (activity.phase(), *number));
        let candidates = candidates.filter(|((phase, since), _)| match phase {
            ConnectionPhase::Idle => true,
            ConnectionPhase::Receiving => since.elapsed() > MIN_RECEIVE_TIME,
            ConnectionPhase::Answering => false,
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
        self.registry.inner().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_goes_first_and_answers_never() {
        let all = Arc::new(ConnectionRegistry::default());
        let open: Vec<OpenConnection> = (0..3).map(|_| all.open()).collect();
        std::thread::sleep(Duration::from_millis(5));
        open[0].activity.set_phase(ConnectionPhase::Idle);
        open[2].activity.set_phase(ConnectionPhase::Answering);
        let is_there = |number: u64| all.inner().open.contains_key(&number);
        assert!(all.evict_idle() && !is_there(1), "idle since it was opened");
        assert!(all.evict_idle() && !is_there(0));
        assert!(!all.evict_idle() && is_there(2));
        open[2].activity.set_phase(ConnectionPhase::Receiving);
        assert!(!all.evict_idle(), "it has only begun");
        drop(open);
        assert!(all.inner().open.is_empty());
    }
}
