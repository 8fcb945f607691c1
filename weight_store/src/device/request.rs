//! The interface between a reader and a device.

use std::io;
use std::ptr::NonNull;

/// A read of one range of the file to one destination.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest {
    /// Returned with the completion. Below the queue's depth, and unique among requests in flight.
    pub tag: u32,
    /// Offset of the first byte in the file.
    pub offset_bytes: u64,
    /// Destination of the first byte.
    pub to: NonNull<u8>,
    pub size_bytes: u32,
}

// SAFETY: needed because of the pointer. The submitter of a request leaves its destination to the
// device until it completes, regardless of which thread works for the device.
unsafe impl Send for ReadRequest {}

/// Result of a request.
#[derive(Debug)]
pub struct ReadCompletion {
    /// Tag of the request.
    pub tag: u32,
    /// Number of bytes read, 0 at the end of the file, or a system error.
    pub result: io::Result<u32>,
}

/// Result of registering buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BufferRegistration {
    /// Buffers are registered: reads into them need not pin their pages each time.
    Active,
    /// Buffers are not registered. Reads are slower; this is not an error.
    Unavailable {
        /// Reason, for reports.
        reason: String,
    },
}

/// Reads of one file with several requests in flight. Allocates nothing after it was created.
pub trait Io: Send + std::fmt::Debug {
    /// Registers the memory that requests will write to, replacing memory registered before.
    ///
    /// # Safety
    ///
    /// The memory must be mapped, and remain so until this value is dropped or other memory is
    /// registered.
    unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> BufferRegistration;

    /// Starts a read. If this fails, the request is not in flight.
    ///
    /// # Safety
    ///
    /// Until the request has completed, `size_bytes` bytes at `to` must be writable and must not be
    /// used by anything else. The number of requests in flight must not exceed the depth for which
    /// the queue was created.
    ///
    /// # Errors
    ///
    /// Fails if the system accepts no requests.
    unsafe fn submit(&mut self, request: ReadRequest) -> io::Result<()>;

    /// Waits until a request has completed, in any order. Called only while one is in flight.
    fn complete(&mut self) -> ReadCompletion;
}
