//! What a reader needs of a device.

use std::io;
use std::ptr::NonNull;

/// A read of one range into one place.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Comes back with the completion; below the queue's depth, and of one request at a time.
    pub tag: u32,
    /// The first byte of the file.
    pub offset_bytes: u64,
    /// Where it goes.
    pub to: NonNull<u8>,
    /// How many bytes.
    pub size_bytes: u32,
}

// SAFETY: needed because of the pointer. Whoever submits a request leaves its destination to the
// device until it completes, whichever thread works for the device.
unsafe impl Send for Request {}

/// What became of a request: bytes that were read, 0 at the end of the file, or a system error.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u32,
    /// Bytes read.
    pub result: io::Result<u32>,
}

/// Whether buffers were registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// They were: reads into them need not pin their pages each time.
    Yes,
    /// They were not, which is slower and no error.
    No {
        /// Why.
        why: String,
    },
}

/// Reads of one file, several in flight. Nothing is allocated after it was made.
pub trait Io: Send + std::fmt::Debug {
    /// Tells the device of memory that requests will go to, in place of what it was told before.
    ///
    /// # Safety
    ///
    /// The memory must be mapped, and remain so until this value is dropped or is told of other
    /// memory.
    unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> Registered;

    /// Begins a read. On an error it is not in flight.
    ///
    /// # Safety
    ///
    /// Until the request has completed, `size_bytes` bytes at `to` must be writable and used by
    /// nobody else. No more requests may be in flight than the depth that the queue was made for.
    ///
    /// # Errors
    ///
    /// If the system accepts no requests.
    unsafe fn submit(&mut self, request: Request) -> io::Result<()>;

    /// Waits until a request has completed, in any order. Called only while one is in flight.
    fn complete(&mut self) -> Completion;
}
