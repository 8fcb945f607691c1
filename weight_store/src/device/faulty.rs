//! A device with injected faults.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::faults::{Faults, ReadFault};
use super::request::{BufferRegistration, Io, ReadCompletion, ReadRequest};
use crate::layout::PAGE_BYTES;

/// Wraps a device with faults and a limited rate.
#[derive(Debug)]
pub struct FaultyIo {
    inner: Box<dyn Io>,
    faults: Faults,
    /// Number of requests submitted so far.
    requests: u64,
    /// First byte of the destination whose bit is inverted on completion, by tag.
    flips: Vec<Option<NonNull<u8>>>,
    /// Size of each request in bytes, by tag; determines the delay that enforces the rate.
    sizes_bytes: Vec<u32>,
    /// Tags of requests that fail without reaching the device.
    failed: VecDeque<u32>,
    /// Number of requests in the wrapped device.
    in_device: u32,
    /// Time at which a device of this rate would have finished all completed requests.
    free_at: Instant,
}

// SAFETY: needed because of the pointers, which point into destinations of requests in flight; the
// submitter of a request leaves its destination to the device.
unsafe impl Send for FaultyIo {}

impl FaultyIo {
    /// Wraps `inner` with `faults`, for at most `depth` requests in flight.
    pub fn new(inner: Box<dyn Io>, faults: Faults, depth: u32) -> FaultyIo {
        FaultyIo {
            inner,
            faults,
            requests: 0,
            flips: vec![None; depth as usize],
            sizes_bytes: vec![0; depth as usize],
            failed: VecDeque::with_capacity(depth as usize),
            in_device: 0,
            free_at: Instant::now(),
        }
    }

    fn wait_for_rate(&mut self, tag: u32) {
        if let Some(bytes_per_s) = self.faults.bytes_per_s {
            let size_bytes = f64::from(self.sizes_bytes[tag as usize]);
            self.free_at += Duration::from_secs_f64(size_bytes / bytes_per_s as f64);
            std::thread::sleep(self.free_at.saturating_duration_since(Instant::now()));
        }
    }
}

impl Io for FaultyIo {
    unsafe fn register(&mut self, buffers: &[(NonNull<u8>, usize)]) -> BufferRegistration {
        // SAFETY: needed because the call is unsafe; the caller's promise is passed on.
        unsafe { self.inner.register(buffers) }
    }

    unsafe fn submit(&mut self, mut request: ReadRequest) -> io::Result<()> {
        self.requests += 1;
        let tag = request.tag as usize;
        self.flips[tag] = None;
        match self.faults.for_request(self.requests) {
            Some(ReadFault::Error) => {
                self.failed.push_back(request.tag);
                return Ok(());
            }
            Some(ReadFault::Silence) => return Ok(()),
            Some(ReadFault::Short) => {
                let half_bytes = request.size_bytes / 2 / PAGE_BYTES as u32 * PAGE_BYTES as u32;
                request.size_bytes = half_bytes.max(PAGE_BYTES as u32).min(request.size_bytes);
            }
            Some(ReadFault::Flip) => self.flips[tag] = Some(request.to),
            None => {}
        }
        self.sizes_bytes[tag] = request.size_bytes;
        if self.in_device == 0 {
            self.free_at = self.free_at.max(Instant::now());
        }
        // SAFETY: needed because the call is unsafe. The caller's promise is passed on, for the
        // same bytes or fewer.
        unsafe { self.inner.submit(request)? };
        self.in_device += 1;
        Ok(())
    }

    fn complete(&mut self) -> ReadCompletion {
        if let Some(tag) = self.failed.pop_front() {
            return ReadCompletion { tag, result: Err(Errno::IO.into()) };
        }
        if self.in_device == 0 {
            // Only requests that never complete are left; the process must be ended from outside.
            loop {
                std::thread::park();
            }
        }
        let completion = self.inner.complete();
        self.in_device -= 1;
        self.wait_for_rate(completion.tag);
        if let (Some(to), Ok(1..)) =
            (self.flips[completion.tag as usize].take(), &completion.result)
        {
            // SAFETY: needed to corrupt the bytes that were read. The destination holds this byte,
            // and belongs to the device until the completion is returned.
            unsafe { to.as_ptr().write(to.as_ptr().read() ^ 1) };
        }
        completion
    }
}
