//! The only access to futexes: sleeping until a word in memory changes, and waking the threads that
//! sleep on it.
//!
//! Used by [`crate::timeline`] and by thread pools. The futexes are shared, not private: the kernel
//! finds the sleeper by the page behind the word, so processes that map the same segment at
//! different addresses meet. A wait may return without cause, so callers loop over their own
//! condition.
//!
//! Under `cfg(loom)` a model takes the kernel's place: a condition variable per word address, and
//! the comparison is made under the lock that wakers take, which is what the kernel's bucket lock
//! does.

#[cfg(not(loom))]
use std::time::Duration;

#[cfg(not(loom))]
use crate::sync::AtomicU32;

/// Reason why [`wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The word no longer held the expected value, so the caller did not sleep.
    Changed,
    /// The timeout has passed.
    TimedOut,
    /// [`wake`] was called, or a signal arrived; the caller checks its condition again.
    Woken,
}

/// Value of [`wake`]'s `count` that wakes every sleeper.
pub const EVERYONE: u32 = i32::MAX as u32;

/// Sleeps while `word` holds `expected`, at most for `timeout` (without limit if `None`).
///
/// # Panics
/// Panics if the kernel refuses the call for a reason that only a bug can cause (an unmapped or
/// unaligned word).
#[cfg(not(loom))]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags, Timespec};

    let timeout = timeout.map(|limit| Timespec {
        // About 292 years at most, which is as good as no limit.
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX / 2),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::INTR) => Wait::Woken,
        Err(Errno::AGAIN) => Wait::Changed,
        Err(Errno::TIMEDOUT) => Wait::TimedOut,
        Err(errno) => panic!("futex wait on a mapped, aligned word failed: {errno}"),
    }
}

/// Wakes up to `count` sleepers of `word`, in this and in other processes.
///
/// # Panics
/// Panics if the kernel refuses the call, which only a bug can cause.
#[cfg(not(loom))]
pub fn wake(word: &AtomicU32, count: u32) {
    use rustix::thread::futex::{self, Flags};

    // The kernel interprets the count as signed.
    let count = count.min(EVERYONE);
    if let Err(errno) = futex::wake(word, Flags::empty(), count) {
        panic!("futex wake on a mapped, aligned word failed: {errno}");
    }
}

#[cfg(loom)]
pub use model::{wait, wake};

#[cfg(loom)]
mod model {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex};

    use super::{EVERYONE, Wait};
    use crate::sync::{AtomicU32, Ordering};

    loom::lazy_static! {
        /// The kernel's table of sleepers; loom creates a fresh one for every execution it
        /// explores.
        static ref SLEEPERS: Mutex<BTreeMap<usize, Arc<Condvar>>> = Mutex::new(BTreeMap::new());
    }

    /// Models the real `wait`. Time stands still: a timeout of zero expires at once, any other
    /// never, so that a lost wake-up shows as a deadlock.
    pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
        let mut sleepers = SLEEPERS.lock().unwrap();
        if word.load(Ordering::Relaxed) != expected {
            return Wait::Changed;
        }
        if timeout == Some(Duration::ZERO) {
            return Wait::TimedOut;
        }
        let here = Arc::clone(
            sleepers
                .entry(std::ptr::from_ref(word).addr())
                .or_insert_with(|| Arc::new(Condvar::new())),
        );
        drop(here.wait(sleepers).unwrap());
        Wait::Woken
    }

    /// Models the real `wake`.
    pub fn wake(word: &AtomicU32, count: u32) {
        let sleepers = SLEEPERS.lock().unwrap();
        let Some(here) = sleepers.get(&std::ptr::from_ref(word).addr()) else {
            return;
        };
        if count >= EVERYONE {
            here.notify_all();
        } else {
            (0..count).for_each(|_| here.notify_one());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    #[test]
    fn a_changed_word_is_not_slept_on() {
        let word = AtomicU32::new(7);
        assert_eq!(wait(&word, 6, None), Wait::Changed);
    }

    #[test]
    fn a_wait_that_nobody_answers_times_out() {
        let word = AtomicU32::new(7);
        assert_eq!(wait(&word, 7, Some(Duration::from_millis(1))), Wait::TimedOut);
        assert_eq!(wait(&word, 7, Some(Duration::ZERO)), Wait::TimedOut);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    assert_ne!(wait(&word, 0, Some(Duration::from_secs(60))), Wait::TimedOut);
                }
            });
            word.store(1, Ordering::Release);
            wake(&word, EVERYONE);
            sleeper.join().unwrap();
        });
    }
}
