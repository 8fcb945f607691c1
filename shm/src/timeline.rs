//! Timelines: counters in shared memory that only grow and that lanes wait on; and the poison that
//! releases every wait.
//!
//! Each lane owns one timeline and adds 1 per `Signal`; any lane in any process waits for "at least
//! target". Values wrap, so they are compared by signed difference and no two that are compared may
//! be 2^31 apart. A waiter sleeps on the value word in the kernel; the waiter count next to it
//! spares the owner the system call when no thread sleeps (a waiter that was killed never
//! decrements the count, which costs unnecessary wakes and nothing else).
//!
//! When a worker dies or gives up, the process that notices it poisons the run. Two orderings carry
//! everything here, each named at both sides: `SYNC POINT: payload` (what the owner wrote before
//! its signal is visible after the wait) and `SYNC POINT: sleeper` (a sleeper is seen by the
//! signal, or the sleeper sees the signal).

use std::time::{Duration, Instant};

use crate::futex;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// Number of checks of the word before sleeping: a wake costs the sleeper microseconds, but a
/// machine with two cores has none to spare for spinning.
const SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 100 };

/// Distance that poison moves a timeline. Far beyond what a step signals, so it satisfies the
/// targets lanes wait for; odd and small enough that the maximum number of setters can neither wrap
/// round to the old value nor pass 2^31.
const POISON_JUMP: u32 = (1 << 24) + 1;

/// Process that poisoned a run, and the reason; the caller defines the meaning of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoisonCause {
    /// Process that failed (its worker index, or one past the workers for the coordinator). Below
    /// 2^31.
    pub who: u32,
    /// Reason, a number that the coordinator turns into a message.
    pub code: u32,
}

/// Reason why a wait ended without reaching its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The run was poisoned.
    #[error("The run was stopped by process {} with code {}.", .0.who, .0.code)]
    Poisoned(PoisonCause),
    /// The target was not reached in time.
    #[error("A wait timed out: the timeline is at {value}, and {target} was expected.")]
    TimedOut {
        /// Awaited value.
        target: u32,
        /// Value of the timeline when the time was up.
        value: u32,
    },
}

/// A counter in shared memory. Zero bytes are a fresh one at 0.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Timeline {
    value: AtomicU32,
    waiters: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Timeline>() == 64 && align_of::<Timeline>() == 64);

/// Returns true if a timeline at `value` has reached `target`, across a wrap.
#[inline]
pub fn reached(value: u32, target: u32) -> bool {
    value.wrapping_sub(target).cast_signed() >= 0
}

impl Timeline {
    /// Creates a timeline outside shared memory, at `value`. For tests and for threads of one
    /// process.
    pub fn new(value: u32) -> Timeline {
        Timeline { value: AtomicU32::new(value), waiters: AtomicU32::new(0) }
    }

    /// Adds 1 and wakes all waiters. Everything written before is visible to those that the new
    /// value releases.
    pub fn signal(&self) {
        self.advance(1);
    }

    /// Returns the current value; everything that was written before it was reached is visible.
    #[inline]
    pub fn value(&self) -> u32 {
        // SYNC POINT: payload, acquired here (see `advance`).
        self.value.load(Ordering::Acquire)
    }

    /// Blocks until the timeline has reached `target`, the run is poisoned, or `timeout` has
    /// passed. Poison is reported even if the value was reached.
    pub fn wait_until(
        &self,
        target: u32,
        poison: &Poison,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        for _ in 0..SPINS_MAX {
            if self.settled(target, poison)? {
                return Ok(());
            }
            spin_loop();
        }
        // SYNC POINT: sleeper. The count goes up before the value is looked at again; the fence
        // keeps that order.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let outcome = self.sleep_until(target, poison, timeout);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    fn sleep_until(
        &self,
        target: u32,
        poison: &Poison,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        // A deadline beyond the range of the clock means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let value = self.value();
            if let Some(cause) = poison.cause() {
                return Err(WaitError::Poisoned(cause));
            }
            if reached(value, target) {
                return Ok(());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut { target, value });
            }
            // The reason for returning does not matter: the loop checks value, poison and clock.
            let _ = futex::wait(&self.value, value, left);
        }
    }

    /// Returns true if `target` is reached and the run is not poisoned.
    fn settled(&self, target: u32, poison: &Poison) -> Result<bool, WaitError> {
        let value = self.value();
        match poison.cause() {
            Some(cause) => Err(WaitError::Poisoned(cause)),
            None => Ok(reached(value, target)),
        }
    }

    fn advance(&self, amount: u32) {
        // SYNC POINT: payload, released here (see `value`). An addition and never a store, so that
        // an owner's signal and a poison jump add up in either order.
        self.value.fetch_add(amount, Ordering::Release);
        // SYNC POINT: sleeper. The value changes before the count is read; the fence keeps that
        // order. Together with the fence in `wait_at_least` one of the two sides sees the other.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            futex::wake(&self.value, futex::EVERYONE);
        }
    }
}

