//! Exit codes, which `--help` documents.

use std::process::ExitCode;

use batch::outcome::JobOutcome;

/// Outcome of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Every request has an answer.
    Done,
    /// The run failed.
    Failure,
    /// The command line is wrong; no work was done.
    Usage,
    /// The run finished, but some requests got an error line, or an answer that does not follow its
    /// grammar.
    PartialFailure,
    /// SIGINT, SIGTERM or SIGHUP; finished answers are kept.
    Interrupted,
    /// The reader of stdout closed it.
    BrokenPipe,
}

impl Exit {
    /// Returns the exit code that the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::PartialFailure => 3,
            Exit::Interrupted => 130,
            // The code that a shell reports for a process that died of SIGPIPE; other tools exit
            // with it too.
            Exit::BrokenPipe => 141,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

impl From<JobOutcome> for Exit {
    fn from(outcome: JobOutcome) -> Exit {
        match outcome {
            JobOutcome::Complete => Exit::Done,
            JobOutcome::Partial => Exit::PartialFailure,
            JobOutcome::Interrupted => Exit::Interrupted,
        }
    }
}
