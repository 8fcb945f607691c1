//! Lookups of stored pages, on a thread of their own: a drive may take arbitrarily long to answer,
//! and the engine's thread must not wait for it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use prompt_cache::{PageHash, PageStore};

/// Maximum number of lookups that wait for the drive; further ones are rejected.
const QUEUED_LOOKUPS_MAX: usize = 256;

/// Lookups in a prompt store. The thread ends after this value is dropped, once the drive answers.
#[derive(Debug)]
pub(super) struct StoreLookups {
    requests: SyncSender<(u32, Vec<PageHash>)>,
    results: Receiver<(u32, usize)>,
    /// Number of lookups without an answer.
    pending: usize,
}

impl StoreLookups {
    /// Starts the thread. If `needs_checkpoints`, only pages up to one with a checkpoint count.
    ///
    /// # Errors
    /// A thread that the system refuses.
    pub(super) fn start(
        store: Arc<PageStore>,
        needs_checkpoints: bool,
    ) -> io::Result<StoreLookups> {
        StoreLookups::with_predicate(move |name| store.contains(name), needs_checkpoints)
    }

    fn with_predicate(
        has: impl Fn(&PageHash) -> bool + Send + 'static,
        needs_checkpoints: bool,
    ) -> io::Result<StoreLookups> {
        let (requests, queue) = sync_channel::<(u32, Vec<PageHash>)>(QUEUED_LOOKUPS_MAX);
        let (answers, results) = channel();
        let look = move || {
            for (number, names) in queue {
                let stored = names.iter().take_while(|name| has(name)).enumerate();
                let ends = stored.filter(|(_, name)| !needs_checkpoints || has(&name.checkpoint()));
                let count = ends.last().map_or(0, |(index, _)| index + 1);
                if answers.send((number, count)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("prompt lookups".to_owned()).spawn(look)?;
        Ok(StoreLookups { requests, results, pending: 0 })
    }

    /// Requests the number of these pages that are stored, up to the first that is not. Returns
    /// false if too many lookups are pending.
    pub(super) fn try_start(&mut self, number: u32, names: Vec<PageHash>) -> bool {
        let is_started = self.requests.try_send((number, names)).is_ok();
        self.pending += usize::from(is_started);
        is_started
    }

    /// Returns true if a lookup has not been answered yet.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Returns the numbers of the lookups that were answered since the last call, with their counts
    /// of pages. Waits at most `wait` for the first.
    pub(super) fn take_results(&mut self, wait: Duration) -> Vec<(u32, usize)> {
        let first = match wait.is_zero() {
            true => None,
            false => self.results.recv_timeout(wait).ok(),
        };
        let found: Vec<_> = first.into_iter().chain(self.results.try_iter()).collect();
        self.pending -= found.len();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_does_not_answer_holds_nobody_up() {
        let name: PageHash = "07".repeat(32).parse().expect("a name");
        let (answer, answers) = channel::<bool>();
        let answers = std::sync::Mutex::new(answers);
        let has = move |_: &PageHash| answers.lock().expect("held").recv().unwrap_or(false);
        let mut lookups = StoreLookups::with_predicate(has, false).expect("a thread");
        assert!(lookups.try_start(1, vec![name; 3]));
        assert_eq!(lookups.take_results(Duration::from_millis(1)), []);
        let taken = (2..1000).filter(|number| lookups.try_start(*number, vec![name])).count();
        assert!(taken <= QUEUED_LOOKUPS_MAX + 1, "{taken} are kept");
        for is_there in [true, true, false] {
            answer.send(is_there).expect("it waits");
        }
        assert_eq!(lookups.take_results(Duration::from_secs(60)), [(1, 2)]);
    }

    #[test]
    fn pages_count_up_to_the_last_one_with_a_checkpoint() {
        let first: PageHash = "07".repeat(32).parse().expect("a name");
        let names: Vec<PageHash> = (0..5).map(|token| first.child(&[token])).collect();
        for (checkpoints, count) in [(vec![1, 2], 3), (vec![0, 4], 1), (vec![], 0)] {
            let pages = names[..4].iter().copied();
            let ends = checkpoints.iter().map(|index: &usize| names[*index].checkpoint());
            let stored: Vec<PageHash> = pages.chain(ends).collect();
            let has = move |name: &PageHash| stored.contains(name);
            let mut lookups = StoreLookups::with_predicate(has, true).expect("a thread");
            assert!(lookups.try_start(1, names.clone()));
            assert_eq!(lookups.take_results(Duration::from_secs(60)), [(1, count)]);
        }
    }
}
