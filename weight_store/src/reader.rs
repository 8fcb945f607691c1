//! Reading blobs.

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{BufferRegistration, Faults, FaultyIo, Io, ReadFault, open};
use crate::error::{ReadError, ReaderError};
use crate::layout::BLOCK_BYTES;
use crate::options::ReaderOptions;
use crate::read_queue::{ReadEvent, ReadObserver, ReadQueue};
use crate::staged::{BlobId, StagedCopy};

/// Reads the blobs of one staged copy.
#[derive(Debug)]
pub struct Reader {
    queue: ReadQueue,
    description: String,
    cache: &'static str,
    registered: Option<BufferRegistration>,
}

impl Reader {
    /// Opens the weights of a staged copy.
    ///
    /// # Errors
    ///
    /// Fails if options are out of range, the file cannot be read, or the system refuses the chosen
    /// way of reading.
    pub fn open(staged: &StagedCopy, options: ReaderOptions) -> Result<Reader, ReaderError> {
        options.check()?;
        let depth = options.queue_depth;
        let path = staged.weights_path();
        let opened = open(&path, staged.weights_bytes(), depth, options.io, options.direct)?;
        let (io, description) = with_faults(opened.io, opened.method, &options);
        let queue = ReadQueue::new(staged.clone(), io, opened.cached, depth, options.request_bytes);
        Ok(Reader { queue, description, cache: opened.cache, registered: None })
    }

    /// Creates a reader over `io`, which reads the weights of `staged` with as many requests in
    /// flight as `options` specify, to destinations that only it can access: memory of another
    /// device. This process cannot read the destinations, so blocks are not verified. `description`
    /// describes `io` in reports.
    ///
    /// # Errors
    ///
    /// Fails if options are out of range, or contain a fault that modifies the bytes read.
    pub fn with_io(
        staged: &StagedCopy,
        io: Box<dyn Io>,
        description: &str,
        options: &ReaderOptions,
    ) -> Result<Reader, ReaderError> {
        options.check()?;
        if options.faults.at.iter().any(|(_, fault)| *fault == ReadFault::Flip) {
            let what = "flip: bytes read by a device cannot be changed".to_owned();
            return Err(ReaderError::Options { what });
        }
        let (io, description) = with_faults(io, description.to_owned(), options);
        let (depth, request_bytes) = (options.queue_depth, options.request_bytes);
        let mut queue = ReadQueue::new(staged.clone(), io, None, depth, request_bytes);
        queue.verifies = false;
        let cache = "blocks not verified as they are read";
        Ok(Reader { queue, description, cache, registered: None })
    }

    /// Registers the memory that blobs will be read into, replacing memory registered before, so
    /// that its pages are not pinned for each request.
    ///
    /// # Safety
    ///
    /// The memory must be mapped until the reader is dropped or other memory is registered.
    pub unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> BufferRegistration {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        let registered = unsafe { self.queue.io.register(buffers) };
        self.registered = Some(registered.clone());
        registered
    }

    /// Returns a description for reports, such as `io_uring, O_DIRECT, registered buffers`.
    pub fn describe(&self) -> String {
        let buffers = match &self.registered {
            Some(BufferRegistration::Active) => ", registered buffers",
            _ => "",
        };
        format!("{}, {}{buffers}", self.description, self.cache)
    }

    /// Calls `on_event` with the progress of every later call of [`Reader::read`]. A read returns
    /// only after its device has responded, so another thread has to detect a device that does not.
    pub fn observe(&mut self, on_event: Box<dyn Fn(ReadEvent) + Send>) {
        self.queue.observer = Some(ReadObserver(on_event));
    }

    /// Returns the number of requests so far, of at most [`ReaderOptions::request_bytes`] each.
    pub const fn requests(&self) -> u64 {
        self.queue.requests
    }

    /// Returns the staged copy that is read.
    pub fn staged(&self) -> &StagedCopy {
        &self.queue.staged
    }

    /// Reads some blocks of a blob to their locations in the blob, whose first byte is at `to`.
    /// Verifies them, except in readers made with [`Reader::with_io`]. No request is in flight when
    /// this returns, with or without an error. Allocates nothing unless it fails.
    ///
    /// # Safety
    ///
    /// The blocks' bytes at `to`, including those up to the next multiple of [`crate::PAGE_BYTES`]
    /// after the blob's last byte, must be writable, and nothing else may use them until this
    /// returns. The bytes of other blocks are not accessed and need not even be mapped.
    ///
    /// # Errors
    ///
    /// Fails if a destination in this process is not aligned to [`crate::PAGE_BYTES`], the blob has
    /// no such blocks, the device fails, the file ends early, or the checksum of a block differs.
    ///
    /// # Panics
    ///
    /// Panics if there is no such blob.
    pub unsafe fn read(
        &mut self,
        blob: BlobId,
        blocks: Range<u64>,
        to: NonNull<u8>,
    ) -> Result<(), ReadError> {
        let first_bytes = (blocks.start.min(self.queue.staged.blocks(blob)) * BLOCK_BYTES) as usize;
        let first = to.as_ptr().wrapping_add(first_bytes);
        // The memory of a blob does not wrap around the address space.
        let first = NonNull::new(first).unwrap_or(NonNull::dangling());
        // SAFETY: needed because the call is unsafe. The caller's promise is passed on: the first
        // block's destination is that of the blob's first byte plus all bytes before the block.
        unsafe { self.read_part(blob, blocks, first) }
    }

    /// Reads like [`Reader::read`], but several ranges of blocks, with requests of several ranges
    /// in flight at once. Each range is read to the offset next to it, in bytes from `to`.
    ///
    /// # Safety
    ///
    /// The requirements of [`Reader::read`] apply to the blocks of all ranges at their
    /// destinations, which must not overlap.
    ///
    /// # Errors
    ///
    /// Fails like [`Reader::read`].
    ///
    /// # Panics
    ///
    /// Panics if there is no such blob.
    pub unsafe fn read_ranges(
        &mut self,
        blob: BlobId,
        ranges: &[(Range<u64>, u64)],
        to: NonNull<u8>,
    ) -> Result<(), ReadError> {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        unsafe { self.queue.read(blob, ranges, to) }
    }

    /// Reads like [`Reader::read`], but `first` is the destination of the first of the blocks.
    ///
    /// # Safety
    ///
    /// The requirements of [`Reader::read`] apply to the blocks' bytes from `first`.
    pub(crate) unsafe fn read_part(
        &mut self,
        blob: BlobId,
        blocks: Range<u64>,
        first: NonNull<u8>,
    ) -> Result<(), ReadError> {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        unsafe { self.queue.read(blob, &[(blocks, 0)], first) }
    }

    /// Returns the error for bytes whose checksum differs from the recorded one.
    pub(crate) fn mismatch(&self, blob: BlobId, offset_bytes: u64, end_bytes: u64) -> ReadError {
        self.queue.mismatch(blob, offset_bytes, end_bytes)
    }
}

/// Wraps a device with the faults of the options, if any, and adds them to the description.
fn with_faults(io: Box<dyn Io>, how: String, options: &ReaderOptions) -> (Box<dyn Io>, String) {
    let faults = &options.faults;
    if *faults == Faults::default() {
        return (io, how);
    }
    let how = format!("{how}, faults {faults}");
    (Box::new(FaultyIo::new(io, faults.clone(), options.queue_depth)), how)
}
