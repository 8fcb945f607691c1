//! Checks of the files for the measurements of a run, before anything is computed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use batch::sink::IoTarget;

use session::argument_error::ArgumentError;
use session::writable::check_writable;

/// Refuses a report or a trace that would overwrite the input and output of a job or each other,
/// and a report that cannot be written.
///
/// # Errors
/// A sentence for the user.
pub(super) fn check_result_files(
    job_files: Option<(&IoTarget, &IoTarget)>,
    report: Option<&Path>,
    trace: Option<&Path>,
) -> anyhow::Result<()> {
    let mut files: Vec<(&str, &Path)> = Vec::new();
    if let Some((input, output)) = job_files {
        for (flag, target) in [("--input", input), ("--output", output)] {
            if let IoTarget::File(path) = target {
                files.push((flag, path));
            }
        }
    }
    for (flag, path) in [("--report", report), ("--trace", trace)] {
        let Some(path) = path else { continue };
        if path == Path::new("-") {
            let answers_use_stdout =
                job_files.is_some_and(|(_, output)| *output == IoTarget::Standard);
            if flag == "--trace" || answers_use_stdout {
                return Err(ArgumentError(format!(
                    "{flag} -: stdout cannot be used here; name a file"
                ))
                .into());
            }
            continue;
        }
        if let Some((other, _)) = files.iter().find(|(_, known)| same_file(known, path)) {
            let shown = path.display();
            return Err(ArgumentError(format!(
                "{flag} and {other} both name {shown}; use separate files"
            ))
            .into());
        }
        files.push((flag, path));
    }
    match report.filter(|path| *path != Path::new("-")) {
        Some(path) => {
            check_writable(path).with_context(|| format!("the report {}", path.display()))
        }
        None => Ok(()),
    }
}

/// Returns true if two paths name the same file, which need not exist yet. Devices never count,
/// because they can be written twice.
fn same_file(a: &Path, b: &Path) -> bool {
    let (a_metadata, b_metadata) = (a.metadata().ok(), b.metadata().ok());
    match (a_metadata, b_metadata) {
        (Some(a), Some(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (None, None) => a == b || resolve_path(a).is_some_and(|a| Some(a) == resolve_path(b)),
        _ => false,
    }
}

/// Returns the path of a file that does not exist yet, with its folder resolved.
fn resolve_path(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new(".")).canonicalize().ok()?;
    Some(folder.join(path.file_name()?))
}
