//! Limit on the open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to its maximum, because every connection of a
/// server or a load generator takes a descriptor.
pub fn raise_descriptor_limit() {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    // If this fails, there are fewer connections at a time.
    let _ = setrlimit(Resource::Nofile, raised);
}
