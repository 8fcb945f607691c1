//! Background tasks of a worker while a run serves: compiling the grammars of answers, copying
//! pages of caches, restoring checkpoints, storing and fetching prompt prefixes, and faulting in
//! large caches.
//!
//! Each kind of task has its own thread, so that none waits for another and no step waits for any.
//! All yield the processor to steps, except copies in memory, which steps wait for. The thread that
//! stores and fetches may wait for a drive that does not answer; no other thread waits for it, not
//! even at the end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use protocol::messages::{FromWorker, ToWorker};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use shm::channel::MESSAGE_BYTES_MAX;
use shm::{Channel, Timeline};

use crate::checkpoint_copies::CheckpointCopies;
use crate::grammar_compiler::WorkerGrammarCompiler;
use crate::grammar_orders::{
    GrammarOrder, GrammarOrderReceiver, GrammarOrderSender, grammar_orders,
};
use crate::memory::Memories;
use crate::messages::{receive_into, send, send_short};
use crate::page_copies::PageCopies;
use crate::page_transfers::PageTransferQueue;
use crate::prefix_transfers::PrefixTransfers;

/// Interval between checks whether the lanes have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Nice value of the thread that stores and fetches, from 0, as for all other threads, to 19.
const STORE_NICE: i32 = 10;
/// Nice value of the thread that compiles grammars: a third of the processor time of a thread of
/// steps if there are too few cores.
const GRAMMAR_NICE: i32 = 5;
/// Nice value of the thread that faults in the caches.
const POPULATE_NICE: i32 = 19;

/// Background tasks of a worker.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTasks {
    /// Present if the worker samples.
    pub(crate) grammars: Option<WorkerGrammarCompiler>,
    /// Present if the worker keeps the caches in pages.
    pub(crate) copies: Option<PageCopies>,
    /// Present if checkpoints of sequences are taken.
    pub(crate) checkpoints: Option<CheckpointCopies>,
    /// Present if these pages are stored.
    pub(crate) prefixes: Option<PrefixTransfers>,
    /// Present if the worker faults in its caches: many sequences that begin or grow at the same
    /// time would otherwise wait for the system to clear their pages in one step.
    pub(crate) caches: Option<Arc<Memories>>,
}

/// Name and body of a background thread, which runs until the given number of lanes have ended, as
/// counted by a timeline.
pub(crate) type BackgroundThread = (&'static str, Box<dyn FnOnce(&Channel, &Timeline, u32) + Send>);

/// State of the thread that receives the coordinator's messages.
struct MessageLoop {
    grammars: Option<GrammarOrderSender>,
    copies: Option<PageCopies>,
    checkpoints: Option<CheckpointCopies>,
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
        let BackgroundTasks { grammars, copies, checkpoints, prefixes, caches } = self;
        let mut threads: Vec<BackgroundThread> = Vec::new();
        if let Some(memories) = caches {
            let populate = move |_: &Channel, ended: &Timeline, lanes| {
                yield_to_steps(POPULATE_NICE);
                memories.populate_large_caches(|| ended.value() >= lanes);
            };
            threads.push(("populate", Box::new(populate)));
        }
        let has_copies = copies.is_some() || checkpoints.is_some();
        if grammars.is_none() && !has_copies && prefixes.is_none() {
            return Ok(threads);
        }
        let transfers = match prefixes {
            Some(prefixes) => {
                let transfers =
                    (Arc::clone(prefixes.transfers()), prefixes.directory().to_path_buf());
                let store = move || {
                    yield_to_steps(STORE_NICE);
                    prefixes.run()
                };
                std::thread::Builder::new().name("prompts".to_owned()).spawn(store)?;
                Some(transfers)
            }
            None => None,
        };
        let grammars = grammars.map(|compiler| {
            let (orders, received) = grammar_orders();
            let compile = move |channel: &Channel, _: &Timeline, _| {
                yield_to_steps(GRAMMAR_NICE);
                compile_grammars(compiler, &received, channel);
            };
            threads.push(("grammars", Box::new(compile)));
            orders
        });
        let buffer = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let message_loop = MessageLoop { grammars, copies, checkpoints, transfers, buffer };
        let run = move |channel: &Channel, ended: &Timeline, lanes| {
            message_loop.run(channel, ended, lanes);
        };
        threads.push(("errands", Box::new(run)));
        Ok(threads)
    }
}

/// Gives the calling thread a lower priority than the threads of steps. A system that refuses this
/// schedules all threads equally.
fn yield_to_steps(nice: i32) {
    let _ = rustix::process::setpriority_process(None, nice);
}

/// Executes orders until the thread that sends them has ended.
fn compile_grammars(
    mut compiler: WorkerGrammarCompiler,
    orders: &GrammarOrderReceiver,
    channel: &Channel,
) {
    while let Some(order) = orders.receive() {
        match order {
            GrammarOrder::Compile { number, grammar } => {
                let _ = send(channel, &compiler.compile(number, grammar), &[]);
            }
            GrammarOrder::Forget { number } => compiler.forget(number),
        }
    }
}

impl MessageLoop {
    /// Handles messages of the coordinator until `lanes` lanes have ended, counted by `ended`, or
    /// the channel is closed.
    fn run(mut self, channel: &Channel, ended: &Timeline, lanes: u32) {
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
                    self.order(GrammarOrder::Compile { number, grammar });
                }
                ToWorker::ForgetGrammar { number } => self.order(GrammarOrder::Forget { number }),
                ToWorker::CopyPage { number, batch, from, to, positions } => {
                    let copy = |copies: &PageCopies| copies.copy(batch, from, to, positions);
                    self.copies.iter().for_each(copy);
                    let _ = send_short(channel, &FromWorker::PageCopied { number });
                }
                ToWorker::RestoreCheckpoint { number, batch, checkpoint, slot } => {
                    let restore =
                        |copies: &CheckpointCopies| copies.restore(batch, checkpoint, slot);
                    self.checkpoints.iter().for_each(restore);
                    let _ = send_short(channel, &FromWorker::CheckpointRestored { number });
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

    /// Passes an order on to the thread that compiles grammars, if this worker has one.
    fn order(&self, order: GrammarOrder) {
        if let Some(orders) = &self.grammars {
            orders.send(order);
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
