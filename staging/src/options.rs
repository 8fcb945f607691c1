//! How a reader reads.

use crate::device::{Faults, IoKind};
use crate::error::ReaderError;
use crate::layout::BLOCK_BYTES;

/// Requests that may be in flight at most.
const DEPTH_MAX: u32 = 1024;
/// The largest request.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// How to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Requests in flight.
    pub queue_depth: u32,
    /// Bytes of a request, a multiple of [`BLOCK_BYTES`].
    pub request_bytes: u64,
    /// How reads reach the device.
    pub io: IoKind,
    /// Whether to pass the page cache by, where that is possible.
    pub direct: bool,
    /// Faults and a rate, for tests.
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
    /// Refuses what is out of range.
    pub(crate) fn check(&self) -> Result<(), ReaderError> {
        let what = if self.queue_depth == 0 || self.queue_depth > DEPTH_MAX {
            format!("{} requests in flight: 1 to {DEPTH_MAX} can be", self.queue_depth)
        } else if self.request_bytes == 0
            || !self.request_bytes.is_multiple_of(BLOCK_BYTES)
            || self.request_bytes > REQUEST_BYTES_MAX
        {
            format!(
                "requests of {} bytes: a multiple of {BLOCK_BYTES} up to {REQUEST_BYTES_MAX} is \
                 possible",
                self.request_bytes
            )
        } else {
            return Ok(());
        };
        Err(ReaderError::Options { what })
    }
}
