//! Descriptors of a server: workers that are lost must be replaced although connections have taken
//! all that the system gives.

use std::fs::File;

use rustix::process::{Resource, getrlimit};

/// Descriptors that a server needs beside its connections: workers and their memory, tokenizer
/// processes, files of the prompt cache, sockets of its own.
const SERVER_MAX: u64 = 128;
/// Descriptors that are held back for a launch: for each worker both ends of a channel, a pipe and
/// the program's file, and memory that is shared. At most an eighth of all that there may be.
const LAUNCH_MAX: usize = 48;
const LAUNCH_PART: u64 = 8;

/// Most connections of a server for which the limit on descriptors leaves room.
pub fn connections_max() -> usize {
    usize::try_from(connections_of(limit())).unwrap_or(usize::MAX)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The same under a limit: at least half of it is the server's own where it is low.
fn connections_of(limit: u64) -> u64 {
    (limit - SERVER_MAX.min(limit / 2)).max(1)
}

/// Descriptors that are held so that nobody else takes them.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<File>);

impl Reserve {
    /// As many as a launch needs, or as there are.
    pub(super) fn take() -> Reserve {
        let null = || File::open("/dev/null").ok();
        let count = usize::try_from(limit() / LAUNCH_PART).unwrap_or(LAUNCH_MAX).min(LAUNCH_MAX);
        Reserve(std::iter::from_fn(null).take(count).collect())
    }

    /// Lets them be used.
    pub(super) fn release(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_the_server() {
        let limits = [0, 1, 64, 256, 1024, 1 << 20];
        let expected = [1, 1, 32, 128, 896, (1 << 20) - 128];
        assert_eq!(limits.map(connections_of), expected);
        assert!(connections_max() > 0);
    }

    #[test]
    fn a_reserve_is_held_until_it_is_released() {
        let mut reserve = Reserve::take();
        assert!(!reserve.0.is_empty() && reserve.0.len() <= LAUNCH_MAX);
        reserve.release();
        assert!(reserve.0.is_empty());
    }
}