/// The word that ends a run. Zero bytes mean that nothing has happened.
///
/// Flag, culprit and code are one atomic word, so a process that dies while it poisons leaves
/// either nothing or all of it.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Poison {
    /// Bit 63: set; bits 32..63: who; bits 0..32: code.
    word: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Poison>() == 64 && align_of::<Poison>() == 64);

const POISON_FLAG: u64 = 1 << 63;

impl Default for Poison {
    fn default() -> Self {
        Poison::new()
    }
}

impl Poison {
    /// Creates an unset poison outside shared memory. For tests and for threads of one process.
    pub fn new() -> Poison {
        Poison { word: AtomicU64::new(0) }
    }

    /// Ends the run: records the cause if none is recorded yet (the first writer wins) and releases
    /// every wait on `timelines`. A later caller releases them again, in case the first died before
    /// it could. Returns the recorded cause.
    ///
    /// # Panics
    /// Panics if `who` is 2^31 or more.
    pub fn set<'t>(
        &self,
        who: u32,
        code: u32,
        timelines: impl IntoIterator<Item = &'t Timeline>,
    ) -> PoisonCause {
        assert!(who < 1 << 31, "process number {who} does not fit the poison word");
        let word = POISON_FLAG | u64::from(who) << 32 | u64::from(code);
        // SYNC POINT: poison, released here and again by each timeline's jump: a thread that sees a
        // jumped value sees the flag.
        let kept = self.word.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
        for timeline in timelines {
            // The jump is noticed even by a waiter that is just about to sleep: its expected value
            // is gone.
            timeline.advance(POISON_JUMP);
        }
        unpack(kept.map_or_else(|earlier| earlier, |_| word)).unwrap_or(PoisonCause { who, code })
    }

    /// Returns the recorded cause, or `None` while the run is healthy.
    #[inline]
    pub fn cause(&self) -> Option<PoisonCause> {
        // SYNC POINT: poison, acquired here.
        unpack(self.word.load(Ordering::Acquire))
    }

    /// Returns an error once the run is poisoned.
    #[inline]
    pub fn check(&self) -> Result<(), WaitError> {
        self.cause().map_or(Ok(()), |cause| Err(WaitError::Poisoned(cause)))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
fn unpack(word: u64) -> Option<PoisonCause> {
    (word & POISON_FLAG != 0).then_some(PoisonCause {
        who: (word & !POISON_FLAG).wrapping_shr(32) as u32,
        code: word as u32,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    proptest! {
        #[test]
        fn reached_means_not_before_across_the_wrap(value: u32, ahead in 0..1u32 << 31) {
            prop_assert!(reached(value.wrapping_add(ahead), value));
            prop_assert_eq!(reached(value, value.wrapping_add(ahead)), ahead == 0);
        }
    }

    #[test]
    fn waits_pass_across_the_wrap() {
        let (timeline, poison) = (Timeline::new(u32::MAX - 1), Poison::new());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..4).for_each(|_| timeline.signal()));
            for target in [u32::MAX, 0, 1, 2] {
                timeline.wait_until(target, &poison, LIMIT).unwrap();
            }
        });
        assert_eq!(timeline.value(), 2);
        assert_eq!(
            timeline.wait_until(3, &poison, Duration::from_millis(1)),
            Err(WaitError::TimedOut { target: 3, value: 2 })
        );
    }

    #[test]
    fn a_time_limit_beyond_the_clock_is_none() {
        let (timeline, poison) = (Timeline::new(0), Poison::new());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| timeline.wait_until(1, &poison, Duration::MAX));
            while timeline.waiters.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            timeline.signal();
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn poison_is_reported_though_the_value_was_reached() {
        let (timeline, poison) = (Timeline::new(5), Poison::new());
        assert_eq!(poison.check(), Ok(()));
        let cause = PoisonCause { who: (1 << 31) - 1, code: u32::MAX };
        assert_eq!(poison.set(cause.who, cause.code, [&timeline]), cause);
        assert_eq!(poison.set(0, 0, [&timeline]), cause);
        assert_eq!(
            (poison.cause(), poison.check()),
            (Some(cause), Err(WaitError::Poisoned(cause)))
        );
        assert_eq!(timeline.wait_until(5, &poison, LIMIT), Err(WaitError::Poisoned(cause)));
    }

    #[test]
    fn many_poisonings_stay_ahead_of_every_target() {
        let (timeline, poison) = (Timeline::new(0), Poison::new());
        for setter in 0..100 {
            poison.set(setter, 0, [&timeline]);
            assert!(reached(timeline.value(), 1 << 24));
        }
    }
}
