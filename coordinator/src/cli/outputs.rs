//! Validation of input and output files.

use std::path::{Path, PathBuf};

use super::usage_error::UsageError;
use crate::job::sink::{OutputMode, Place};

/// Returns the file, or the standard stream if `path` is `-`.
pub(super) fn place_of(path: &Path) -> Place {
    if path.as_os_str() == "-" { Place::Standard } else { Place::File(path.to_owned()) }
}

/// Returns the output, and the treatment of an existing one.
///
/// # Errors
/// `--resume` with stdout.
pub(super) fn mode_of(
    output: Option<&PathBuf>,
    resume: bool,
    force: bool,
) -> Result<(Place, OutputMode), UsageError> {
    let output = output.map_or(Place::Standard, |path| place_of(path));
    let (mode, flag) = match (resume, force) {
        (true, false) => (OutputMode::Resume, "resume"),
        (true, true) => (OutputMode::ResumeReplacing, "resume"),
        (false, true) => (OutputMode::Overwrite, "force"),
        (false, false) => (OutputMode::New, ""),
    };
    // --force has no effect on stdout; --resume would silently repeat answers.
    match mode.resumes() && output == Place::Standard {
        true => Err(UsageError::ModeOfStdout { flag }),
        false => Ok((output, mode)),
    }
}
