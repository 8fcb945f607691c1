//! `--batches auto`: selects the number and size of batches by the profile's costs.

use planner::search::{SearchRequest, best_batches};

use super::argument_error::ArgumentError;
use crate::values::Batches;

/// Maximum batch size that is tried.
pub(crate) const MAX_BATCH_SIZE: u16 = 256;

/// Returns the shape with the highest predicted throughput. Its batches are at most as large as
/// those of the question, for which the machine was profiled.
///
/// # Errors
/// No batch fits in memory.
pub(crate) fn choose_batches(
    question: &SearchRequest<'_>,
    sequences: usize,
) -> anyhow::Result<Batches> {
    let (count, size) = best_batches(question, sequences, question.batch_size)
        .ok_or_else(|| ArgumentError("no batch fits memory".to_owned()))?;
    Ok(Batches { count, size })
}
