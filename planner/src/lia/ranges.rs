//! Batch ranges in which each vector is the best.

use model::config::ModelConfig;
use serde::Serialize;

use super::{Case, Stage, Vector, best};
use crate::machine::{Machine, MachineError};

/// Growth factor between the batches that are evaluated; if two neighbours have different vectors,
/// the batch at which the vector changes is searched between them.
const GROWTH: f64 = 1.05;

/// Inclusive range of batches for which one vector is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BatchRange {
    pub first: u32,
    pub last: u32,
    pub vector: Vector,
}

/// Returns the best vector of every batch from 1 to `most`, as ascending ranges. A vector that is
/// the best for less than a twentieth of the batches around it may be left out. The batch of `case`
/// is ignored.
///
/// # Errors
/// A number format that the description does not have.
pub fn batch_ranges(
    machine: &Machine,
    config: &ModelConfig,
    stage: Stage,
    case: &Case,
    most: u32,
) -> Result<Vec<BatchRange>, MachineError> {
    let of = |batch: u32| {
        let case = Case { batch, ..*case };
        best(machine, config, stage, &case).map(|(vector, _)| vector)
    };
    let mut ranges = vec![BatchRange { first: 1, last: 1, vector: of(1)? }];
    let mut batch = 1;
    while batch < most {
        let next = ((f64::from(batch) * GROWTH) as u32).clamp(batch + 1, most);
        let vector = of(next)?;
        let last = ranges.last_mut().expect("it begins with one");
        if vector == last.vector {
            (last.last, batch) = (next, next);
            continue;
        }
        let (mut same, mut other) = (batch, next);
        while other - same > 1 {
            let middle = same.midpoint(other);
            *(if of(middle)? == last.vector { &mut same } else { &mut other }) = middle;
        }
        last.last = same;
        ranges.push(BatchRange { first: other, last: other, vector: of(other)? });
        batch = other;
    }
    Ok(ranges)
}
