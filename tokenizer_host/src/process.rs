//! A text process, as seen by the coordinator.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use protocol::child_process::this_program;
use serde::Serialize;
use shm::{Channel, ChannelError};

use super::message::{TextReply, TextRequest, TextSetup, TextSource};

/// Limits of a text process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimits {
    pub memory_bytes: u64,
    /// Maximum time of a request.
    pub time: Duration,
    /// Additional time for each mebibyte of a request.
    pub time_per_mib: Duration,
    /// Number of requests that may fail before the first answer; after that, no more processes are
    /// started.
    pub max_failures: u32,
}

impl TextLimits {
    /// Returns the limits without the one on losses: the next client may request something else.
    #[must_use]
    pub fn without_failure_limit(self) -> TextLimits {
        TextLimits { max_failures: u32::MAX, ..self }
    }
}

impl Default for TextLimits {
    /// Returns limits far above the needs of common tokenizers.
    fn default() -> TextLimits {
        TextLimits {
            memory_bytes: 4 << 30,
            time: Duration::from_secs(20),
            time_per_mib: Duration::from_secs(10),
            max_failures: 8,
        }
    }
}

/// Reason for which a text process gave no answer. The messages are the ends of sentences.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("the tokenizer process could not be started: {0}")]
    Start(std::io::Error),
    #[error("the tokenizer process could not be reached: {0}")]
    Channel(ChannelError),
    #[error("the tokenizer process could not be restarted: {0}")]
    Restart(Box<TextError>),
    #[error("the tokenizer or chat template did not finish within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the tokenizer or chat template {0}")]
    Exited(ProcessExit),
    /// Refusal by the process, which keeps running.
    #[error("{0}")]
    Refused(String),
}

impl TextError {
    /// Returns true if the process exceeded its own limits, which would happen again with an equal
    /// request; false if something external ended it or kept it from starting.
    pub fn is_self_inflicted(&self) -> bool {
        match self {
            TextError::TimedOut(_) => true,
            TextError::Exited(ended) => ended.is_self_inflicted(),
            TextError::Start(_)
            | TextError::Channel(_)
            | TextError::Restart(_)
            | TextError::Refused(_) => false,
        }
    }
}

/// End of a process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessExit {
    status: Option<ExitStatus>,
    memory_bytes: u64,
}

impl ProcessExit {
    /// Creates the end of a process with an exit status and a limit of memory in bytes.
    pub fn new(status: Option<ExitStatus>, memory_bytes: u64) -> ProcessExit {
        ProcessExit { status, memory_bytes }
    }

    /// Returns true if the signal is a consequence of what the process did. SIGABRT results from a
    /// failed allocation or a stack overflow.
    fn is_self_inflicted(self) -> bool {
        let signal = self.status.and_then(|status| status.signal());
        let self_inflicted =
            [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        signal.is_some_and(|signal| self_inflicted.contains(&signal))
    }
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status.and_then(|status| status.signal()) {
            Some(libc::SIGSEGV) => {
                write!(f, "recursed too deeply (its process ended with signal 11)")
            }
            Some(libc::SIGABRT) => write!(
                f,
                "exceeded its memory limit of {} MiB (its process was aborted)",
                self.memory_bytes >> 20
            ),
            Some(signal) => write!(f, "failed: its process ended with signal {signal}"),
            None => write!(f, "failed: its process ended"),
        }
    }
}

/// A process that holds one model's tokenizer and chat template.
#[derive(Debug)]
pub struct TextProcess {
    child: Child,
    channel: Channel,
    limits: TextLimits,
}

impl TextProcess {
    /// Starts a process; returns `None` if the model has no tokenizer.
    ///
    /// # Errors
    /// Returns an error if the model's files are invalid or the process cannot be started.
    pub fn start(from: &TextSource, limits: TextLimits) -> Result<Option<TextProcess>, TextError> {
        let (ours, theirs) = Channel::pair().map_err(TextError::Channel)?;
        let mut command = this_program();
        let descriptor = theirs.hand_to(&mut command);
        command
            .arg0("tandem tokenizer")
            .args(["text", &descriptor.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // The runtime's message about an abort would mean nothing to users.
            .stderr(Stdio::null())
            // The coordinator alone handles Ctrl-C of a terminal.
            .process_group(0);
        let child = command.spawn().map_err(TextError::Start)?;
        drop(command);
        let mut process = TextProcess { child, channel: ours, limits };
        let setup = TextSetup { source: from.clone(), memory_bytes: limits.memory_bytes };
        match process.exchange(&setup, limits.time * 6)? {
            TextReply::Ready { has_tokenizer } => Ok(has_tokenizer.then_some(process)),
            _ => Err(unexpected()),
        }
    }

    /// Sends a request and waits for the reply within the time limit. After any error but
    /// [`TextError::Refused`] the process is unusable.
    ///
    /// # Errors
    /// See [`TextError`].
    pub fn ask(&mut self, request: &TextRequest) -> Result<TextReply, TextError> {
        let more = self.limits.time_per_mib * (request.size_bytes() >> 20) as u32;
        self.exchange(request, self.limits.time + more)
    }

    fn exchange(
        &mut self,
        message: &impl Serialize,
        time: Duration,
    ) -> Result<TextReply, TextError> {
        let bytes = postcard::to_stdvec(message).map_err(|_| unexpected())?;
        let sent = self.channel.send_any(&bytes);
        let received = sent.and_then(|()| self.channel.recv(time));
        let (bytes, _) = match received {
            Ok(received) => received,
            Err(ChannelError::TimedOut { .. }) => return Err(TextError::TimedOut(time)),
            Err(ChannelError::PeerClosed) => {
                // The process is exiting or has exited, which closes its end of the channel.
                let status = self.child.wait().ok();
                let memory_bytes = self.limits.memory_bytes;
                return Err(TextError::Exited(ProcessExit::new(status, memory_bytes)));
            }
            Err(error) => return Err(TextError::Channel(error)),
        };
        match postcard::from_bytes(&bytes).map_err(|_| unexpected())? {
            TextReply::Refused(reason) => Err(TextError::Refused(reason)),
            reply => Ok(reply),
        }
    }
}

impl Drop for TextProcess {
    fn drop(&mut self) {
        // The process may be busy with anything, and has no state to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unexpected() -> TextError {
    TextError::Channel(ChannelError::Malformed { what: "an unexpected reply" })
}
