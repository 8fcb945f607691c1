//! A text process from outside.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;
use shm::{Channel, ChannelError};

use super::message::{TextFrom, TextReply, TextRequest, TextSetup};

/// What a text process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimits {
    pub memory_bytes: u64,
    /// For any request.
    pub time: Duration,
    /// On top, for each mebibyte of its text.
    pub time_per_mib: Duration,
    /// Processes that may be lost without one answer between them before no more are started.
    pub losses: u32,
}

impl TextLimits {
    /// However many processes are lost: whoever asks next may ask for something else.
    #[must_use]
    pub fn never_giving_up(self) -> TextLimits {
        TextLimits { losses: u32::MAX, ..self }
    }
}

impl Default for TextLimits {
    /// Far above what a tokenizer needs that people use.
    fn default() -> TextLimits {
        TextLimits {
            memory_bytes: 4 << 30,
            time: Duration::from_secs(20),
            time_per_mib: Duration::from_secs(10),
            losses: 8,
        }
    }
}

/// Why a text process gave no answer. The ends of sentences.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("the process for its tokenizer could not be started: {0}")]
    Start(std::io::Error),
    #[error("the process for its tokenizer could not be reached: {0}")]
    Channel(ChannelError),
    #[error("the process for its tokenizer could not be started again: {0}")]
    Restart(Box<TextError>),
    #[error("its tokenizer or chat template did not end within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("its tokenizer or chat template {0}")]
    Ended(Ended),
    /// What the process says; it goes on.
    #[error("{0}")]
    Refused(String),
}

impl TextError {
    /// Returns true if the process exceeded its own limits, which it does again with the same
    /// request; false if something from outside ended it or kept it from starting.
    pub fn is_by_itself(&self) -> bool {
        match self {
            TextError::TimedOut(_) => true,
            TextError::Ended(ended) => ended.is_by_itself(),
            TextError::Start(_)
            | TextError::Channel(_)
            | TextError::Restart(_)
            | TextError::Refused(_) => false,
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    status: Option<ExitStatus>,
    memory_bytes: u64,
}

impl Ended {
    /// Of a process with this status and so much memory.
    pub fn new(status: Option<ExitStatus>, memory_bytes: u64) -> Ended {
        Ended { status, memory_bytes }
    }

    /// These signals come from what a process does; SIGABRT is what an allocation that fails, or a
    /// stack that overflows, ends with.
    fn is_by_itself(self) -> bool {
        let signal = self.status.and_then(|status| status.signal());
        let own = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        signal.is_some_and(|signal| own.contains(&signal))
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status.and_then(|status| status.signal()) {
            Some(libc::SIGSEGV) => write!(f, "nests too deep (its process ended with signal 11)"),
            Some(libc::SIGABRT) => write!(
                f,
                "needs more than the {} MiB of memory it may use (its process was aborted)",
                self.memory_bytes >> 20
            ),
            Some(signal) => write!(f, "ended its process with signal {signal}"),
            None => write!(f, "ended its process"),
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
    /// Starts one; `None` where the model has no tokenizer.
    ///
    /// # Errors
    /// What is wrong with the model's files, or that the process cannot be had.
    pub fn start(from: &TextFrom, limits: TextLimits) -> Result<Option<TextProcess>, TextError> {
        let (ours, theirs) = Channel::pair().map_err(TextError::Channel)?;
        // This very program, also when its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        let number = theirs.hand_to(&mut command);
        command
            .arg0("tandem tokenizer")
            .args(["text", &number.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // The runtime's words about an abort would be nobody's.
            .stderr(Stdio::null())
            // A terminal's Ctrl-C is for the coordinator.
            .process_group(0);
        let child = command.spawn().map_err(TextError::Start)?;
        drop(command);
        let mut process = TextProcess { child, channel: ours, limits };
        let setup = TextSetup { from: from.clone(), memory_bytes: limits.memory_bytes };
        match process.exchange(&setup, limits.time * 6)? {
            TextReply::Ready { has_tokenizer } => Ok(has_tokenizer.then_some(process)),
            _ => Err(unexpected()),
        }
    }

    /// Asks for something and waits within its bounds. After any error but
    /// [`TextError::Refused`] this process is of no more use.
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
                // It is dying or dead; its end closed last.
                let status = self.child.wait().ok();
                let memory_bytes = self.limits.memory_bytes;
                return Err(TextError::Ended(Ended::new(status, memory_bytes)));
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
        // It may be in the middle of anything, and has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unexpected() -> TextError {
    TextError::Channel(ChannelError::Malformed { what: "an answer to something else" })
}
