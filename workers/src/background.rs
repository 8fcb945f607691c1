//! Background tasks of a worker while a run serves: compiling the grammars of answers, copying
//! pages of caches, and storing and fetching prompt prefixes.
//!
//! The tasks use two threads, so that neither waits for the other and no step waits for either. The
//! thread that stores and fetches may wait for a drive that does not answer; no other thread waits
//! for it, not even at the end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use shm::channel::MESSAGE_BYTES_MAX;
use shm::{Channel, Timeline};

use crate::grammar_compiler::WorkerGrammarCompiler;
use crate::messages::{receive_into, send, send_short};
use crate::page_copies::PageCopies;
use crate::page_transfers::PageTransferQueue;
use crate::prefix_transfers::PrefixTransfers;
use crate::shared::protocol::{FromWorker, ToWorker};

/// Interval between checks whether the lanes have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Nice value of the thread that stores and fetches, from 0, as for all other threads, to 19.
const STORE_THREAD_NICE: i32 = 10;

/// Background tasks of a worker.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTasks {
    /// Present if the worker samples.
    pub(crate) grammars: Option<WorkerGrammarCompiler>,
    /// Present if the worker keeps the caches in pages.
    pub(crate) copies: Option<PageCopies>,
    /// Present if these pages are stored.
    pub(crate) prefixes: Option<PrefixTransfers>,
}

/// Name and body of a background thread, which runs until the given number of lanes have ended.
pub(crate) type BackgroundThread =
    (&'static str, Box<dyn FnOnce(&Channel, (&Timeline, u32)) + Send>);

/// State of the thread that receives the coordinator's messages.
struct MessageLoop {
    grammars: Option<WorkerGrammarCompiler>,
    copies: Option<PageCopies>,
    /// Orders for the thread that stores and fetches, and the directory of the store.
    transfers: Option<(Arc<PageTransferQueue>, std::path::PathBuf)>,
    buffer: Vec<u8>,
}

impl BackgroundTasks {
    /// Returns the threads that have something to do, and starts the thread that stores and
    /// fetches, which is not among them.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn threads(self) -> std::io::Result<Vec<BackgroundThread>> {
        let BackgroundTasks { grammars, copies, prefixes } = self;
        if grammars.is_none() && copies.is_none() && prefixes.is_none() {
            return Ok(Vec::new());
        }
        let transfers = match prefixes {
            Some(prefixes) => {
                let transfers =
                    (Arc::clone(prefixes.transfers()), prefixes.directory().to_path_buf());
                let store = move || {
                    // Steps have priority. A system that refuses this schedules all threads
                    // equally.
                    let _ = rustix::process::setpriority_process(None, STORE_THREAD_NICE);
                    prefixes.run()
                };
                std::thread::Builder::new().name("prompts".to_owned()).spawn(store)?;
                Some(transfers)
            }
            None => None,
        };
        let buffer = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let message_loop = MessageLoop { grammars, copies, transfers, buffer };
        let run: BackgroundThread =
            ("errands", Box::new(move |channel, lanes| message_loop.run(channel, lanes)));
        Ok(vec![run])
    }
}

impl MessageLoop {
    /// Handles messages of the coordinator until `lanes` lanes have ended, counted by `ended`, or
    /// the channel is closed.
    fn run(mut self, channel: &Channel, (ended, lanes): (&Timeline, u32)) {
        while ended.value() < lanes {
            if let Some((transfers, directory)) = &self.transfers {
                transfers.expire(directory);
                for answer in transfers.take_answers() {
                    let _ = send(channel, &answer, &[]);
                }
            }
            if !self.wait(channel) {
                continue;
            }
            let Ok(message) = receive_into(channel, &mut self.buffer) else { return };
            match message {
                ToWorker::CompileGrammar { number, grammar } => {
                    let compile =
                        |grammars: &mut WorkerGrammarCompiler| grammars.compile(number, grammar);
                    if let Some(answer) = self.grammars.as_mut().map(compile) {
                        let _ = send(channel, &answer, &[]);
                    }
                }
                ToWorker::ForgetGrammar { number } => {
                    self.grammars.iter().for_each(|forms| forms.forget(number));
                }
                ToWorker::CopyPage { number, batch, from, to, positions } => {
                    let copy = |copies: &PageCopies| copies.copy(batch, (from, to), positions);
                    self.copies.iter().for_each(copy);
                    let _ = send_short(channel, &FromWorker::PageCopied { number });
                }
                order @ (ToWorker::StorePage { .. } | ToWorker::FetchPages { .. }) => {
                    if let Some((transfers, _)) = &self.transfers {
                        transfers.push(order);
                    }
                }
                ToWorker::CancelFetch { number } => {
                    self.transfers.iter().for_each(|(orders, _)| orders.cancel_fetch(number));
                }
                // The coordinator has ended, which the lanes notice too.
                _ => return,
            }
        }
    }

    /// Waits up to [`CHECK_INTERVAL`] for a message or an answer; returns true if there is a
    /// message. Allocates nothing.
    fn wait(&self, channel: &Channel) -> bool {
        let slice = Timespec::try_from(CHECK_INTERVAL).unwrap_or_default();
        let wake = self.transfers.as_ref().map(|(orders, _)| orders.wake_descriptor());
        let channel = channel.as_fd();
        let wake = wake.as_ref().map_or(channel, |wake| wake.as_fd());
        let mut polled = [channel, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut polled, Some(&slice));
        !polled[0].revents().is_empty()
    }
}
