//! What a worker does beside its lanes while a run serves: it compiles forms of answers, and stores
//! and fetches beginnings of prompts. Two threads, so that neither waits for the other and no step
//! for either.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use shm::{Channel, Timeline};

use crate::forms::FormCompiler;
use crate::messages::{receive, send};
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
    /// Where it keeps the caches, and they are stored.
    pub(crate) prompts: Option<Prompts>,
}

/// What a thread beside the lanes does until so many of them have ended, and its name.
pub(crate) type Errand = (&'static str, Box<dyn FnOnce(&Channel, (&Timeline, u32)) + Send>);

/// The thread that hears what the coordinator wants.
struct Hearing {
    forms: Option<FormCompiler>,
    orders: Option<Sender<ToWorker>>,
}

/// The thread that stores and fetches.
struct Storing {
    prompts: Prompts,
    orders: Receiver<ToWorker>,
}

impl Errands {
    /// The threads that there is something to do for.
    pub(crate) fn threads(self) -> Vec<Errand> {
        let Errands { forms, prompts } = self;
        if forms.is_none() && prompts.is_none() {
            return Vec::new();
        }
        let (sender, orders) = channel();
        let hearing = Hearing { forms, orders: prompts.is_some().then_some(sender) };
        let mut threads: Vec<Errand> =
            vec![("errands", Box::new(move |channel, lanes| hearing.run(channel, lanes)))];
        if let Some(prompts) = prompts {
            let storing = Storing { prompts, orders };
            threads.push(("prompts", Box::new(move |channel, _| storing.run(channel))));
        }
        threads
    }
}

impl Hearing {
    /// Does what the coordinator sends until `lanes` lanes have ended, which `ended` counts, or the
    /// channel has.
    fn run(mut self, channel: &Channel, (ended, lanes): (&Timeline, u32)) {
        while ended.value() < lanes {
            if !is_readable(channel) {
                continue;
            }
            let Ok((message, _)) = receive(channel) else { return };
            let answer = match message {
                ToWorker::Form { number, form } => {
                    let compile = |forms: &mut FormCompiler| forms.compile(number, form);
                    self.forms.as_mut().map(compile)
                }
                ToWorker::Forget { number } => {
                    self.forms.iter().for_each(|forms| forms.forget(number));
                    None
                }
                order @ (ToWorker::Store { .. } | ToWorker::Fetch { .. }) => {
                    if let Some(orders) = &self.orders {
                        // Who stores ends with this thread.
                        let _ = orders.send(order);
                    }
                    None
                }
                // The coordinator has ended, which the lanes see too.
                _ => return,
            };
            if let Some(answer) = answer {
                let _ = send(channel, &answer, &[]);
            }
        }
    }
}

impl Storing {
    /// Does what was ordered until nobody orders any more.
    fn run(mut self, channel: &Channel) {
        // Steps go first. A system that refuses it shares the cores out evenly.
        let _ = rustix::process::setpriority_process(None, BEHIND_STEPS);
        for order in self.orders {
            let answer: Option<FromWorker> = self.prompts.carry_out(order);
            if let Some(answer) = answer {
                let _ = send(channel, &answer, &[]);
            }
        }
    }
}

/// Waits a little for a message. Allocates nothing.
fn is_readable(channel: &Channel) -> bool {
    let slice = Timespec::try_from(SLICE).unwrap_or_default();
    let mut polled = [PollFd::new(channel, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&slice)), Ok(1..))
}
