//! Shares converge for devices of unequal speed, and always add up to the total.

use crate::common::*;
use proptest::prelude::*;
use weight_store::balance::{
    ALPHA, Balance, BalanceError, MeasuredDivision, STEPS, TOLERANCE, Trajectory, run,
};
use weight_store::measure::measure;
use weight_store::{AlignedBuffer, BLOCK_BYTES, ReaderOptions};

/// Maximum number of steps from any start.
const STEPS_MAX: usize = 12;

/// Number of blocks of 1.6 GB.
const BLOCKS: u64 = 25_000;

#[derive(Debug)]
enum Error {
    Balance(BalanceError),
}

impl From<BalanceError> for Error {
    fn from(error: BalanceError) -> Error {
        Error::Balance(error)
    }
}

fn balanced(
    balance: Balance,
    steps: usize,
    measure: impl Fn(usize, u64) -> Option<f64>,
) -> Result<Trajectory, Error> {
    run(balance, steps, |sizes| {
        Ok(sizes.iter().enumerate().map(|(device, size)| measure(device, *size)).collect())
    })
}

fn assert_adds_up(trajectory: &Trajectory, total_blocks: u64) {
    for iteration in &trajectory.iterations {
        assert_eq!(iteration.sizes.iter().sum::<u64>(), total_blocks);
    }
    assert_eq!(trajectory.sizes.iter().sum::<u64>(), total_blocks);
}

#[test]
fn a_step_is_as_the_equations_say() {
    // Equal shares take 3 and 1: the average is 2, the weights times alpha are -1/6 and 1/2.
    let mut balance = Balance::new(800, &[1, 1], 0.5);
    assert_eq!(balance.sizes(), [400, 400]);
    balance.step(&[Some(3.0), Some(1.0)]).unwrap();
    // 400 * 5/6 and 400 * 3/2, scaled from 933.3 to 800.
    assert_eq!(balance.sizes(), [286, 514]);
    assert!(!balance.is_balanced(TOLERANCE));
    balance.step(&[Some(1.0), Some(1.04)]).unwrap();
    assert!(balance.is_balanced(TOLERANCE));
}

#[test]
fn a_lost_device_has_nothing_from_then_on() {
    let mut balance = Balance::equal(90, 3);
    balance.step(&[Some(1.0), None, Some(1.0)]).unwrap();
    assert_eq!(balance.sizes(), [45, 0, 45]);
    assert!(!balance.is_balanced(TOLERANCE));
    balance.step(&[Some(1.0), Some(0.0), Some(1.0)]).unwrap();
    assert_eq!(balance.sizes(), [45, 0, 45]);
    assert!(balance.is_balanced(TOLERANCE));
    assert_eq!(balance.step(&[Some(1.0)]), Err(BalanceError::Times { times: 1, devices: 3 }));
    balance.step(&[Some(f64::NAN), None, Some(2.0)]).unwrap();
    assert_eq!(balance.sizes(), [0, 0, 90]);
    assert_eq!(balance.step(&[None, None, None]), Err(BalanceError::NoDevice));
}

#[test]
fn a_device_that_answers_keeps_a_block() {
    let mut balance = Balance::equal(10, 3);
    for _ in 0..20 {
        balance.step(&[Some(1000.0), Some(0.001), Some(0.001)]).unwrap();
        assert_eq!(balance.sizes()[0], 1);
    }
    // The first device has become fast.
    balance.step(&[Some(0.001), Some(10.0), Some(10.0)]).unwrap();
    assert!(balance.sizes()[0] > 5, "{:?}", balance.sizes());
    assert_eq!(Balance::equal(2, 3).sizes().iter().sum::<u64>(), 2);
}

#[test]
fn a_run_that_does_not_settle_takes_its_best() {
    // The first device becomes slower with every measurement.
    let calls = std::cell::Cell::new(0);
    let trajectory = balanced(Balance::equal(1000, 2), 4, |device, size| {
        calls.set(calls.get() + 1);
        Some(if device == 0 { f64::from(calls.get()) * 1000.0 } else { size as f64 })
    });
    let trajectory = trajectory.unwrap();
    assert!(!trajectory.is_balanced);
    assert_eq!(trajectory.iterations.len(), 4);
    assert_eq!(trajectory.sizes, trajectory.iterations[0].sizes);
    let json = serde_json::to_string(&trajectory).unwrap();
    assert_eq!(serde_json::from_str::<Trajectory>(&json).unwrap(), trajectory);
}

#[test]
fn a_device_lost_in_the_last_step_has_no_share() {
    let calls = std::cell::Cell::new(0);
    let trajectory = balanced(Balance::equal(1000, 2), 3, |device, size| {
        calls.set(calls.get() + 1);
        (calls.get() != 6).then_some(size as f64 * if device == 0 { 3.0 } else { 1.0 })
    });
    assert_eq!(trajectory.unwrap().sizes, [1000, 0]);
    let all_lost = balanced(Balance::equal(1000, 2), 3, |_, _| None);
    assert!(matches!(all_lost, Err(Error::Balance(BalanceError::NoDevice))));
}

