//! How long a read has not got on: a drive that fell silent answers no call, so another thread of
//! the worker has to notice.

use std::time::Duration;

use shm::now_ns;
use shm::sync::{AtomicU64, Ordering};

/// What a lane that reads says of itself.
#[derive(Debug, Default)]
pub struct Pulse {
    /// When the read in progress last got on, on the clock of traces; 0: there is none.
    since_ns: AtomicU64,
}

impl Pulse {
    /// A read begins, or gets on.
    pub fn begin(&self) {
        self.since_ns.store(now_ns().max(1), Ordering::Relaxed);
    }

    /// The read has ended.
    pub fn end(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }

    /// For how long the read in progress has not got on.
    pub fn silence(&self) -> Duration {
        match self.since_ns.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_ns => Duration::from_nanos(now_ns().saturating_sub(since_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_read_in_progress_is_silent() {
        let pulse = Pulse::default();
        assert_eq!(pulse.silence(), Duration::ZERO);
        pulse.begin();
        std::thread::sleep(Duration::from_millis(2));
        assert!(pulse.silence() >= Duration::from_millis(2));
        pulse.end();
        assert_eq!(pulse.silence(), Duration::ZERO);
    }
}
