//! `--batches auto`: selects the number and size of batches by the profile's costs.

use planner::priced::{Question, best_batches};

use super::usage::Usage;
use crate::cli::values::Batches;

/// Maximum batch size that is tried.
pub(crate) const SIZE_MAX: u16 = 256;

/// Returns the shape with the highest predicted throughput. Its batches are at most as large as
/// those of the question, for which the machine was profiled.
///
/// # Errors
/// No batch fits in memory.
pub(crate) fn best(question: &Question<'_>, sequences: usize) -> anyhow::Result<Batches> {
    let (count, size) = best_batches(question, sequences, question.batch_size)
        .ok_or_else(|| Usage("no batch fits memory".to_owned()))?;
    Ok(Batches { count, size })
}
