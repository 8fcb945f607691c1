//! The command line: what was typed ([`low`]), what it means ([`high`], as a [`request`]), and
//! what is said back.

mod bench_serve;
mod chats;
pub(crate) mod cuda;
mod help;
pub mod high;
pub mod low;
mod outputs;
mod plan_serve;
mod profile;
mod prompt_cache;
mod report;
pub mod request;
mod score;
mod scoring;
pub mod select;
mod selecting;
mod serve;
mod serving;
mod shared;
pub mod shell;
mod stage;
mod usage_error;
pub mod values;

#[cfg(test)]
mod tests;

use clap::Parser;
use clap::error::ErrorKind;

use crate::exit::Exit;
use high::Command;
use low::Low;
use usage_error::UsageError;

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Refusal {
    /// `--help` or `--version`: the text for stdout.
    Help(String),
    /// The command line is wrong: the text for stderr, and the code.
    Wrong(String, Exit),
}

/// Reads a command line, the program's name first.
///
/// # Errors
/// A request for help, or a sentence that says what is wrong and what to write instead.
pub fn parse<I, T>(arguments: I) -> Result<Command, Refusal>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let low = Low::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Refusal::Help(error.to_string()),
        _ => Refusal::Wrong(error.to_string(), Exit::Usage),
    })?;
    Command::from_low(low).map_err(|error| {
        let exit = match error {
            UsageError::NoCuda { .. } => Exit::Failure,
            _ => Exit::Usage,
        };
        Refusal::Wrong(format!("coordinator: {error}\n"), exit)
    })
}
