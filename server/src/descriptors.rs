//! Maximum number of connections under the system's limit on file descriptors.

use rustix::process::{Resource, getrlimit};

/// Descriptors that are reserved for restarted workers, tokenizers and files.
const RESERVED: u64 = 64;
/// Minimum number of connections, regardless of the limit on descriptors.
const MIN_CONNECTIONS: u64 = 8;

/// Returns the maximum number of connections, given the descriptors that are open now.
pub fn max_connections() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    let connections = limit.saturating_sub(open + RESERVED).max(MIN_CONNECTIONS);
    usize::try_from(connections).unwrap_or(usize::MAX)
}
