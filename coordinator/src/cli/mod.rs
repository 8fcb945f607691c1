//! The command line: arguments as parsed ([`args`]), the validated command ([`command`], with a
//! [`request`] for each subcommand), and the messages for invalid ones.

pub mod args;
mod bench_serve;
mod chats;
pub mod command;
mod device;
#[cfg(test)]
mod draft_tests;
mod help;
pub mod kv_select;
mod kv_select_check;
mod outputs;
mod plan_serve;
mod profile;
mod prompt_cache;
mod quantize;
mod report;
pub mod request;
mod score;
mod score_request;
mod serve;
mod serve_request;
mod session_options;
mod shared;
pub mod shell;
mod speculation;
mod stage;
mod usage_error;
pub mod values;

#[cfg(test)]
mod tests;

use clap::Parser;
use clap::error::ErrorKind;

use args::CliArgs;
use command::Command;
use session::exit::Exit;
use usage_error::UsageError;

/// Reason why there is no command to run.
#[derive(Debug)]
pub enum EarlyExit {
    /// Text of `--help` or `--version` for stdout.
    Help(String),
    /// Error message for stderr, and the exit code.
    Invalid(String, Exit),
}

/// Parses a command line, which starts with the program's name.
///
/// # Errors
/// A request for help, or a message that states the mistake and its correction.
pub fn parse<I, T>(arguments: I) -> Result<Command, EarlyExit>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let args = CliArgs::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => EarlyExit::Help(error.to_string()),
        _ => EarlyExit::Invalid(error.to_string(), Exit::Usage),
    })?;
    Command::from_args(args).map_err(|error| {
        let exit = match error {
            UsageError::NoCuda { .. } => Exit::Failure,
            _ => Exit::Usage,
        };
        EarlyExit::Invalid(format!("coordinator: {error}\n"), exit)
    })
}
