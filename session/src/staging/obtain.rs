//! Stagings of a run: existing ones, and those that are written first.

use std::path::PathBuf;

use weight_store::Lookup;

use super::staged_weights::StagedWeights;
use super::write::{Staging, stage};
use crate::interrupt::Interrupt;

const GIB: f64 = (1u64 << 30) as f64;

/// Returns the staging in each of `directories`, in their order. Missing ones are written after a
/// message about the required space and time.
///
/// # Errors
/// A staging that is damaged or has the name of another one, or one that cannot be written.
pub(crate) fn obtain_stagings(
    weights: StagedWeights<'_>,
    directories: &[PathBuf],
    quiet: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Staging>> {
    let identity = weights.identity()?;
    let mut existing: Vec<Option<Staging>> = Vec::new();
    for directory in directories {
        existing.push(match weight_store::StagedCopy::lookup(directory, &identity)? {
            Lookup::Complete(staged) => Some(Staging { directory: directory.clone(), staged }),
            Lookup::Partial(_) | Lookup::Missing => None,
        });
    }
    let missing = existing.iter().zip(directories).filter(|(staging, _)| staging.is_none());
    let missing: Vec<PathBuf> = missing.map(|(_, directory)| directory.clone()).collect();
    if missing.is_empty() {
        return Ok(existing.into_iter().flatten().collect());
    }
    if !quiet {
        let names: Vec<String> =
            missing.iter().map(|directory| directory.display().to_string()).collect();
        let each = weight_store::size_bytes(&weights.blobs()) as f64 / GIB;
        eprintln!(
            "{} ({}) is not staged in {}: staging it takes {each:.2} GiB on each drive, once, and \
             about as long as writing this amount.",
            identity.model,
            identity.form,
            names.join(", ")
        );
    }
    let mut written = stage(weights, &missing, quiet, interrupt)?.into_iter();
    Ok(existing.into_iter().filter_map(|staging| staging.or_else(|| written.next())).collect())
}
