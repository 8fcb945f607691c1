//! Reads through io_uring.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::request::{BufferRegistration, Io, ReadCompletion, ReadRequest};

/// Maximum size of one registered buffer (a limit of the kernel).
const BUFFER_BYTES_MAX: usize = 1 << 30;
/// Maximum number of registered buffers (a limit of the kernel).
const BUFFERS_MAX: usize = 1 << 14;

/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

/// Reads of one file through io_uring.
pub struct UringIo {
    ring: IoUring,
    file: File,
    /// True if the file is registered with the ring.
    fixed: bool,
    /// Address and size in bytes of each registered buffer.
    buffers: Vec<(usize, usize)>,
    /// Error after which the ring accepts no more requests.
    failed: Option<Errno>,
}

impl std::fmt::Debug for UringIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringIo").field("file", &self.file).finish_non_exhaustive()
    }
}

impl UringIo {
    /// Creates a ring for `depth` requests in flight.
    ///
    /// # Errors
    ///
    /// Fails if the system has no io_uring, or refuses it.
    pub fn new(file: File, depth: u32) -> io::Result<UringIo> {
        let ring = IoUring::new(depth.max(1).next_power_of_two())?;
        let fixed = ring.submitter().register_files(&[file.as_raw_fd()]).is_ok();
        Ok(UringIo { ring, file, fixed, buffers: Vec::new(), failed: None })
    }

    /// Returns the registered buffer that contains the whole destination.
    fn buffer(&self, request: &ReadRequest) -> Option<u16> {
        let first = request.to.as_ptr() as usize;
        let end = first + request.size_bytes as usize;
        let holds = |&(start, size): &(usize, usize)| start <= first && end <= start + size;
        self.buffers.iter().position(holds).and_then(|index| u16::try_from(index).ok())
    }

    fn entry(&self, request: &ReadRequest) -> io_uring::squeue::Entry {
        let to = request.to.as_ptr();
        let (size, offset) = (request.size_bytes, request.offset_bytes);
        let raw = types::Fd(self.file.as_raw_fd());
        let entry = match (self.buffer(request), self.fixed) {
            (Some(buffer), true) => {
                opcode::ReadFixed::new(types::Fixed(0), to, size, buffer).offset(offset).build()
            }
            (Some(buffer), false) => {
                opcode::ReadFixed::new(raw, to, size, buffer).offset(offset).build()
            }
            (None, true) => opcode::Read::new(types::Fixed(0), to, size).offset(offset).build(),
            (None, false) => opcode::Read::new(raw, to, size).offset(offset).build(),
        };
        entry.user_data(u64::from(request.tag))
    }
}

/// Returns true if a call that failed with this error may succeed when repeated.
fn is_transient(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Io for UringIo {
    unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> BufferRegistration {
        if !self.buffers.is_empty() {
            self.buffers.clear();
            if let Err(error) = self.ring.submitter().unregister_buffers() {
                return BufferRegistration::Unavailable { reason: error.to_string() };
            }
        }
        let mut parts = Vec::new();
        for (start, size_bytes) in buffers {
            for from in (0..*size_bytes).step_by(BUFFER_BYTES_MAX) {
                let size = (size_bytes - from).min(BUFFER_BYTES_MAX);
                parts.push((start.as_ptr() as usize + from, size));
            }
        }
        if parts.is_empty() || parts.len() > BUFFERS_MAX {
            return BufferRegistration::Unavailable {
                reason: format!("{} buffers cannot be registered", parts.len()),
            };
        }
        let vectors = parts.iter().map(|(start, size)| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(*start),
            iov_len: *size,
        });
        let vectors: Vec<libc::iovec> = vectors.collect();
        // SAFETY: needed because the kernel keeps the addresses. The caller promises that the
        // memory remains mapped; in addition its pages are pinned.
        match unsafe { self.ring.submitter().register_buffers(&vectors) } {
            Ok(()) => {
                self.buffers = parts;
                BufferRegistration::Active
            }
            Err(error) => BufferRegistration::Unavailable { reason: error.to_string() },
        }
    }

    unsafe fn submit(&mut self, request: ReadRequest) -> io::Result<()> {
        if let Some(errno) = self.failed {
            return Err(errno.into());
        }
        let entry = self.entry(&request);
        // SAFETY: needed because the kernel writes to the destination later. The caller leaves it
        // alone until then; the file is owned by this value.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(Errno::BUSY.into());
        }
        loop {
            match self.ring.submit() {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    // The entry remains in the queue and must never reach the kernel.
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    self.failed = Some(errno);
                    return Err(error);
                }
            }
            std::thread::yield_now();
        }
    }

    fn complete(&mut self) -> ReadCompletion {
        loop {
            if let Some(event) = self.ring.completion().next() {
                let result = match u32::try_from(event.result()) {
                    Ok(size_bytes) => Ok(size_bytes),
                    Err(_) => Err(io::Error::from_raw_os_error(-event.result())),
                };
                return ReadCompletion { tag: event.user_data() as u32, result };
            }
            // Waits without submitting, so that an entry whose submission failed is not submitted
            // now.
            // SAFETY: needed because the call is raw. There is no signal mask, so no pointer.
            let waited =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GET_EVENTS, None) };
            if waited.is_err_and(|error| !is_transient(&error)) {
                // Requests in flight complete even if waiting for them fails.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
