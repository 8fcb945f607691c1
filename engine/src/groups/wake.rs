//! Current cost of a wake-up on this machine: the time from a signal to the waiter's next
//! instruction, which the simulator charges for every wait that blocks.

use std::time::{Duration, Instant};

use shm::{Poison, Timeline};

const ROUNDS: u32 = 200;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the median of half a round trip between two sleeping threads, in nanoseconds; 0 if it
/// could not be measured.
pub(super) fn wake_ns() -> f64 {
    let (there, back, poison) = (Timeline::new(0), Timeline::new(0), Poison::new());
    let mut trips_ns: Vec<u128> = Vec::new();
    std::thread::scope(|scope| {
        let answer = || {
            for round in 1..=ROUNDS {
                if there.wait_until(round, &poison, TIMEOUT).is_err() {
                    return;
                }
                back.signal();
            }
        };
        if std::thread::Builder::new().spawn_scoped(scope, answer).is_err() {
            return;
        }
        for round in 1..=ROUNDS {
            let begun = Instant::now();
            there.signal();
            if back.wait_until(round, &poison, TIMEOUT).is_err() {
                return;
            }
            trips_ns.push(begun.elapsed().as_nanos());
        }
    });
    trips_ns.sort_unstable();
    trips_ns.get(trips_ns.len() / 2).map_or(0.0, |trip| *trip as f64 / 2.0)
}
