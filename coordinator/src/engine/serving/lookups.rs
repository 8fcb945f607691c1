//! Which pages are stored, found out by a thread of its own: a drive may not answer for as long as
//! it likes, and the engine's thread has others to care for.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use prompt_store::{Name, Store};

/// Questions that wait for the drive: more are not asked.
const ASKED_MAX: usize = 256;

/// See the module header. The thread ends with this value, once the drive lets it.
#[derive(Debug)]
pub(super) struct Lookups {
    asked: SyncSender<(u32, Vec<Name>)>,
    found: Receiver<(u32, usize)>,
    /// Questions that are not answered.
    pending: usize,
}

impl Lookups {
    /// # Errors
    /// A thread that the system refuses.
    pub(super) fn start(store: Arc<Store>) -> io::Result<Lookups> {
        Lookups::with(move |name| store.has(name))
    }

    fn with(has: impl Fn(&Name) -> bool + Send + 'static) -> io::Result<Lookups> {
        let (asked, questions) = sync_channel::<(u32, Vec<Name>)>(ASKED_MAX);
        let (answers, found) = channel();
        let look = move || {
            for (number, names) in questions {
                let count = names.iter().take_while(|name| has(name)).count();
                if answers.send((number, count)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("prompt lookups".to_owned()).spawn(look)?;
        Ok(Lookups { asked, found, pending: 0 })
    }

    /// Asks how many of these pages are stored, up to the first that is not; false: too much is
    /// asked already.
    pub(super) fn ask(&mut self, number: u32, names: Vec<Name>) -> bool {
        let is_asked = self.asked.try_send((number, names)).is_ok();
        self.pending += usize::from(is_asked);
        is_asked
    }

    /// Whether a question is not answered yet.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// What was found out since, after waiting at most so long for the first.
    pub(super) fn found(&mut self, wait: Duration) -> Vec<(u32, usize)> {
        let first = match wait.is_zero() {
            true => None,
            false => self.found.recv_timeout(wait).ok(),
        };
        let found: Vec<_> = first.into_iter().chain(self.found.try_iter()).collect();
        self.pending -= found.len();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_does_not_answer_holds_nobody_up() {
        let name: Name = "07".repeat(32).parse().expect("a name");
        let (answer, answers) = channel::<bool>();
        let answers = std::sync::Mutex::new(answers);
        let has = move |_: &Name| answers.lock().expect("held").recv().unwrap_or(false);
        let mut lookups = Lookups::with(has).expect("a thread");
        assert!(lookups.ask(1, vec![name; 3]));
        assert_eq!(lookups.found(Duration::from_millis(1)), []);
        let taken = (2..1000).filter(|number| lookups.ask(*number, vec![name])).count();
        assert!(taken <= ASKED_MAX + 1, "{taken} are kept");
        for is_there in [true, true, false] {
            answer.send(is_there).expect("it waits");
        }
        assert_eq!(lookups.found(Duration::from_secs(60)), [(1, 2)]);
    }
}
