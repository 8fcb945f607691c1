//! File descriptors of a server: lost workers must be replaced even if connections have taken all
//! descriptors that the system grants.

use std::fs::File;

use rustix::process::{Resource, getrlimit};

/// Descriptors that a server needs in addition to its connections: workers and their memory,
/// tokenizer processes, files of the prompt cache, sockets of its own.
const SERVER_DESCRIPTORS_MAX: u64 = 128;
/// Maximum number of descriptors reserved for a launch: for each worker both ends of a channel, a
/// pipe and the program's file, and shared memory.
const LAUNCH_DESCRIPTORS_MAX: usize = 48;
/// Inverse of the maximum share of all permitted descriptors that is reserved for a launch.
const LAUNCH_DIVISOR: u64 = 8;

/// Returns the maximum number of connections of a server that the limit on descriptors permits.
pub fn max_connections() -> usize {
    usize::try_from(connections_within(descriptor_limit())).unwrap_or(usize::MAX)
}

fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the maximum number of connections under a limit. If the limit is low, half of it is kept
/// for the server itself.
fn connections_within(limit: u64) -> u64 {
    (limit - SERVER_DESCRIPTORS_MAX.min(limit / 2)).max(1)
}

/// Descriptors that are kept open so that nothing else takes them.
#[derive(Debug, Default)]
pub(super) struct DescriptorReserve(Vec<File>);

impl DescriptorReserve {
    /// Opens as many descriptors as a launch needs, or as many as there are.
    pub(super) fn take() -> DescriptorReserve {
        let null = || File::open("/dev/null").ok();
        let count = usize::try_from(descriptor_limit() / LAUNCH_DIVISOR)
            .unwrap_or(LAUNCH_DESCRIPTORS_MAX)
            .min(LAUNCH_DESCRIPTORS_MAX);
        DescriptorReserve(std::iter::from_fn(null).take(count).collect())
    }

    /// Makes the descriptors available.
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
        assert_eq!(limits.map(connections_within), expected);
        assert!(max_connections() > 0);
    }

    #[test]
    fn a_reserve_is_held_until_it_is_released() {
        let mut reserve = DescriptorReserve::take();
        assert!(!reserve.0.is_empty() && reserve.0.len() <= LAUNCH_DESCRIPTORS_MAX);
        reserve.release();
        assert!(reserve.0.is_empty());
    }
}
