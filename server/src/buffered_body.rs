//! A request body in memory.

use tokio::sync::OwnedSemaphorePermit;

/// Size of a segment. A thread that reads sockets copies no more at a time: one buffer that grows
/// is copied as a whole whenever it moves, and its pages are cleared meanwhile.
const SEGMENT_BYTES: usize = 256 << 10;

/// A body in segments of [`SEGMENT_BYTES`] as it arrives, whose memory is reserved until it is
/// dropped.
#[derive(Debug)]
pub struct BufferedBody {
    segments: Vec<Vec<u8>>,
    size_bytes: usize,
    permit: OwnedSemaphorePermit,
}

impl BufferedBody {
    /// Creates an empty body, whose bytes will be covered by `permit`.
    pub fn new(permit: OwnedSemaphorePermit) -> BufferedBody {
        BufferedBody { segments: Vec::new(), size_bytes: 0, permit }
    }

    /// Returns the number of bytes so far.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Appends `data`, for which `permit` was acquired. Returns true if a segment was completed: a
    /// task then lets other tasks of its thread run.
    #[must_use]
    pub fn push(&mut self, mut data: &[u8], permit: OwnedSemaphorePermit) -> bool {
        self.permit.merge(permit);
        self.size_bytes += data.len();
        let mut is_complete = false;
        while !data.is_empty() {
            let is_first = self.segments.is_empty();
            if self.segments.last().is_none_or(|last| last.len() == SEGMENT_BYTES) {
                // Most bodies are much shorter than a segment.
                let capacity = if is_first { data.len().min(SEGMENT_BYTES) } else { SEGMENT_BYTES };
                self.segments.push(Vec::with_capacity(capacity));
            }
            let Some(last) = self.segments.last_mut() else { break };
            let (head, rest) = data.split_at(data.len().min(SEGMENT_BYTES - last.len()));
            last.extend_from_slice(head);
            is_complete |= last.len() == SEGMENT_BYTES;
            data = rest;
        }
        is_complete
    }

    /// Returns the whole body. Copies a body of several segments when first called, which takes
    /// tens of milliseconds if it is long.
    pub fn bytes(&mut self) -> &[u8] {
        if self.segments.len() > 1 {
            let mut whole = Vec::with_capacity(self.size_bytes);
            for segment in self.segments.drain(..) {
                whole.extend_from_slice(&segment);
            }
            self.segments.push(whole);
        }
        self.segments.first().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn a_body_is_what_arrived_however_it_was_cut() {
        let content: Vec<u8> = (0..3 * SEGMENT_BYTES + 5).map(|at| (at % 251) as u8).collect();
        for part_bytes in [100_003, SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1] {
            for size_bytes in [0, 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, content.len()] {
                let free = Arc::new(Semaphore::new(1_000));
                let permit = |units| Arc::clone(&free).try_acquire_many_owned(units).unwrap();
                let mut body = BufferedBody::new(permit(0));
                let mut completed = 0;
                for part in content[..size_bytes].chunks(part_bytes) {
                    completed += u32::from(body.push(part, permit(1)));
                }
                let parts = size_bytes.div_ceil(part_bytes);
                assert_eq!(free.available_permits(), 1_000 - parts, "reserved while it is there");
                assert_eq!(body.size_bytes(), size_bytes);
                assert_eq!(completed > 0, size_bytes >= SEGMENT_BYTES, "{size_bytes} bytes");
                assert_eq!(body.bytes(), &content[..size_bytes]);
                assert_eq!(body.bytes(), &content[..size_bytes], "a second time");
                drop(body);
                assert_eq!(free.available_permits(), 1_000);
            }
        }
    }
}
