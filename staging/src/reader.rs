//! Reading blobs: many requests in flight, every block verified as it comes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::checksum::Checksum;
use crate::device::{Completion, Faults, Faulty, Io, IoKind, Registered, Request, open};
use crate::disk;
use crate::error::{ReadError, ReaderError};
use crate::layout::{BLOCK_BYTES, PAGE_BYTES, Place};
use crate::staged::{BlobId, Staged};

/// Requests that may be in flight at most.
const DEPTH_MAX: u32 = 1024;
/// The largest request.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// How often a request is repeated that was interrupted or put off.
const RETRIES_MAX: u32 = 1000;

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
            queue_depth: 8,
            request_bytes: 1 << 20,
            io: IoKind::Auto,
            direct: true,
            faults: Faults::default(),
        }
    }
}

impl ReaderOptions {
    fn check(&self) -> Result<(), ReaderError> {
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

/// A request in flight, by its tag.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Its first byte in the blob, a block's first.
    offset_bytes: u64,
    /// Its bytes, with the rest of the last page.
    size_bytes: u32,
    /// Bytes that earlier, short reads gave; whole pages.
    done_bytes: u32,
    retries: u32,
}

/// Reads of the blobs of one staging.
#[derive(Debug)]
pub struct Reader {
    staged: Staged,
    path: PathBuf,
    io: Box<dyn Io>,
    cached: Option<File>,
    request_bytes: u64,
    slots: Vec<Slot>,
    /// Tags of slots that are not in flight.
    free: Vec<u32>,
    how: String,
    cache: &'static str,
    registered: Option<Registered>,
}

impl Reader {
    /// Opens the weights of a staging.
    ///
    /// # Errors
    ///
    /// If options are out of range, the file cannot be read, or the way of reading that was chosen
    /// is refused.
    pub fn open(staged: &Staged, options: ReaderOptions) -> Result<Reader, ReaderError> {
        options.check()?;
        let depth = options.queue_depth;
        let path = staged.weights_path();
        let opened = open(&path, staged.weights_bytes(), depth, options.io, options.direct)?;
        let mut how = opened.how;
        let io = if options.faults == Faults::default() {
            opened.io
        } else {
            how = format!("{how}, faults {}", options.faults);
            Box::new(Faulty::new(opened.io, options.faults, depth))
        };
        Ok(Reader {
            staged: staged.clone(),
            path,
            io,
            cached: opened.cached,
            request_bytes: options.request_bytes,
            slots: vec![Slot::default(); depth as usize],
            free: (0..depth).collect(),
            how,
            cache: opened.cache,
            registered: None,
        })
    }

    /// Registers the memory that blobs will be read into, in place of what was registered before,
    /// so that its pages are not pinned for each request.
    ///
    /// # Safety
    ///
    /// The memory must be mapped until the reader is dropped or other memory is registered.
    pub unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> Registered {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        let registered = unsafe { self.io.register(buffers) };
        self.registered = Some(registered.clone());
        registered
    }

    /// How it reads, for people: `io_uring, O_DIRECT, registered buffers`.
    pub fn describe(&self) -> String {
        let buffers = match &self.registered {
            Some(Registered::Yes) => ", registered buffers",
            _ => "",
        };
        format!("{}, {}{buffers}", self.how, self.cache)
    }

    /// The staging that is read.
    pub fn staged(&self) -> &Staged {
        &self.staged
    }

    /// Reads some blocks of a blob to where they lie in the blob, of which `to` is the first byte,
    /// and verifies them. Nothing is in flight when it returns, whatever happened. Without an
    /// error nothing is allocated.
    ///
    /// # Safety
    ///
    /// The blocks' bytes at `to`, with those up to the next multiple of [`PAGE_BYTES`] behind the
    /// blob's last, must be writable, and nobody else may use them until this returns. The bytes
    /// of other blocks are not touched and need not even be mapped.
    ///
    /// # Errors
    ///
    /// If the destination is not aligned to [`PAGE_BYTES`], the blob has no such blocks, the device
    /// fails, the file ends early, or a block is not what was staged.
    ///
    /// # Panics
    ///
    /// If there is no such blob.
    pub unsafe fn read(
        &mut self,
        blob: BlobId,
        blocks: Range<u64>,
        to: NonNull<u8>,
    ) -> Result<(), ReadError> {
        let first_bytes = (blocks.start.min(self.staged.blocks(blob)) * BLOCK_BYTES) as usize;
        let first = to.as_ptr().wrapping_add(first_bytes);
        // A blob's place wraps around no address space.
        let first = NonNull::new(first).unwrap_or(NonNull::dangling());
        // SAFETY: needed because the call is unsafe. The caller's promise is passed on: the first
        // block's place is that of the blob's first byte and all bytes before it.
        unsafe { self.read_part(blob, blocks, first) }
    }

