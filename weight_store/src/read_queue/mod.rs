//! A queue of requests to one file: many in flight, with every block verified on arrival.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::checksum::Checksum;
use crate::device::{Io, ReadCompletion, ReadRequest};
use crate::disk;
use crate::error::ReadError;
use crate::layout::{BLOCK_BYTES, BlobExtent, PAGE_BYTES};
use crate::staged::{BlobId, StagedCopy};

/// Maximum number of retries of a request that was interrupted or deferred by the system.
const RETRIES_MAX: u32 = 1000;

/// A request in flight, indexed by its tag.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Offset of the first byte in the blob, which is the start of a block.
    offset_bytes: u64,
    /// Offset of the first byte at the destination.
    to_bytes: u64,
    /// Size in bytes, including the rest of the last page.
    size_bytes: u32,
    /// Bytes read by earlier, short reads; whole pages.
    done_bytes: u32,
    retries: u32,
}

/// The weights of one staged copy, and the requests in flight to them.
#[derive(Debug)]
pub(crate) struct ReadQueue {
    pub staged: StagedCopy,
    pub io: Box<dyn Io>,
    /// The file, if reads go through the page cache.
    cached: Option<File>,
    path: PathBuf,
    request_bytes: u64,
    slots: Vec<Slot>,
    /// Tags of slots that are not in flight.
    free: Vec<u32>,
    /// Receives the progress of calls of [`ReadQueue::read`].
    pub observer: Option<ReadObserver>,
    /// True if destinations are memory that this process can read, so that blocks are verified on
    /// arrival.
    pub verifies: bool,
    /// Number of requests so far; those for the rest of a short read are not counted again.
    pub requests: u64,
}

/// Progress of a call of [`ReadQueue::read`], from which another thread detects a device that does
/// not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEvent {
    /// Requests are about to be submitted.
    Started,
    /// A request has completed.
    Progressed,
    /// No request is in flight any more.
    Ended,
}

/// Callback for the progress of reads.
pub(crate) struct ReadObserver(pub Box<dyn Fn(ReadEvent) + Send>);

impl std::fmt::Debug for ReadObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl ReadQueue {
    /// Creates a queue of `depth` requests of `request_bytes`, a multiple of a block, to `io`,
    /// which reads the weights of `staged`.
    pub fn new(
        staged: StagedCopy,
        io: Box<dyn Io>,
        cached: Option<File>,
        depth: u32,
        request_bytes: u64,
    ) -> ReadQueue {
        let path = staged.weights_path();
        let slots = vec![Slot::default(); depth as usize];
        let free = (0..depth).collect();
        ReadQueue {
            staged,
            io,
            cached,
            path,
            request_bytes,
            slots,
            free,
            observer: None,
            verifies: true,
            requests: 0,
        }
    }

