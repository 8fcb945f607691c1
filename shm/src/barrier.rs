//! A reusable barrier for a fixed number of parties, over the same words and with the same poison
//! as timelines.
//!
//! Used at phase changes, where all lanes of all workers must have finished before any starts the
//! next phase. What any party wrote before it arrived is visible to every party after it left.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering};
use crate::timeline::{Poison, Timeline, WaitError};

/// The barrier. In shared memory, zero bytes plus [`Barrier::set_parties`] make a fresh one.
///
/// After an error (poison, timeout) its count is off and neither it nor the run may be used again.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub struct Barrier {
    /// Completed rounds; parties sleep on it. Poison must jump it too, see [`Barrier::timeline`].
    generation: Timeline,
    /// Parties that have arrived in this round.
    arrived: AtomicU32,
    parties: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Barrier>() == 128 && align_of::<Barrier>() == 64);

impl Barrier {
    /// Creates a barrier outside shared memory.
    pub fn new(parties: u32) -> Barrier {
        assert!(parties > 0, "a barrier needs at least one party");
        Barrier {
            generation: Timeline::new(0),
            arrived: AtomicU32::new(0),
            parties: AtomicU32::new(parties),
        }
    }

    /// Sets the number of parties; once, before any other thread or process can access the barrier.
    pub fn set_parties(&self, parties: u32) {
        assert!(parties > 0, "a barrier needs at least one party");
        self.parties.store(parties, Ordering::Relaxed);
    }

    /// Returns the number of parties that must arrive.
    pub fn parties(&self) -> u32 {
        self.parties.load(Ordering::Relaxed)
    }

    /// Returns the word parties sleep on, for [`Poison::set`].
    pub fn timeline(&self) -> &Timeline {
        &self.generation
    }

    /// Blocks until all parties have arrived. Returns true for exactly one of them, the last.
    pub fn wait(&self, poison: &Poison, timeout: Duration) -> Result<bool, WaitError> {
        // Read before arriving: the round cannot end without this party.
        let generation = self.generation.value();
        // SYNC POINT: barrier. Releases this party's writes, and for the last one acquires those of
        // all parties.
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived < self.parties() {
            self.generation.wait_until(generation.wrapping_add(1), poison, timeout)?;
            return Ok(false);
        }
        // Before the signal, so that a party released into the next round counts from zero.
        self.arrived.store(0, Ordering::Relaxed);
        // SYNC POINT: barrier. The signal releases what was acquired from all; `wait_at_least`
        // acquires it.
        self.generation.signal();
        poison.check()?;
        Ok(true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn no_party_leaves_a_round_before_all_arrived() {
        const PARTIES: u64 = 3;
        const ROUNDS: u64 = 500;
        let (barrier, poison) = (Barrier::new(PARTIES as u32), Poison::new());
        let (arrivals, leaders) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..PARTIES {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        arrivals.fetch_add(1, Ordering::Relaxed);
                        let last = barrier.wait(&poison, Duration::from_secs(60)).unwrap();
                        leaders.fetch_add(last.into(), Ordering::Relaxed);
                        let seen = arrivals.load(Ordering::Relaxed);
                        assert!((round * PARTIES..(round + 1) * PARTIES).contains(&seen));
                    }
                });
            }
        });
        assert_eq!(leaders.into_inner(), ROUNDS);
    }

    #[test]
    fn a_missing_party_is_a_timeout() {
        let outcome = Barrier::new(2).wait(&Poison::new(), Duration::from_millis(1));
        assert_eq!(outcome, Err(WaitError::TimedOut { target: 1, value: 0 }));
    }
}