    /// As [`Reader::read`], but `first` is where the first of the blocks goes.
    ///
    /// # Safety
    ///
    /// As [`Reader::read`], for the blocks' bytes from `first`.
    pub(crate) unsafe fn read_part(
        &mut self,
        blob: BlobId,
        blocks: Range<u64>,
        first: NonNull<u8>,
    ) -> Result<(), ReadError> {
        let place = self.staged.place(blob);
        if blocks.start > blocks.end || blocks.end > place.blocks {
            return Err(ReadError::NoSuchBlocks {
                blob: self.staged.name(blob).to_owned(),
                first: blocks.start,
                end: blocks.end,
                blocks: place.blocks,
            });
        }
        let address = first.as_ptr() as usize;
        if !address.is_multiple_of(PAGE_BYTES as usize) {
            return Err(ReadError::Unaligned { address });
        }
        let start_bytes = blocks.start * BLOCK_BYTES;
        let end_bytes = (blocks.end * BLOCK_BYTES).min(place.size_bytes);
        let mut flight = Flight {
            reader: self,
            blob,
            place,
            first,
            start_bytes,
            next_bytes: start_bytes,
            end_bytes,
            in_flight: 0,
            failure: None,
        };
        flight.run();
        match flight.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The error for bytes whose checksum is another one.
    pub(crate) fn mismatch(&self, blob: BlobId, offset_bytes: u64, end_bytes: u64) -> ReadError {
        ReadError::Checksum {
            path: self.path.clone(),
            blob: self.staged.name(blob).to_owned(),
            offset_bytes,
            end_bytes,
        }
    }
}

/// One call of [`Reader::read`]. Dropped, it waits for what is in flight.
struct Flight<'a> {
    reader: &'a mut Reader,
    blob: BlobId,
    place: Place,
    /// Where `start_bytes` of the blob goes.
    first: NonNull<u8>,
    start_bytes: u64,
    /// The blob's first byte that was not requested yet.
    next_bytes: u64,
    end_bytes: u64,
    in_flight: u32,
    /// The first thing that went wrong; nothing is submitted after it.
    failure: Option<ReadError>,
}

impl Flight<'_> {
    fn run(&mut self) {
        loop {
            self.fill();
            if self.in_flight == 0 {
                // What requests shared with their neighbours was kept for these.
                self.drop_cache(self.start_bytes, self.next_bytes);
                return;
            }
            let completion = self.complete();
            if let Some(slot) = self.land(completion) {
                // The device works on the next one meanwhile.
                self.fill();
                self.verify(slot);
            }
        }
    }

    /// Submits as long as there are blocks and slots.
    fn fill(&mut self) {
        while self.failure.is_none() && self.next_bytes < self.end_bytes {
            let Some(tag) = self.reader.free.pop() else { return };
            let offset_bytes = self.next_bytes;
            let size_bytes = (self.end_bytes - offset_bytes).min(self.reader.request_bytes);
            self.next_bytes += size_bytes;
            let size_bytes = size_bytes.next_multiple_of(PAGE_BYTES) as u32;
            self.submit(tag, Slot { offset_bytes, size_bytes, done_bytes: 0, retries: 0 });
        }
    }

    fn submit(&mut self, tag: u32, slot: Slot) {
        self.reader.slots[tag as usize] = slot;
        let offset_bytes = slot.offset_bytes + u64::from(slot.done_bytes);
        let request = Request {
            tag,
            offset_bytes: self.place.offset_bytes + offset_bytes,
            to: self.address(offset_bytes),
            size_bytes: slot.size_bytes - slot.done_bytes,
        };
        // SAFETY: needed because the device writes through a pointer. The caller of `read` leaves
        // these bytes to it; requests in flight are of different blocks; nothing returns before all
        // have completed; slots are as many as the queue is deep.
        match unsafe { self.reader.io.submit(request) } {
            Ok(()) => self.in_flight += 1,
            Err(source) => {
                self.reader.free.push(tag);
                self.fail_io(offset_bytes, source);
            }
        }
    }