    /// Reads ranges of blocks of a blob, and verifies them if it can. Each range is read to the
    /// offset next to it, from `to`. No request is in flight when this returns.
    ///
    /// # Safety
    ///
    /// The ranges' destinations must not overlap. Their bytes, including those up to the next
    /// multiple of a page after the blob's last byte, must be writable, and nothing else may use
    /// them until this returns.
    pub unsafe fn read(
        &mut self,
        blob: BlobId,
        ranges: &[(Range<u64>, u64)],
        to: NonNull<u8>,
    ) -> Result<(), ReadError> {
        let place = self.staged.extent(blob);
        for (blocks, to_bytes) in ranges {
            if blocks.start > blocks.end || blocks.end > place.blocks {
                return Err(ReadError::NoSuchBlocks {
                    blob: self.staged.name(blob).to_owned(),
                    first: blocks.start,
                    end: blocks.end,
                    blocks: place.blocks,
                });
            }
            let address = to.as_ptr().wrapping_add(*to_bytes as usize) as usize;
            if self.verifies && !address.is_multiple_of(PAGE_BYTES as usize) {
                return Err(ReadError::Unaligned { address });
            }
        }
        self.notify(ReadEvent::Started);
        let mut flight = BlobRead {
            queue: self,
            blob,
            place,
            to,
            ranges,
            left: ranges,
            requested_bytes: 0,
            in_flight: 0,
            failure: None,
        };
        flight.run();
        let failure = flight.failure.take();
        drop(flight);
        self.notify(ReadEvent::Ended);
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn notify(&self, event: ReadEvent) {
        if let Some(ReadObserver(on_event)) = &self.observer {
            on_event(event);
        }
    }

    /// Returns the error for bytes whose checksum differs from the recorded one.
    pub fn mismatch(&self, blob: BlobId, offset_bytes: u64, end_bytes: u64) -> ReadError {
        ReadError::Checksum {
            path: self.path.clone(),
            blob: self.staged.name(blob).to_owned(),
            offset_bytes,
            end_bytes,
        }
    }
}

/// One call of [`ReadQueue::read`]. Dropping it waits for the requests in flight.
struct BlobRead<'a> {
    queue: &'a mut ReadQueue,
    blob: BlobId,
    place: BlobExtent,
    to: NonNull<u8>,
    /// Ranges of blocks, and their offsets at the destination.
    ranges: &'a [(Range<u64>, u64)],
    /// Ranges that have not been requested completely.
    left: &'a [(Range<u64>, u64)],
    /// Bytes of the first of these that have been requested.
    requested_bytes: u64,
    in_flight: u32,
    /// The first error; nothing is submitted after it.
    failure: Option<ReadError>,
}

