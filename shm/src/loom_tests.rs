//! Model checks of everything that waits or publishes: every interleaving of small cases, with a
//! model of the futex.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p shm --release --lib loom`. A lost wake-up shows
//! as a deadlock, which loom reports; a missing ordering shows as a data race on a payload cell.
//! Three threads are explored with a bounded number of preemptions, which loom's authors found to
//! catch nearly all faults; two threads without bound.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use crate::barrier::Barrier;
use crate::futex::{self, Wait};
use crate::ring;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::timeline::{Poison, PoisonCause, Timeline, WaitError};

const LIMIT: Duration = Duration::from_secs(3600);
const CAUSE: PoisonCause = PoisonCause { who: 3, code: 11 };

fn check(preemptions_max: impl Into<Option<usize>>, case: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions_max.into();
    model.check(case);
}

/// Memory that its users order by other means; loom fails if they do not.
#[derive(Debug, Default)]
struct Payload(UnsafeCell<u32>);

// SAFETY: needed to share the cell between model threads; loom itself checks that no two accesses
// race.
unsafe impl Sync for Payload {}

impl Payload {
    fn set(&self, value: u32) {
        // SAFETY: needed to write the cell; loom reports a race if any other thread accesses it.
        self.0.with_mut(|cell| unsafe { cell.write(value) });
    }

    fn value(&self) -> u32 {
        // SAFETY: needed to read the cell; loom reports a race if any thread writes it.
        self.0.with(|cell| unsafe { cell.read() })
    }
}

#[derive(Debug)]
struct Run {
    a: Timeline,
    b: Timeline,
    poison: Poison,
    payload: Payload,
}

fn run_at(value: u32) -> Arc<Run> {
    Arc::new(Run {
        a: Timeline::new(value),
        b: Timeline::new(value),
        poison: Poison::new(),
        payload: Payload::default(),
    })
}

#[test]
fn loom_futex_model_compares_before_it_sleeps() {
    check(None, || {
        let word = Arc::new(AtomicU32::new(0));
        let setter = {
            let word = Arc::clone(&word);
            thread::spawn(move || {
                word.store(1, Ordering::Release);
                futex::wake(&word, 1);
            })
        };
        while word.load(Ordering::Acquire) == 0 {
            assert_ne!(futex::wait(&word, 0, Some(LIMIT)), Wait::TimedOut);
        }
        setter.join().unwrap();
    });
}

#[test]
fn loom_a_signal_carries_its_payload() {
    // At the wrap: the target is smaller than the start as a number.
    check(None, || {
        let run = run_at(u32::MAX);
        let owner = {
            let run = Arc::clone(&run);
            thread::spawn(move || {
                run.payload.set(42);
                run.a.signal();
            })
        };
        run.a.wait_at_least(0, &run.poison, LIMIT).unwrap();
        assert_eq!(run.payload.value(), 42);
        owner.join().unwrap();
    });
}

#[test]
fn loom_two_lanes_take_turns() {
    check(5, || {
        let run = run_at(0);
        let other = {
            let run = Arc::clone(&run);
            thread::spawn(move || {
                for step in 1..=2 {
                    run.a.wait_at_least(step, &run.poison, LIMIT).unwrap();
                    run.payload.set(run.payload.value() + 1);
                    run.b.signal();
                }
            })
        };
        for step in 1..=2 {
            run.payload.set(run.payload.value() + 1);
            run.a.signal();
            run.b.wait_at_least(step, &run.poison, LIMIT).unwrap();
        }
        assert_eq!(run.payload.value(), 4);
        other.join().unwrap();
    });
}

