//! Batch ranges in which each vector is the best.

use model::config::ModelConfig;
use serde::Serialize;

use super::{LiaStage, LiaWorkload, OffloadVector, best_vector};
use crate::machine::{Machine, MachineError};

/// Growth factor between the batches that are evaluated; if two neighbours have different vectors,
/// the batch at which the vector changes is searched between them.
const GROWTH: f64 = 1.05;

/// Inclusive range of batches for which one vector is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BatchRange {
    pub first: u32,
    pub last: u32,
    pub vector: OffloadVector,
}

/// Returns the best vector of every batch from 1 to `max_batch`, as ascending ranges. A vector that
/// is the best for less than a twentieth of the batches around it may be left out. The batch of
/// `workload` is ignored.
///
/// # Errors
/// A number format that the description does not have.
pub fn batch_ranges(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    workload: &LiaWorkload,
    max_batch: u32,
) -> Result<Vec<BatchRange>, MachineError> {
    let best_at = |batch: u32| {
        let case = LiaWorkload { batch, ..*workload };
        best_vector(machine, config, stage, &case).map(|(vector, _)| vector)
    };
    let mut ranges = vec![BatchRange { first: 1, last: 1, vector: best_at(1)? }];
    let mut batch = 1;
    while batch < max_batch {
        let next = ((f64::from(batch) * GROWTH) as u32).clamp(batch + 1, max_batch);
        let vector = best_at(next)?;
        let last = ranges.last_mut().expect("it begins with one");
        if vector == last.vector {
            (last.last, batch) = (next, next);
            continue;
        }
        let (mut same, mut other) = (batch, next);
        while other - same > 1 {
            let middle = same.midpoint(other);
            *(if best_at(middle)? == last.vector { &mut same } else { &mut other }) = middle;
        }
        last.last = same;
        ranges.push(BatchRange { first: other, last: other, vector: best_at(other)? });
        batch = other;
    }
    Ok(ranges)
}