impl BlobRead<'_> {
    fn run(&mut self) {
        loop {
            self.fill();
            if self.in_flight == 0 {
                // Pages that adjacent requests share were kept in the cache until now.
                for (blocks, _) in self.ranges {
                    let at = |block: u64| (block * BLOCK_BYTES).min(self.place.size_bytes);
                    self.drop_cache(at(blocks.start), at(blocks.end));
                }
                return;
            }
            let completion = self.complete();
            if let Some(slot) = self.handle_completion(completion) {
                // Keeps the device busy during verification.
                self.fill();
                self.verify(slot);
            }
        }
    }

    /// Submits requests as long as there are blocks to request and free slots.
    fn fill(&mut self) {
        while self.failure.is_none() {
            let [(blocks, to_bytes), others @ ..] = self.left else { return };
            let offset_bytes = blocks.start * BLOCK_BYTES + self.requested_bytes;
            let end_bytes = (blocks.end * BLOCK_BYTES).min(self.place.size_bytes);
            if offset_bytes >= end_bytes {
                (self.left, self.requested_bytes) = (others, 0);
                continue;
            }
            let Some(tag) = self.queue.free.pop() else { return };
            let size_bytes = (end_bytes - offset_bytes).min(self.queue.request_bytes);
            let to_bytes = to_bytes + self.requested_bytes;
            self.requested_bytes += size_bytes;
            self.queue.requests += 1;
            let size_bytes = size_bytes.next_multiple_of(PAGE_BYTES) as u32;
            self.submit(
                tag,
                Slot { offset_bytes, to_bytes, size_bytes, done_bytes: 0, retries: 0 },
            );
        }
    }

    fn submit(&mut self, tag: u32, slot: Slot) {
        self.queue.slots[tag as usize] = slot;
        let offset_bytes = slot.offset_bytes + u64::from(slot.done_bytes);
        let request = ReadRequest {
            tag,
            offset_bytes: self.place.offset_bytes + offset_bytes,
            to: self.address(slot.to_bytes + u64::from(slot.done_bytes)),
            size_bytes: slot.size_bytes - slot.done_bytes,
        };
        // SAFETY: needed because the device writes through a pointer. The caller of `read` leaves
        // these bytes to it; requests in flight are of different blocks; nothing returns before all
        // have completed; the number of slots is the depth of the queue.
        match unsafe { self.queue.io.submit(request) } {
            Ok(()) => self.in_flight += 1,
            Err(source) => {
                self.queue.free.push(tag);
                self.fail_io(offset_bytes, source);
            }
        }
    }

    /// Returns the address of a byte of the destination.
    fn address(&self, to_bytes: u64) -> NonNull<u8> {
        // Not `add`: memory that only a device can access is not an allocation of this process.
        let address = self.to.as_ptr().wrapping_add(to_bytes as usize);
        NonNull::new(address).expect("a blob's place wraps around no address space")
    }

    fn complete(&mut self) -> ReadCompletion {
        let completion = self.queue.io.complete();
        self.in_flight -= 1;
        self.queue.notify(ReadEvent::Progressed);
        completion
    }

    /// Processes a completion. Returns the slot if it has been read to its end; otherwise the
    /// request is submitted again for the rest, unless the read has failed.
    fn handle_completion(&mut self, completion: ReadCompletion) -> Option<Slot> {
        let tag = completion.tag;
        let mut slot = self.queue.slots[tag as usize];
        let offset_bytes = slot.offset_bytes + u64::from(slot.done_bytes);
        match completion.result {
            Ok(read_bytes) if slot.done_bytes + read_bytes >= slot.size_bytes => {
                self.queue.free.push(tag);
                return Some(slot);
            }
            Ok(read_bytes) => {
                // Rounded down to whole pages, since `O_DIRECT` can continue only there.
                let pages_bytes = read_bytes / PAGE_BYTES as u32 * PAGE_BYTES as u32;
                slot.done_bytes += pages_bytes;
                if pages_bytes == 0 {
                    let blob = self.queue.staged.name(self.blob).to_owned();
                    let path = self.queue.path.clone();
                    let error = ReadError::Truncated { path, blob, offset_bytes };
                    self.failure.get_or_insert(error);
                }
            }
            Err(error) if is_transient(&error) && slot.retries < RETRIES_MAX => {
                slot.retries += 1;
                std::thread::yield_now();
            }
            Err(source) => self.fail_io(offset_bytes, source),
        }
        if self.failure.is_some() {
            self.queue.free.push(tag);
        } else {
            self.submit(tag, slot);
        }
        None
    }

    fn fail_io(&mut self, offset_bytes: u64, source: io::Error) {
        let blob = self.queue.staged.name(self.blob).to_owned();
        let path = self.queue.path.clone();
        self.failure.get_or_insert(ReadError::Io { path, blob, offset_bytes, source });
    }

    /// Drops bytes of the blob from the page cache if they were read through it.
    fn drop_cache(&self, from_bytes: u64, end_bytes: u64) {
        let size_bytes = end_bytes.next_multiple_of(PAGE_BYTES) - from_bytes;
        if let Some(file) = &self.queue.cached
            && size_bytes > 0
        {
            disk::drop_cache(file, self.place.offset_bytes + from_bytes, size_bytes);
        }
    }

    /// Compares the blocks of a request with their checksums.
    fn verify(&mut self, slot: Slot) {
        self.drop_cache(slot.offset_bytes, slot.offset_bytes + u64::from(slot.size_bytes));
        if !self.queue.verifies {
            return;
        }
        let end_bytes = (slot.offset_bytes + u64::from(slot.size_bytes)).min(self.place.size_bytes);
        let size_bytes = (end_bytes - slot.offset_bytes) as usize;
        // SAFETY: needed to see the destination as a slice, which is memory of this process
        // (`verifies`). The request has completed, so these bytes were written, and nothing else
        // uses them until `read` returns.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.address(slot.to_bytes).as_ptr(), size_bytes) };
        let first_block = slot.offset_bytes / BLOCK_BYTES;
        for (block, bytes) in (first_block..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let expected = self.queue.staged.block_checksum(self.place.first_block + block);
            if Checksum::of_bytes(bytes) != expected && self.failure.is_none() {
                let from_bytes = block * BLOCK_BYTES;
                let end_bytes = from_bytes + bytes.len() as u64;
                self.failure = Some(self.queue.mismatch(self.blob, from_bytes, end_bytes));
                return;
            }
        }
    }
}

impl Drop for BlobRead<'_> {
    fn drop(&mut self) {
        // Requests are left only after a panic; the destination must not be freed while a device
        // writes to it.
        while self.in_flight > 0 {
            let completion = self.complete();
            self.queue.free.push(completion.tag);
        }
    }
}

/// Returns true if a read that failed with this error only has to be repeated.
fn is_transient(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests;
