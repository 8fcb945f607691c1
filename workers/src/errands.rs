//! What a worker does beside its lanes while a run serves: it compiles forms of answers, copies
//! pages of caches, and stores and fetches beginnings of prompts.
//!
//! Two threads, so that neither waits for the other and no step for either. The one that stores and
//! fetches may wait for a drive that does not answer: nobody waits for that thread, not even at the
//! end.

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

/// Between two looks at whether the lanes have ended.
const SLICE: Duration = Duration::from_millis(200);
/// How nice the thread is that stores and fetches, from 0, as all others, to 19.
const BEHIND_STEPS: i32 = 10;

/// What a worker can do beside its lanes.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    /// Where the worker samples.
    pub(crate) forms: Option<FormCompiler>,
    /// Where it keeps the caches, in pages.
    pub(crate) copies: Option<PageCopies>,
    /// Where these are stored.
    pub(crate) prompts: Option<Prompts>,
}

/// What a thread beside the lanes does until so many of them have ended, and its name.
pub(crate) type Errand = (&'static str, Box<dyn FnOnce(&Channel, (&Timeline, u32)) + Send>);

/// The thread that hears what the coordinator wants.
struct Hearing {
    forms: Option<FormCompiler>,
    copies: Option<PageCopies>,
    /// The orders of the thread that stores and fetches, and the folder of the store.
    orders: Option<(Arc<PageOrders>, std::path::PathBuf)>,
    buffer: Vec<u8>,
}

impl Errands {
    /// The threads that there is something to do for, but for the one that stores and fetches,
    /// which is started.
    ///
    /// # Errors
    /// A thread that the system refuses.
    pub(crate) fn threads(self) -> std::io::Result<Vec<Errand>> {
        let Errands { forms, copies, prompts } = self;
        if forms.is_none() && copies.is_none() && prompts.is_none() {
            return Ok(Vec::new());
        }
        let orders = match prompts {
            Some(prompts) => {
                let orders = (Arc::clone(prompts.orders()), prompts.directory().to_path_buf());
                let store = move || {
                    // Steps go first. A system that refuses it shares the cores out evenly.
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
    /// Does what the coordinator sends until `lanes` lanes have ended, which `ended` counts, or the
    /// channel has.
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
                // The coordinator has ended, which the lanes see too.
                _ => return,
            }
        }
    }

    /// Waits a little for a message or an answer; whether there is a message. Allocates nothing.
    fn wait(&self, channel: &Channel) -> bool {
        let slice = Timespec::try_from(SLICE).unwrap_or_default();
        let channel = PollFd::new(channel, PollFlags::IN);
        let woken = match &self.orders {
            Some((orders, _)) => {
                let wake = orders.wake();
                let mut polled = [channel, PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
                let _ = poll(&mut polled, Some(&slice));
                polled[0].revents()
            }
            None => {
                let mut polled = [channel];
                let _ = poll(&mut polled, Some(&slice));
                polled[0].revents()
            }
        };
        !woken.is_empty()
    }
}
