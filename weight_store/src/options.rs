//! Options of a reader.

use crate::device::{Faults, IoKind};
use crate::error::ReaderError;
use crate::layout::BLOCK_BYTES;

/// Maximum number of requests in flight.
const DEPTH_MAX: u32 = 1024;
/// Maximum size of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Options of a [`crate::Reader`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Number of requests in flight.
    pub queue_depth: u32,
    /// Size of a request, a multiple of [`BLOCK_BYTES`].
    pub request_bytes: u64,
    /// Way in which reads reach the device.
    pub io: IoKind,
    /// Bypasses the page cache where that is possible.
    pub direct: bool,
    /// Injected faults and a rate, for tests.
    pub faults: Faults,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions {
            queue_depth: 16,
            request_bytes: 1 << 20,
            io: IoKind::Auto,
            direct: true,
            faults: Faults::default(),
        }
    }
}

impl ReaderOptions {
    /// Returns an error if an option is out of range.
    pub(crate) fn check(&self) -> Result<(), ReaderError> {
        let what = if self.queue_depth == 0 || self.queue_depth > DEPTH_MAX {
            format!("{} requests in flight: must be 1 to {DEPTH_MAX}", self.queue_depth)
        } else if self.request_bytes == 0
            || !self.request_bytes.is_multiple_of(BLOCK_BYTES)
            || self.request_bytes > REQUEST_BYTES_MAX
        {
            format!(
                "requests of {} bytes: must be a multiple of {BLOCK_BYTES}, at most \
                 {REQUEST_BYTES_MAX}",
                self.request_bytes
            )
        } else {
            return Ok(());
        };
        Err(ReaderError::Options { what })
    }
}