#[test]
fn loom_two_waiters_are_both_woken() {
    check(3, || {
        let run = run_at(0);
        let waiters: Vec<_> = (1..=2)
            .map(|target| {
                let run = Arc::clone(&run);
                thread::spawn(move || run.a.wait_at_least(target, &run.poison, LIMIT).unwrap())
            })
            .collect();
        run.a.signal();
        run.a.signal();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn loom_poison_releases_a_waiter_about_to_sleep() {
    check(None, || {
        let run = run_at(0);
        let waiter = {
            let run = Arc::clone(&run);
            thread::spawn(move || run.a.wait_at_least(1, &run.poison, LIMIT))
        };
        run.poison.set(CAUSE.who, CAUSE.code, [&run.a]);
        assert_eq!(waiter.join().unwrap(), Err(WaitError::Poisoned(CAUSE)));
    });
}

#[test]
fn loom_poison_races_a_signal() {
    check(3, || {
        let run = run_at(0);
        let owner = {
            let run = Arc::clone(&run);
            thread::spawn(move || {
                run.payload.set(7);
                run.a.signal();
            })
        };
        let supervisor = {
            let run = Arc::clone(&run);
            thread::spawn(move || run.poison.set(CAUSE.who, CAUSE.code, [&run.a]))
        };
        match run.a.wait_at_least(1, &run.poison, LIMIT) {
            // Only the signal can have released the wait: a jump without the flag must never be
            // seen.
            Ok(()) => assert_eq!(run.payload.value(), 7),
            Err(error) => assert_eq!(error, WaitError::Poisoned(CAUSE)),
        }
        owner.join().unwrap();
        supervisor.join().unwrap();
        assert_eq!(run.a.wait_at_least(1, &run.poison, LIMIT), Err(WaitError::Poisoned(CAUSE)));
    });
}

#[test]
fn loom_the_first_poison_wins_and_both_release() {
    check(3, || {
        let run = run_at(0);
        let setters: Vec<_> = (1..=2)
            .map(|who| {
                let run = Arc::clone(&run);
                thread::spawn(move || run.poison.set(who, who * 10, [&run.a]))
            })
            .collect();
        let seen = match run.a.wait_at_least(1, &run.poison, LIMIT) {
            Err(WaitError::Poisoned(cause)) => cause,
            other => panic!("not released by poison: {other:?}"),
        };
        for setter in setters {
            assert_eq!(setter.join().unwrap(), seen);
        }
        assert_eq!(seen.code, seen.who * 10);
    });
}

#[test]
fn loom_barrier_of_two_over_two_rounds() {
    check(5, || barrier_case(2, 2));
}

#[test]
fn loom_barrier_of_three() {
    check(3, || barrier_case(3, 1));
}

/// Checks a barrier: in each round every party writes its own cell, and after the barrier reads the
/// cells of all parties.
fn barrier_case(parties: u32, rounds: u32) {
    let poison = Poison::new();
    let cells: Vec<_> = (0..parties * rounds).map(|_| Payload::default()).collect();
    let shared = Arc::new((Barrier::new(parties), poison, cells));
    let party = move |shared: &(Barrier, Poison, Vec<Payload>), own: u32| {
        let (barrier, poison, cells) = shared;
        let mut led = 0;
        for round in 0..rounds {
            let cells = &cells[(round * parties) as usize..][..parties as usize];
            cells[own as usize].set(round + 1);
            led += u32::from(barrier.wait(poison, LIMIT).unwrap());
            assert!(cells.iter().all(|cell| cell.value() == round + 1));
        }
        led
    };
    let others: Vec<_> = (1..parties)
        .map(|own| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || party(&shared, own))
        })
        .collect();
    let mut led = party(&shared, 0);
    for other in others {
        led += other.join().unwrap();
    }
    assert_eq!(led, rounds, "each round has exactly one last party");
}

#[test]
fn loom_poison_releases_a_barrier() {
    check(None, || {
        let shared = Arc::new((Barrier::new(2), Poison::new()));
        let party = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.0.wait(&shared.1, LIMIT))
        };
        shared.1.set(CAUSE.who, CAUSE.code, [shared.0.timeline()]);
        assert_eq!(party.join().unwrap(), Err(WaitError::Poisoned(CAUSE)));
    });
}

#[test]
fn loom_ring_keeps_order_and_counts_losses() {
    check(None, || {
        let (mut producer, mut consumer) = ring::on_heap(2);
        let writer = thread::spawn(move || {
            (1..=3).for_each(|record| {
                producer.push(record);
            });
            producer.lost()
        });
        let mut seen = Vec::new();
        consumer.drain(|record| seen.push(*record));
        let lost = writer.join().unwrap();
        consumer.drain(|record| seen.push(*record));
        // Only the last record can be lost, since two fit.
        let expected: &[u64] = if lost == 0 { &[1, 2, 3] } else { &[1, 2] };
        assert_eq!(seen, expected);
        assert_eq!(consumer.lost(), lost);
    });
}
