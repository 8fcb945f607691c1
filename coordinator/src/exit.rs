//! The exit codes, which `--help` documents.

use std::process::ExitCode;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Every request has an answer.
    Done,
    /// The run could not finish.
    Failure,
    /// The command line is wrong; nothing was run.
    Usage,
    /// Finished, and some requests got an error line, or an answer without its form.
    SomeFailed,
    /// SIGINT, SIGTERM or SIGHUP; finished answers are kept.
    Interrupted,
    /// The reader of stdout went away.
    BrokenPipe,
}

impl Exit {
    /// The number the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::SomeFailed => 3,
            Exit::Interrupted => 130,
            // What a shell reports for a process that died of SIGPIPE, as other tools do.
            Exit::BrokenPipe => 141,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
