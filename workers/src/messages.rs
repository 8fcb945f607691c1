//! Messages between a worker and the coordinator over the channel.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use protocol::messages::{FromWorker, ToWorker, WorkerSetup};
use shm::{Channel, ChannelError};

use crate::error::WorkerError;

/// Interval at which a worker that waits for the coordinator's next message checks again. The
/// parent's death ends the wait, so this does not bound loading.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Receives the first message.
pub(crate) fn receive_setup(channel: &Channel) -> Result<(WorkerSetup, Vec<OwnedFd>), WorkerError> {
    match receive(channel)? {
        (ToWorker::Setup(setup), descriptors) => Ok((*setup, descriptors)),
        (other, _) => Err(unexpected(&other, "a setup")),
    }
}

/// Returns the error for a message other than the `expected` ones.
pub(crate) fn unexpected(message: &ToWorker, expected: &'static str) -> WorkerError {
    let found = match message {
        ToWorker::Setup(_) => "a second setup",
        ToWorker::Attach { .. } => "a segment to attach",
        ToWorker::AttachDevice { .. } => "a device to attach",
        ToWorker::Load => "the command to load",
        ToWorker::CompileGrammar { .. } | ToWorker::ForgetGrammar { .. } => "a grammar",
        ToWorker::StorePage { .. } | ToWorker::FetchPages { .. } | ToWorker::CancelFetch { .. } => {
            "a page of a prompt"
        }
        ToWorker::CopyPage { .. } => "a page to copy",
        ToWorker::RestoreCheckpoint { .. } => "a checkpoint to restore",
    };
    WorkerError::Unexpected { found, expected }
}

/// Receives the next message, without a bound on the wait.
pub(crate) fn receive(channel: &Channel) -> Result<(ToWorker, Vec<OwnedFd>), WorkerError> {
    loop {
        match channel.recv(MESSAGE_TIMEOUT) {
            Ok((bytes, descriptors)) => return Ok((postcard::from_bytes(&bytes)?, descriptors)),
            Err(ChannelError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives the next message, which has already arrived, through `buffer`. A message without lists
/// allocates nothing if `buffer` has the capacity for it.
pub(crate) fn receive_into(
    channel: &Channel,
    buffer: &mut Vec<u8>,
) -> Result<ToWorker, WorkerError> {
    channel.recv_into(MESSAGE_TIMEOUT, buffer)?;
    Ok(postcard::from_bytes(buffer)?)
}

/// Sends a message of a few bytes to the coordinator; allocates nothing.
pub(crate) fn send_short(channel: &Channel, message: &FromWorker) -> Result<(), WorkerError> {
    let mut buffer = [0; 64];
    Ok(channel.send(postcard::to_slice(message, &mut buffer)?, &[])?)
}

/// Sends a message to the coordinator.
pub(crate) fn send(
    channel: &Channel,
    message: &FromWorker,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), WorkerError> {
    Ok(channel.send(&postcard::to_stdvec(message)?, descriptors)?)
}

/// Reports a failure. If the coordinator cannot be reached, poison and the exit code report it.
pub(crate) fn report_failure(channel: &Channel, error: &WorkerError) {
    let failed = FromWorker::Failed { kind: error.kind(), message: error.to_string() };
    let _ = send(channel, &failed, &[]);
}
