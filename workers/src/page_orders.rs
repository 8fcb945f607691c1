//! Orders to store and to fetch pages, between the thread that hears the coordinator and the one
//! that waits for files.
//!
//! A drive may not answer for as long as it likes, and a thread that waits for it cannot be woken.
//! So an order can be taken back from that thread: it touches the pages of the caches only within
//! [`PageOrders::copy`], which refuses once the order was answered by somebody else.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prompt_store::Withdrawn;
use rustix::event::{EventfdFlags, eventfd};

use crate::shared::protocol::{FromWorker, ToWorker};

/// Longest silence of the store while pages are read: who waits for them computes them then.
pub(crate) const READ_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Longest silence while a page is written, for which nobody waits.
pub(crate) const WRITE_SILENCE_MAX: Duration = Duration::from_secs(20);

/// See the module header.
#[derive(Debug)]
pub(crate) struct PageOrders {
    state: Mutex<State>,
    added: Condvar,
    /// Readable when there are answers to send.
    wake: OwnedFd,
    read_silence_max: Duration,
    write_silence_max: Duration,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<ToWorker>,
    current: Option<Current>,
    answers: Vec<FromWorker>,
}

/// The order that is being carried out.
#[derive(Debug)]
struct Current {
    number: u32,
    is_fetch: bool,
    /// Pages that were read, and their bytes in files.
    pages: u32,
    bytes: u64,
    progressed: Instant,
    /// It was answered by another thread than that which carries it out.
    is_withdrawn: bool,
}

impl PageOrders {
    /// None yet.
    ///
    /// # Errors
    /// No descriptor left.
    pub(crate) fn new() -> std::io::Result<PageOrders> {
        Ok(PageOrders {
            state: Mutex::default(),
            added: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            read_silence_max: READ_SILENCE_MAX,
            write_silence_max: WRITE_SILENCE_MAX,
        })
    }

    /// Orders behind others, those to fetch before those to store: sequences wait for them.
    pub(crate) fn push(&self, order: ToWorker) {
        let mut state = self.lock();
        let is_store = |order: &ToWorker| matches!(order, ToWorker::Store { .. });
        let place = match is_store(&order) {
            true => None,
            false => state.waiting.iter().position(is_store),
        };
        let place = place.unwrap_or(state.waiting.len());
        state.waiting.insert(place, order);
        drop(state);
        self.added.notify_one();
    }

    /// Answers an order to fetch with what was read by now, unless it was answered.
    pub(crate) fn give_up(&self, number: u32) {
        let mut state = self.lock();
        let is_it = |order: &ToWorker| match order {
            ToWorker::Fetch { number: other, .. } => *other == number,
            _ => false,
        };
        if let Some(place) = state.waiting.iter().position(is_it) {
            let order = state.waiting.remove(place);
            state.answers.extend(order.and_then(|order| unanswered(order, None)));
        } else if state.current.as_ref().is_some_and(|one| one.is_fetch && one.number == number) {
            state.withdraw(None);
        }
    }

    /// Gives up what the store has been silent for too long for, `directory` in its sentence.
    pub(crate) fn expire(&self, directory: &std::path::Path) {
        let mut state = self.lock();
        let Some(current) = &state.current else { return };
        let silence = current.progressed.elapsed();
        if silence <= self.read_silence_max {
            return;
        }
        let gives_up_all = silence > self.write_silence_max || current.is_fetch;
        let reason = format!(
            "the prompt store {} has not answered for {} s",
            directory.display(),
            silence.as_secs()
        );
        if gives_up_all {
            state.withdraw(Some(&reason));
        }
        for order in std::mem::take(&mut state.waiting) {
            if gives_up_all || matches!(order, ToWorker::Fetch { .. }) {
                state.answers.extend(unanswered(order, Some(&reason)));
            } else {
                state.waiting.push_back(order);
            }
        }
    }

    /// What is to be sent. Allocates nothing where there is nothing.
    pub(crate) fn answers(&self) -> Vec<FromWorker> {
        let mut woken = [0; 8];
        // Nothing to read: nobody has woken.
        let _ = rustix::io::read(&self.wake, &mut woken);
        std::mem::take(&mut self.lock().answers)
    }

    /// Readable when there may be answers.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Waits for the next order, which is the current one from now on.
    pub(crate) fn next(&self) -> ToWorker {
        let mut state = self.lock();
        loop {
            if let Some(order) = state.waiting.pop_front() {
                let (number, is_fetch) = match &order {
                    ToWorker::Fetch { number, .. } => (*number, true),
                    ToWorker::Store { number, .. } => (*number, false),
                    _ => continue,
                };
                state.current = Some(Current {
                    number,
                    is_fetch,
                    pages: 0,
                    bytes: 0,
                    progressed: Instant::now(),
                    is_withdrawn: false,
                });
                return order;
            }
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies between a page of the current order and memory of the caller's own.
    ///
    /// # Errors
    /// The order was answered: `copy` is not called.
    pub(crate) fn copy(&self, copy: impl FnOnce()) -> Result<(), Withdrawn> {
        let mut state = self.lock();
        match &mut state.current {
            Some(current) if !current.is_withdrawn => {
                // Under the lock, so that nobody answers meanwhile.
                copy();
                current.progressed = Instant::now();
                Ok(())
            }
            _ => Err(Withdrawn),
        }
    }

    /// A page of the current order was read from so many bytes; the pages that were by now, and the
    /// bytes of all.
    pub(crate) fn page_done(&self, bytes: u64) -> (u32, u64) {
        let mut state = self.lock();
        let Some(current) = &mut state.current else { return (0, 0) };
        if !current.is_withdrawn {
            current.pages += 1;
            current.bytes += bytes;
            current.progressed = Instant::now();
        }
        (current.pages, current.bytes)
    }

    /// The current order is carried out; `answer` is sent unless it was answered.
    pub(crate) fn finish(&self, answer: FromWorker) {
        let mut state = self.lock();
        let current = state.current.take();
        if current.is_some_and(|current| !current.is_withdrawn) {
            state.answers.push(answer);
        }
        drop(state);
        // Full means that there is something to read.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Answers the current order, which from now on touches no page.
    fn withdraw(&mut self, reason: Option<&str>) {
        let Some(current) = &mut self.current else { return };
        if std::mem::replace(&mut current.is_withdrawn, true) {
            return;
        }
        let (number, pages, bytes) = (current.number, current.pages, current.bytes);
        let (refused, is_silent) = (reason.map(str::to_owned), reason.is_some());
        self.answers.push(match current.is_fetch {
            true => FromWorker::Fetched { number, pages, bytes, refused, is_silent },
            false => FromWorker::Stored { number, bytes: 0, failure: refused },
        });
    }
}

/// The answer to an order that was not begun.
fn unanswered(order: ToWorker, reason: Option<&str>) -> Option<FromWorker> {
    let (reason, is_silent) = (reason.map(str::to_owned), reason.is_some());
    match order {
        ToWorker::Fetch { number, .. } => {
            let refused = reason;
            Some(FromWorker::Fetched { number, pages: 0, bytes: 0, refused, is_silent })
        }
        ToWorker::Store { number, .. } => {
            Some(FromWorker::Stored { number, bytes: 0, failure: reason })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
