//! Stall detection: the time for which no lane has made progress, as observed by this process.

use program::topology::LANES_MAX;
use std::time::{Duration, Instant};

use shm::{Control, Position};

/// Number of checks within a bound.
const CHECKS_PER_BOUND: u32 = 8;
/// Number of steps after which a run is known to make progress.
const START_STEPS: u32 = 2;

/// Bounds on the time for which no lane makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallBounds {
    /// Bound during the run.
    pub run: Duration,
    /// Bound in the first steps of a run that could be started in another way; `None` to use `run`.
    pub start: Option<Duration>,
}

impl StallBounds {
    /// Returns the bound of a wait that begins now.
    pub(crate) fn current(self, control: &Control) -> Duration {
        match self.start {
            Some(start) if control.steps().value() < START_STEPS => start.min(self.run),
            _ => self.run,
        }
    }
}

/// Measures the time for which no lane has moved. Between two checks at most an eighth of the bound
/// counts: a process or a machine that was suspended observed no stall meanwhile.
#[derive(Debug)]
pub(crate) struct StallDetector<'a> {
    control: &'a Control,
    lanes: usize,
    /// Positions of the first `lanes`; an array, since nothing is allocated while lanes run.
    positions: [Position; LANES_MAX],
    last_check: Instant,
    stalled: Duration,
    slice: Duration,
}

impl<'a> StallDetector<'a> {
    /// Starts a measurement for a run with `lanes` lanes. `bound` is the value with which
    /// [`StallDetector::check`] will be compared.
    pub(crate) fn new(control: &'a Control, lanes: usize, bound: Duration) -> StallDetector<'a> {
        let (positions, slice) = (positions(control, lanes), bound / CHECKS_PER_BOUND);
        let (last_check, stalled) = (Instant::now(), Duration::ZERO);
        StallDetector { control, lanes, positions, last_check, stalled, slice }
    }

    /// Returns the maximum time between two checks that counts in full.
    pub(crate) fn slice(&self) -> Duration {
        self.slice
    }

    /// Returns the time for which nothing has moved.
    pub(crate) fn check(&mut self) -> Duration {
        let positions = positions(self.control, self.lanes);
        if positions == self.positions {
            self.stalled += self.last_check.elapsed().min(self.slice);
        } else {
            self.positions = positions;
            self.stalled = Duration::ZERO;
        }
        self.last_check = Instant::now();
        self.stalled
    }
}

fn positions(control: &Control, lanes: usize) -> [Position; LANES_MAX] {
    let mut positions = [Position { program: 0, step: 0, instruction: 0 }; LANES_MAX];
    for (lane, position) in positions.iter_mut().enumerate().take(lanes) {
        *position = control.lane(lane).position();
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: usize = 3;

    #[test]
    fn the_first_steps_have_a_bound_of_their_own() {
        let control = Control::create(LANES as u32, 0).expect("control");
        let (run, start) = (Duration::from_secs(600), Duration::from_secs(60));
        let bounds = StallBounds { run, start: Some(start) };
        let always = StallBounds { run, start: None };
        for expected in [start, start, run, run] {
            assert_eq!((bounds.current(&control), always.current(&control)), (expected, run));
            control.steps().signal();
        }
        let short = StallBounds { run: Duration::from_secs(8), start: Some(start) };
        let control = Control::create(LANES as u32, 0).expect("control");
        assert_eq!(short.current(&control), Duration::from_secs(8));
    }

    #[test]
    fn time_without_a_look_counts_for_a_slice_and_a_movement_ends_it() {
        let control = Control::create(LANES as u32, 0).expect("control");
        let mut detector = StallDetector::new(&control, LANES, Duration::from_millis(80));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(detector.check(), Duration::from_millis(10));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(detector.check(), Duration::from_millis(20));
        let moved = Position { program: 1, step: 2, instruction: 3 };
        control.lane(LANES - 1).set_position(moved);
        assert_eq!(detector.check(), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(detector.check(), Duration::from_millis(10));
    }
}
