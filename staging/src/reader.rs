//! Reading blobs.

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Fault, Faults, Faulty, Io, Registered, open};
use crate::error::{ReadError, ReaderError};
use crate::flight::{Flying, Queue, Watcher};
use crate::layout::BLOCK_BYTES;
use crate::options::ReaderOptions;
use crate::staged::{BlobId, Staged};

/// Reads of the blobs of one staging.
#[derive(Debug)]
pub struct Reader {
    queue: Queue,
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
        let (io, how) = with_faults(opened.io, opened.how, &options);
        let queue = Queue::new(staged.clone(), io, opened.cached, depth, options.request_bytes);
        Ok(Reader { queue, how, cache: opened.cache, registered: None })
    }

    /// Reads through `io`, which was made for the weights of the staging and for as many requests
    /// in flight as `options` say, to destinations that it alone can reach: memory of another
    /// device. Nobody here sees what arrives there, so blocks are not verified. `how` is for
    /// people.
    ///
    /// # Errors
    ///
    /// If options are out of range, or have a fault that spoils what was read.
    pub fn over(
        staged: &Staged,
        io: Box<dyn Io>,
        how: &str,
        options: &ReaderOptions,
    ) -> Result<Reader, ReaderError> {
        options.check()?;
        if options.faults.at.iter().any(|(_, fault)| *fault == Fault::Flip) {
            let what = "flip: nobody here can change what a device has read".to_owned();
            return Err(ReaderError::Options { what });
        }
        let (io, how) = with_faults(io, how.to_owned(), options);
        let (depth, request_bytes) = (options.queue_depth, options.request_bytes);
        let mut queue = Queue::new(staged.clone(), io, None, depth, request_bytes);
        queue.verifies = false;
        let cache = "blocks not verified as they are read";
        Ok(Reader { queue, how, cache, registered: None })
    }

    /// Registers the memory that blobs will be read into, in place of what was registered before,
    /// so that its pages are not pinned for each request.
    ///
    /// # Safety
    ///
    /// The memory must be mapped until the reader is dropped or other memory is registered.
    pub unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> Registered {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        let registered = unsafe { self.queue.io.register(buffers) };
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

    /// Tells from now on what calls of [`Reader::read`] do: none returns before its device has
    /// answered, so somebody else has to notice one that is silent.
    pub fn watch(&mut self, tell: Box<dyn Fn(Flying) + Send>) {
        self.queue.watcher = Some(Watcher(tell));
    }

    /// The staging that is read.
    pub fn staged(&self) -> &Staged {
        &self.queue.staged
    }

    /// Reads some blocks of a blob to where they lie in the blob, of which `to` is the first byte,
    /// and verifies them but for those of [`Reader::over`]. Nothing is in flight when it returns,
    /// whatever happened. Without an error nothing is allocated.
    ///
    /// # Safety
    ///
    /// The blocks' bytes at `to`, with those up to the next multiple of [`crate::PAGE_BYTES`]
    /// behind the blob's last, must be writable, and nobody else may use them until this returns.
    /// The bytes of other blocks are not touched and need not even be mapped.
    ///
    /// # Errors
    ///
    /// If a destination of this process is not aligned to [`crate::PAGE_BYTES`], the blob has no
    /// such blocks, the device fails, the file ends early, or a block is not what was staged.
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
        let first_bytes = (blocks.start.min(self.queue.staged.blocks(blob)) * BLOCK_BYTES) as usize;
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
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        unsafe { self.queue.read(blob, blocks, first) }
    }

    /// The error for bytes whose checksum is another one.
    pub(crate) fn mismatch(&self, blob: BlobId, offset_bytes: u64, end_bytes: u64) -> ReadError {
        self.queue.mismatch(blob, offset_bytes, end_bytes)
    }
}

/// Puts faults before a device, if there are any, and says so.
fn with_faults(io: Box<dyn Io>, how: String, options: &ReaderOptions) -> (Box<dyn Io>, String) {
    let faults = &options.faults;
    if *faults == Faults::default() {
        return (io, how);
    }
    let how = format!("{how}, faults {faults}");
    (Box::new(Faulty::new(io, faults.clone(), options.queue_depth)), how)
}
