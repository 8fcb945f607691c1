//! Watchdog of reads: a silent drive answers no call, so another thread of the worker has to detect
//! that a read makes no progress.

use std::time::Duration;

use shm::now_ns;
use shm::sync::{AtomicU64, Ordering};

/// Progress of a lane's read, published by the lane.
#[derive(Debug, Default)]
pub struct ReadWatchdog {
    /// Time of the last progress of the read in progress, on the clock of traces; 0 if there is
    /// none.
    last_progress_ns: AtomicU64,
}

impl ReadWatchdog {
    /// Records that a read begins or makes progress.
    pub fn begin(&self) {
        self.last_progress_ns.store(now_ns().max(1), Ordering::Relaxed);
    }

    /// Records that the read has ended.
    pub fn end(&self) {
        self.last_progress_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the time since the read in progress last made progress; 0 if there is none.
    pub fn silence(&self) -> Duration {
        match self.last_progress_ns.load(Ordering::Relaxed) {
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
        let watchdog = ReadWatchdog::default();
        assert_eq!(watchdog.silence(), Duration::ZERO);
        watchdog.begin();
        std::thread::sleep(Duration::from_millis(2));
        assert!(watchdog.silence() >= Duration::from_millis(2));
        watchdog.end();
        assert_eq!(watchdog.silence(), Duration::ZERO);
    }
}
