//! How long no lane has moved on, as far as this process could see.

use std::time::{Duration, Instant};

use program::ir::Lane;
use shm::{Control, Position};

/// Looks within a bound.
const LOOKS: u32 = 8;

/// Counts the time in which every lane stood where it was. Between two looks at most an eighth of the
/// bound counts: a process that was stopped, or a machine that was, saw nothing stand still meanwhile.
#[derive(Debug)]
pub(crate) struct Stillness<'a> {
    control: &'a Control,
    positions: [Position; Lane::ALL.len()],
    looked: Instant,
    still: Duration,
    slice: Duration,
}

impl<'a> Stillness<'a> {
    /// Begins to count; `bound` is what [`Stillness::look`] will be compared with.
    pub(crate) fn new(control: &'a Control, bound: Duration) -> Stillness<'a> {
        let positions = positions(control);
        let slice = bound / LOOKS;
        Stillness { control, positions, looked: Instant::now(), still: Duration::ZERO, slice }
    }

    /// The longest time between two looks that counts in full.
    pub(crate) fn slice(&self) -> Duration {
        self.slice
    }

    /// For how long nothing has moved.
    pub(crate) fn look(&mut self) -> Duration {
        let positions = positions(self.control);
        if positions == self.positions {
            self.still += self.looked.elapsed().min(self.slice);
        } else {
            self.positions = positions;
            self.still = Duration::ZERO;
        }
        self.looked = Instant::now();
        self.still
    }
}

fn positions(control: &Control) -> [Position; Lane::ALL.len()] {
    Lane::ALL.map(|lane| control.lane(lane.index()).position())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_look_counts_for_a_slice_and_a_movement_ends_it() {
        let control = Control::create(Lane::ALL.len() as u32, 0).expect("control");
        let mut stillness = Stillness::new(&control, Duration::from_millis(80));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(stillness.look(), Duration::from_millis(10));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(stillness.look(), Duration::from_millis(20));
        let moved = Position { phase: 1, step: 2, instruction: 3 };
        control.lane(Lane::CpuCompute.index()).set_position(moved);
        assert_eq!(stillness.look(), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(stillness.look(), Duration::from_millis(10));
    }
}
