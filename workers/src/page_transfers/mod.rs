//! Orders to store and to fetch pages, passed from the thread that receives the coordinator's
//! messages to the thread that waits for files.
//!
//! A drive may take any time to answer, and a thread that waits for it cannot be woken. Therefore
//! an order can be withdrawn from that thread: it touches the pages of the caches only within
//! [`PageTransferQueue::copy`], which fails once another thread has answered the order.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prompt_cache::MemoryWithdrawn;
use protocol::messages::{FromWorker, ToWorker};
use rustix::event::{EventfdFlags, eventfd};

/// Maximum silence of the store while pages are read. After it, the waiting sequences compute the
/// pages.
pub(crate) const READ_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum silence while a page is written, for which no sequence waits.
pub(crate) const WRITE_SILENCE_MAX: Duration = Duration::from_secs(20);

/// Queue of orders and answers; see the module documentation.
#[derive(Debug)]
pub(crate) struct PageTransferQueue {
    state: Mutex<QueueState>,
    added: Condvar,
    /// Event descriptor that is readable if there are answers to send.
    wake: OwnedFd,
    read_silence_max: Duration,
    write_silence_max: Duration,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<ToWorker>,
    current: Option<CurrentTransfer>,
    answers: Vec<FromWorker>,
}

/// The order that is being executed.
#[derive(Debug)]
struct CurrentTransfer {
    number: u32,
    is_fetch: bool,
    /// Number of pages read, and of the bytes read from files.
    pages: u32,
    bytes: u64,
    last_progress: Instant,
    /// Set if a thread other than the executing one has answered the order.
    is_withdrawn: bool,
}

impl PageTransferQueue {
    /// Returns an empty queue.
    ///
    /// # Errors
    /// Returns an error if no descriptor is available.
    pub(crate) fn new() -> std::io::Result<PageTransferQueue> {
        Ok(PageTransferQueue {
            state: Mutex::default(),
            added: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            read_silence_max: READ_SILENCE_MAX,
            write_silence_max: WRITE_SILENCE_MAX,
        })
    }

    /// Enqueues an order. Fetches come before stores, since sequences wait for them.
    pub(crate) fn push(&self, order: ToWorker) {
        let mut state = self.lock();
        let is_store = |order: &ToWorker| matches!(order, ToWorker::StorePage { .. });
        let place = match is_store(&order) {
            true => None,
            false => state.waiting.iter().position(is_store),
        };
        let place = place.unwrap_or(state.waiting.len());
        state.waiting.insert(place, order);
        drop(state);
        self.added.notify_one();
    }

    /// Answers an order to fetch with the pages read so far, unless it has been answered.
    pub(crate) fn cancel_fetch(&self, number: u32) {
        let mut state = self.lock();
        let is_it = |order: &ToWorker| match order {
            ToWorker::FetchPages { number: other, .. } => *other == number,
            _ => false,
        };
        if let Some(place) = state.waiting.iter().position(is_it) {
            let order = state.waiting.remove(place);
            state.answers.extend(order.and_then(|order| unanswered(order, None)));
        } else if state.current.as_ref().is_some_and(|one| one.is_fetch && one.number == number) {
            state.withdraw(None);
        }
    }

    /// Gives up the orders for which the store has been silent for too long; the message names
    /// `directory`.
    pub(crate) fn expire(&self, directory: &std::path::Path) {
        let mut state = self.lock();
        let Some(current) = &state.current else { return };
        let silence = current.last_progress.elapsed();
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
            if gives_up_all || matches!(order, ToWorker::FetchPages { .. }) {
                state.answers.extend(unanswered(order, Some(&reason)));
            } else {
                state.waiting.push_back(order);
            }
        }
    }

    /// Takes the answers to send. Allocates nothing if there are none.
    pub(crate) fn take_answers(&self) -> Vec<FromWorker> {
        let mut woken = [0; 8];
        // The read fails if there is nothing to read, which is expected.
        let _ = rustix::io::read(&self.wake, &mut woken);
        std::mem::take(&mut self.lock().answers)
    }

    /// Returns a descriptor that is readable when there may be answers.
    pub(crate) fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Waits for the next order and makes it the current one.
    pub(crate) fn next(&self) -> ToWorker {
        let mut state = self.lock();
        loop {
            if let Some(order) = state.waiting.pop_front() {
                let (number, is_fetch) = match &order {
                    ToWorker::FetchPages { number, .. } => (*number, true),
                    ToWorker::StorePage { number, .. } => (*number, false),
                    _ => continue,
                };
                state.current = Some(CurrentTransfer {
                    number,
                    is_fetch,
                    pages: 0,
                    bytes: 0,
                    last_progress: Instant::now(),
                    is_withdrawn: false,
                });
                return order;
            }
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs `copy`, which copies between a page of the current order and private memory of the
    /// caller.
    ///
    /// # Errors
    /// Returns an error, without calling `copy`, if the order has been answered.
    pub(crate) fn copy(&self, copy: impl FnOnce()) -> Result<(), MemoryWithdrawn> {
        let mut state = self.lock();
        match &mut state.current {
            Some(current) if !current.is_withdrawn => {
                // Holding the lock prevents any other thread from answering meanwhile.
                copy();
                current.last_progress = Instant::now();
                Ok(())
            }
            _ => Err(MemoryWithdrawn),
        }
    }

    /// Records that a page of the current order was read from `bytes` bytes, and returns the
    /// numbers of pages and bytes read so far.
    pub(crate) fn page_done(&self, bytes: u64) -> (u32, u64) {
        let mut state = self.lock();
        let Some(current) = &mut state.current else { return (0, 0) };
        if !current.is_withdrawn {
            current.pages += 1;
            current.bytes += bytes;
            current.last_progress = Instant::now();
        }
        (current.pages, current.bytes)
    }

    /// Completes the current order; `answer` is sent unless the order has been answered.
    pub(crate) fn finish(&self, answer: FromWorker) {
        let mut state = self.lock();
        let current = state.current.take();
        if current.is_some_and(|current| !current.is_withdrawn) {
            state.answers.push(answer);
        }
        drop(state);
        // The write fails only if the counter is full, in which case the descriptor is readable
        // already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Answers the current order, which touches no page from now on.
    fn withdraw(&mut self, reason: Option<&str>) {
        let Some(current) = &mut self.current else { return };
        if std::mem::replace(&mut current.is_withdrawn, true) {
            return;
        }
        let (number, pages, bytes) = (current.number, current.pages, current.bytes);
        let (refused, is_silent) = (reason.map(str::to_owned), reason.is_some());
        self.answers.push(match current.is_fetch {
            true => FromWorker::PagesFetched { number, pages, bytes, refused, is_silent },
            false => FromWorker::PageStored { number, bytes: 0, failure: refused },
        });
    }
}

/// Returns the answer to an order that was not begun.
fn unanswered(order: ToWorker, reason: Option<&str>) -> Option<FromWorker> {
    let (reason, is_silent) = (reason.map(str::to_owned), reason.is_some());
    match order {
        ToWorker::FetchPages { number, .. } => {
            let refused = reason;
            Some(FromWorker::PagesFetched { number, pages: 0, bytes: 0, refused, is_silent })
        }
        ToWorker::StorePage { number, .. } => {
            Some(FromWorker::PageStored { number, bytes: 0, failure: reason })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