#[test]
fn the_extremes_settle() {
    let starts = [vec![1, 1], vec![10, 1], vec![1, 10]];
    for start in starts {
        for speeds in [[1.0, 1.0], [10.0, 1.0], [1.0, 10.0]] {
            let balance = Balance::new(BLOCKS, &start, ALPHA);
            let measure = |device: usize, size: u64| Some(size as f64 / speeds[device]);
            let trajectory = balanced(balance, STEPS, measure).unwrap();
            assert!(trajectory.is_balanced, "{start:?} {speeds:?} {trajectory:?}");
            assert_adds_up(&trajectory, BLOCKS);
        }
    }
}

#[test]
fn real_readers_settle() {
    let dir = folder();
    let staged = stage(dir.path(), &[100 * BLOCK_BYTES - 7]);
    let blob = staged.blob("blob 0").unwrap();
    let mut readers = ["rate=100M", "rate=25M"].map(|rate| {
        let faults = rate.parse().unwrap();
        let options =
            ReaderOptions { faults, request_bytes: BLOCK_BYTES, ..ReaderOptions::default() };
        reader(&staged, options)
    });
    let mut buffer = AlignedBuffer::new(staged.size_bytes(blob) as usize);
    let trajectory = run(Balance::equal(staged.blocks(blob), 2), STEPS, |sizes| {
        buffer.bytes_mut().fill(0);
        let times_s = measure(&mut readers, blob, sizes, &mut buffer, 3);
        let expected = bytes(0, staged.size_bytes(blob));
        assert!(buffer.bytes()[..expected.len()] == expected);
        Ok::<_, Error>(times_s.into_iter().map(Result::ok).collect())
    });
    let trajectory = trajectory.unwrap();
    assert_adds_up(&trajectory, 100);
    assert!(trajectory.sizes[0] > trajectory.sizes[1], "{trajectory:?}");

    // One device fails: the other one gets everything.
    readers[0] = reader(
        &staged,
        ReaderOptions { faults: "eio@2".parse().unwrap(), ..ReaderOptions::default() },
    );
    let trajectory = run(Balance::equal(staged.blocks(blob), 2), STEPS, |sizes| {
        let times_s = measure(&mut readers, blob, sizes, &mut buffer, 3);
        Ok::<_, Error>(times_s.into_iter().map(Result::ok).collect())
    });
    let trajectory = trajectory.unwrap();
    let lost = |iteration: &MeasuredDivision| iteration.times_s[0].is_none();
    assert!(trajectory.iterations.iter().any(lost), "{trajectory:?}");
    assert_eq!(trajectory.sizes, [0, 100]);
}

/// Speeds within a ratio of 10:1.
fn speeds() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(1.0..10.0, 2..=8)
}

proptest! {
    #[test]
    fn unequal_devices_settle(
        speeds in speeds(),
        wrong in prop::option::of((0..8_usize, prop::bool::ANY)),
        seed in 0..u64::MAX,
    ) {
        let mut start = vec![10; speeds.len()];
        if let Some((device, is_more)) = wrong {
            start[device % speeds.len()] = if is_more { 100 } else { 1 };
        }
        // Noise of at most 3% in every measurement.
        let state = std::cell::Cell::new(seed | 1);
        let noise = || {
            let mut next = state.get();
            next ^= next << 13;
            next ^= next >> 7;
            next ^= next << 17;
            state.set(next);
            1.0 + 0.03 * ((next >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
        };
        for is_noisy in [false, true] {
            let measure = |device: usize, size: u64| {
                let time_s = size as f64 / speeds[device];
                Some(if is_noisy { time_s * noise() } else { time_s })
            };
            let balance = Balance::new(BLOCKS, &start, ALPHA);
            let trajectory = balanced(balance, STEPS_MAX, measure).unwrap();
            prop_assert!(trajectory.is_balanced, "{trajectory:?}");
            assert_adds_up(&trajectory, BLOCKS);
        }
    }

    #[test]
    fn the_total_never_changes(
        total_blocks in 0..1_u64 << 40,
        start in prop::collection::vec(0..u64::MAX / 16, 1..9),
        alpha in 0.01..=1.0,
        times_s in prop::collection::vec(prop::collection::vec(
            prop_oneof![
                8 => (1e-9..1e9).prop_map(Some),
                1 => prop::sample::select(
                    vec![Some(0.0), Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), None]
                ),
            ], 9), 1..12),
    ) {
        let mut balance = Balance::new(total_blocks, &start, alpha);
        let mut lost = vec![false; start.len()];
        for times_s in times_s {
            prop_assert_eq!(balance.sizes().iter().sum::<u64>(), total_blocks);
            let times_s = &times_s[..start.len()];
            for (device, time_s) in times_s.iter().enumerate() {
                lost[device] |= time_s.is_none_or(|time_s| !(0.0..f64::MAX).contains(&time_s));
            }
            let stepped = balance.step(times_s);
            prop_assert_eq!(stepped.is_err(), lost.iter().all(|lost| *lost));
            if stepped.is_err() {
                break;
            }
            let alive = lost.iter().filter(|lost| !**lost).count() as u64;
            for (size, lost) in balance.sizes().iter().zip(&lost) {
                prop_assert!(!lost || *size == 0);
                prop_assert!(*lost || *size > 0 || total_blocks < alive);
            }
        }
    }
}

#[test]
fn what_is_balanced_at_once_is_measured_once() {
    let result: Result<Trajectory, Error> =
        run(Balance::equal(10, 2), 2, |_| Ok(vec![Some(1.0), Some(1.0)]));
    assert_eq!(result.unwrap().iterations.len(), 1);
}
