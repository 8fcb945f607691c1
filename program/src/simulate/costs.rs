//! Costs of instructions.

use std::collections::HashMap;

use crate::ir::{Instruction, Program};
use crate::topology::LaneSet;

use super::place::{ByPlace, Place};
use super::span::Span;

/// Costs of a machine.
pub trait SimulationCosts {
    /// Returns the work of an instruction in a step (from 0): its duration in nanoseconds at rate
    /// 1, without contention. Finite and not negative.
    fn work_ns(&self, place: Place, instruction: &Instruction, step: u32) -> f64;

    /// Returns the rate, in nanoseconds of work per nanosecond, of the lane of `place` executing
    /// that instruction while the lanes in `busy`, including this one, are executing work.
    /// Positive.
    fn rate(&self, place: Place, busy: LaneSet) -> f64;

    /// Returns the nanoseconds from a signal to the first instruction of a lane that was blocked on
    /// it.
    fn wake_ns(&self) -> f64;
}

/// Error: an instruction has no measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trace has no span of {0:?}, so its cost is not known")]
pub struct MissingCost(pub Place);

/// Costs measured in a run: the median of each instruction's spans. Contention is part of the
/// measurement, so the rate is always 1.
#[derive(Debug, Clone)]
pub struct MeasuredCosts {
    medians_ns: ByPlace<f64>,
    wake_ns: f64,
}

impl MeasuredCosts {
    /// Computes the medians over `spans` for every work instruction of `programs`.
    ///
    /// # Errors
    /// An instruction without a span.
    pub fn new(
        programs: &[&Program],
        spans: &[Span],
        wake_ns: f64,
    ) -> Result<MeasuredCosts, MissingCost> {
        let mut durations_ns: HashMap<Place, Vec<u64>> = HashMap::new();
        for span in spans {
            let Span { program, lane, instruction, .. } = *span;
            let place = Place { program, lane, instruction };
            durations_ns.entry(place).or_default().push(span.duration_ns());
        }
        let mut medians_ns = ByPlace::new();
        for program in programs {
            for list in &program.lanes {
                for (index, instruction) in list.instructions.iter().enumerate() {
                    let lane = list.lane;
                    let place = Place { program: program.id, lane, instruction: index as u32 };
                    if !instruction.is_work() {
                        continue;
                    }
                    let found = durations_ns.get_mut(&place).ok_or(MissingCost(place))?;
                    medians_ns.insert(place, median(found));
                }
            }
        }
        Ok(MeasuredCosts { medians_ns, wake_ns })
    }
}

impl SimulationCosts for MeasuredCosts {
    /// # Panics
    /// For an instruction of a program that is not part of the costs.
    fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
        self.medians_ns[place]
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        self.wake_ns
    }
}

/// Returns the median of at least one number; the mean of the middle two for an even count.
fn median(values: &mut [u64]) -> f64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle] as f64
    } else {
        (values[middle - 1] as f64 + values[middle] as f64) / 2.0
    }
}
