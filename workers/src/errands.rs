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

use crate::forms::FormCompiler;
use crate::messages::{receive_into, send, send_short};
use crate::page_copies::PageCopies;
use crate::page_orders::PageOrders;
use crate::prompts::Prompts;
use crate::shared::protocol::{FromWorker, ToWorker};

/// Interval between checks whether the lanes have ended.
const SLICE: Duration = Duration::from_millis(200);
/// Nice value of the thread that stores and fetches, from 0, as for all other threads, to 19.
const BEHIND_STEPS: i32 = 10;

/// Background tasks of a worker.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    /// Present if the worker samples.
    pub(crate) forms: Option<FormCompiler>,
    /// Present if the worker keeps the caches in pages.
    pub(crate) copies: Option<PageCopies>,
    /// Present if these pages are stored.
    pub(crate) prompts: Option<Prompts>,
}

/// Name and body of a background thread, which runs until the given number of lanes have ended.
pub(crate) type Errand = (&'static str, Box<dyn FnOnce(&Channel, (&Timeline, u32)) + Send>);

/// State of the thread that receives the coordinator's messages.
struct Hearing {
    forms: Option<FormCompiler>,
    copies: Option<PageCopies>,
    /// Orders for the thread that stores and fetches, and the directory of the store.
    orders: Option<(Arc<PageOrders>, std::path::PathBuf)>,
    buffer: Vec<u8>,
}

impl Errands {
    /// Returns the threads that have something to do, and starts the thread that stores and
    /// fetches, which is not among them.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub(crate) fn threads(self) -> std::io::Result<Vec<Errand>> {
        let Errands { forms, copies, prompts } = self;
        if forms.is_none() && copies.is_none() && prompts.is_none() {
            return Ok(Vec::new());
        }
        let orders = match prompts {
            Some(prompts) => {
                let orders = (Arc::clone(prompts.orders()), prompts.directory().to_path_buf());
                let store = move || {
                    // Steps have priority. A system that refuses this schedules all threads
                    // equally.
                    let _ = rustix::process::setpriority_process(None, BEHIND_STEPS);
                    prompts.run()
                };
                std::thread::Builder::new().name("prompts".to_owned()).spawn(store)?;
                Some(orders)
            }
            None => None,
        };
        let buffer = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let hearing = Hearing { forms, copies, orders, buffer };
        let run: Errand = ("errands", Box::new(move |channel, lanes| hearing.run(channel, lanes)));
        Ok(vec![run])
    }
}

impl Hearing {
    /// Handles messages of the coordinator until `lanes` lanes have ended, counted by `ended`, or
    /// the channel is closed.
    fn run(mut self, channel: &Channel, (ended, lanes): (&Timeline, u32)) {
        while ended.value() < lanes {
            if let Some((orders, directory)) = &self.orders {
                orders.expire(directory);
                for answer in orders.answers() {
                    let _ = send(channel, &answer, &[]);
                }
            }
            if !self.wait(channel) {
                continue;
            }
            let Ok(message) = receive_into(channel, &mut self.buffer) else { return };
            match message {
                ToWorker::Form { number, form } => {
                    let compile = |forms: &mut FormCompiler| forms.compile(number, form);
                    if let Some(answer) = self.forms.as_mut().map(compile) {
                        let _ = send(channel, &answer, &[]);
                    }
                }
                ToWorker::Forget { number } => {
                    self.forms.iter().for_each(|forms| forms.forget(number));
                }
                ToWorker::CopyPage { number, batch, from, to, positions } => {
                    let copy = |copies: &PageCopies| copies.copy(batch, (from, to), positions);
                    self.copies.iter().for_each(copy);
                    let _ = send_short(channel, &FromWorker::Copied { number });
                }
                order @ (ToWorker::Store { .. } | ToWorker::Fetch { .. }) => {
                    if let Some((orders, _)) = &self.orders {
                        orders.push(order);
                    }
                }
                ToWorker::GiveUp { number } => {
                    self.orders.iter().for_each(|(orders, _)| orders.give_up(number));
                }
                // The coordinator has ended, which the lanes notice too.
                _ => return,
            }
        }
    }

    /// Waits up to [`SLICE`] for a message or an answer; returns true if there is a message.
    /// Allocates nothing.
    fn wait(&self, channel: &Channel) -> bool {
        let slice = Timespec::try_from(SLICE).unwrap_or_default();
        let wake = self.orders.as_ref().map(|(orders, _)| orders.wake());
        let channel = channel.as_fd();
        let wake = wake.as_ref().map_or(channel, |wake| wake.as_fd());
        let mut polled = [channel, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut polled, Some(&slice));
        !polled[0].revents().is_empty()
    }
}
