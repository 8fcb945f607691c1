//! The command line: arguments as parsed ([`low`]), the validated command ([`high`], with a
//! [`request`] for each subcommand), and the messages for invalid ones.

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

/// Reason why there is no command to run.
#[derive(Debug)]
pub enum Refusal {
    /// Text of `--help` or `--version` for stdout.
    Help(String),
    /// Error message for stderr, and the exit code.
    Wrong(String, Exit),
}

/// Parses a command line, which starts with the program's name.
///
/// # Errors
/// A request for help, or a message that states the mistake and its correction.
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