    /// Where a byte of the blob goes.
    fn address(&self, offset_bytes: u64) -> NonNull<u8> {
        let ahead_bytes = (offset_bytes - self.start_bytes) as usize;
        // SAFETY: needed for the arithmetic. The byte is one of those that the caller of `read`
        // gave a place.
        unsafe { self.first.add(ahead_bytes) }
    }

    fn complete(&mut self) -> Completion {
        let completion = self.reader.io.complete();
        self.in_flight -= 1;
        completion
    }

    /// What became of a request; the slot that is read to its end, if it is.
    fn land(&mut self, completion: Completion) -> Option<Slot> {
        let tag = completion.tag;
        let mut slot = self.reader.slots[tag as usize];
        let offset_bytes = slot.offset_bytes + u64::from(slot.done_bytes);
        match completion.result {
            Ok(read_bytes) if slot.done_bytes + read_bytes >= slot.size_bytes => {
                self.reader.free.push(tag);
                return Some(slot);
            }
            Ok(read_bytes) => {
                // Whole pages, as O_DIRECT can go on from nowhere else.
                let pages_bytes = read_bytes / PAGE_BYTES as u32 * PAGE_BYTES as u32;
                slot.done_bytes += pages_bytes;
                if pages_bytes == 0 {
                    let blob = self.reader.staged.name(self.blob).to_owned();
                    let path = self.reader.path.clone();
                    let error = ReadError::Truncated { path, blob, offset_bytes };
                    self.failure.get_or_insert(error);
                }
            }
            Err(error) if is_passing(&error) && slot.retries < RETRIES_MAX => {
                slot.retries += 1;
                std::thread::yield_now();
            }
            Err(source) => self.fail_io(offset_bytes, source),
        }
        if self.failure.is_some() {
            self.reader.free.push(tag);
        } else {
            self.submit(tag, slot);
        }
        None
    }

    fn fail_io(&mut self, offset_bytes: u64, source: io::Error) {
        let blob = self.reader.staged.name(self.blob).to_owned();
        let path = self.reader.path.clone();
        self.failure.get_or_insert(ReadError::Io { path, blob, offset_bytes, source });
    }

    /// Takes bytes of the blob out of the page cache, if they passed through it.
    fn drop_cache(&self, from_bytes: u64, end_bytes: u64) {
        let size_bytes = end_bytes.next_multiple_of(PAGE_BYTES) - from_bytes;
        if let Some(file) = &self.reader.cached
            && size_bytes > 0
        {
            disk::drop_cache(file, self.place.offset_bytes + from_bytes, size_bytes);
        }
    }

    /// Compares the blocks of a request with their checksums.
    fn verify(&mut self, slot: Slot) {
        self.drop_cache(slot.offset_bytes, slot.offset_bytes + u64::from(slot.size_bytes));
        let end_bytes = (slot.offset_bytes + u64::from(slot.size_bytes)).min(self.end_bytes);
        let size_bytes = (end_bytes - slot.offset_bytes) as usize;
        // SAFETY: needed to see the destination as a slice. The request has completed, so these
        // bytes were written, and nobody else uses them until `read` returns.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.address(slot.offset_bytes).as_ptr(), size_bytes)
        };
        let first_block = slot.offset_bytes / BLOCK_BYTES;
        for (block, bytes) in (first_block..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let expected = self.reader.staged.block_checksum(self.place.first_block + block);
            if Checksum::of(bytes) != expected && self.failure.is_none() {
                let from_bytes = block * BLOCK_BYTES;
                let end_bytes = from_bytes + bytes.len() as u64;
                self.failure = Some(self.reader.mismatch(self.blob, from_bytes, end_bytes));
                return;
            }
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Only after a panic is anything left; its destination must not be freed under a device.
        while self.in_flight > 0 {
            let completion = self.complete();
            self.reader.free.push(completion.tag);
        }
    }
}

/// Whether a read that failed so is only to be repeated.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
