//! Validation of input and output files.

use std::path::{Path, PathBuf};

use batch::sink::{IoTarget, OutputMode};

use super::usage_error::UsageError;

/// Returns the file, or the standard stream if `path` is `-`.
pub(super) fn parse_io_target(path: &Path) -> IoTarget {
    if path.as_os_str() == "-" { IoTarget::Standard } else { IoTarget::File(path.to_owned()) }
}

/// Returns the output, and the treatment of an existing one.
///
/// # Errors
/// `--resume` with stdout.
pub(super) fn resolve_output(
    output: Option<&PathBuf>,
    resume: bool,
    force: bool,
) -> Result<(IoTarget, OutputMode), UsageError> {
    let output = output.map_or(IoTarget::Standard, |path| parse_io_target(path));
    let (mode, flag) = match (resume, force) {
        (true, false) => (OutputMode::Resume, "resume"),
        (true, true) => (OutputMode::ResumeReplacing, "resume"),
        (false, true) => (OutputMode::Overwrite, "force"),
        (false, false) => (OutputMode::New, ""),
    };
    // --force has no effect on stdout; --resume would silently repeat answers.
    match mode.is_resume() && output == IoTarget::Standard {
        true => Err(UsageError::OutputModeWithStdout { flag }),
        false => Ok((output, mode)),
    }
}
