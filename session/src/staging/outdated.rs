//! Stagings whose experts are in the layout of an earlier version, which no run reads.

use std::path::Path;

use anyhow::Context;

use super::staged_weights::StagedWeights;
use crate::argument_error::ArgumentError;

/// Refuses a directory in which some weights are staged in the layout of an earlier version.
///
/// # Errors
/// There is such a staging, or weights cannot be read.
pub(super) fn refuse(weights: StagedWeights<'_>, directory: &Path) -> anyhow::Result<()> {
    let Some(identity) = weights.outdated_identity()? else { return Ok(()) };
    let path = directory.join(&identity.name);
    if !path.is_dir() {
        return Ok(());
    }
    let text = format!(
        "{} has the experts of {} in the layout of an earlier version; rewrite it with \
         `coordinator stage --model MODEL --nvme {}`, and with the --dtype, --compress, \
         --quantized and --layers of this run",
        path.display(),
        identity.model,
        directory.display()
    );
    Err(ArgumentError(text).into())
}

/// Removes the staging of some weights in the layout of an earlier version, if there is one, so
/// that the drive has space for its successor.
///
/// # Errors
/// Files that cannot be removed, or weights that cannot be read.
pub(super) fn remove(weights: StagedWeights<'_>, directory: &Path) -> anyhow::Result<()> {
    if let Some(identity) = weights.outdated_identity()? {
        weight_store::remove(directory, &identity.name)
            .with_context(|| format!("removing {}", directory.join(&identity.name).display()))?;
    }
    Ok(())
}
