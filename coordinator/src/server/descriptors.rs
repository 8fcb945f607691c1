//! How many connections the system's limit on descriptors leaves room for.

use rustix::process::{Resource, getrlimit};

/// Descriptors that connections leave to workers that are started again, tokenizers and files.
const RESERVED: u64 = 64;
/// Connections that there may be however few descriptors there are.
const MIN_CONNECTIONS: u64 = 8;

/// Returns how many connections there may be beside what is open now.
pub fn most_connections() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    let left = limit.saturating_sub(open + RESERVED).max(MIN_CONNECTIONS);
    usize::try_from(left).unwrap_or(usize::MAX)
}
