//! `--batches auto`: which N x B, by the profile's prices.

use planner::priced::{Question, best_batches};

use super::usage::Usage;
use crate::cli::values::Batches;

/// Largest batch that is tried.
pub(crate) const SIZE_MAX: u16 = 256;

/// The shape of highest predicted throughput with batches of at most the question's, which were
/// profiled.
///
/// # Errors
/// Nothing that fits.
pub(crate) fn best(question: &Question<'_>, sequences: usize) -> anyhow::Result<Batches> {
    let (count, size) = best_batches(question, sequences, question.batch_size)
        .ok_or_else(|| Usage("no batch fits memory".to_owned()))?;
    Ok(Batches { count, size })
}
