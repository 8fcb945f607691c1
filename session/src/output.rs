//! Output of commands on stdout.

use std::io::{ErrorKind, Write, stdout};

use batch::error::JobError;

use crate::terminal::print;

/// Writes a command's result to stdout: JSON unchanged, other text sanitised.
///
/// # Errors
/// An error of the write; [`JobError::BrokenPipe`] if the reader has closed stdout.
pub fn print_result(text: &str, is_json: bool) -> anyhow::Result<()> {
    let written = if is_json { stdout().write_all(text.as_bytes()) } else { print(text) };
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => JobError::BrokenPipe.into(),
        _ => error.into(),
    })
}
