//! Files that are read and written, as meant.

use std::path::{Path, PathBuf};

use super::usage_error::UsageError;
use crate::job::sink::{OutputMode, Place};

/// A file, or a standard stream.
pub(super) fn place_of(path: &Path) -> Place {
    if path.as_os_str() == "-" { Place::Standard } else { Place::File(path.to_owned()) }
}

/// Where the output goes, and what becomes of one that is there.
///
/// # Errors
/// Stdout, which nothing can be gone on with.
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
    // --force to stdout forces nothing and harms nothing; --resume would silently repeat answers.
    match mode.resumes() && output == Place::Standard {
        true => Err(UsageError::ModeOfStdout { flag }),
        false => Ok((output, mode)),
    }
}
