//! Streams, the copies on them, and events.

use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;

use crate::context::Context;
use crate::error::{CudaError, code};
use crate::memory::DeviceAddress;

/// Flag of a stream that is not ordered against the default stream, which nothing here uses.
const NON_BLOCKING: u32 = 1;
/// Waits until `word - value` is not negative, which is how timelines compare.
const WAIT_GEQ: u32 = 0;
/// Makes what other devices wrote before the word visible to later work of the stream.
const WAIT_FLUSH: u32 = 1 << 30;

/// An in-order queue of the device.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    pub(crate) stream: sys::CUstream,
    /// Number of entries enqueued so far.
    enqueued: Mutex<u64>,
}

// SAFETY: needed because the stream is a pointer. The driver's functions may be called from any
// thread.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`; calls on one stream from several threads are ordered by the driver.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of the context.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn new(context: &Context) -> Result<Stream, CudaError> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: needed to create a stream; the driver writes one pointer.
        let result = unsafe { (context.table().stream_create)(&raw mut stream, NON_BLOCKING) };
        context.table().check("cuStreamCreate", result)?;
        Ok(Stream { context: context.clone(), stream, enqueued: Mutex::new(0) })
    }

    /// Returns the number of entries (launches, copies, fills, waits, recorded events) enqueued
    /// since the stream was created. The driver's queue is short: a call that finds it full blocks,
    /// and may hold up all threads of the process.
    pub fn enqueued(&self) -> u64 {
        *self.enqueued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts entries that are about to be enqueued.
    pub(crate) fn count(&self, entries: u64) {
        *self.enqueued.lock().unwrap_or_else(PoisonError::into_inner) += entries;
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies host memory to the device.
    ///
    /// # Errors
    /// Fails if the driver refuses, or because of an earlier failure on the device.
    ///
    /// # Safety
    /// Until the stream has passed the copy, both ranges stay mapped, and nothing else writes the
    /// source or accesses the target.
    pub unsafe fn copy_to_device(
        &self,
        to: DeviceAddress,
        from: *const u8,
        size_bytes: usize,
    ) -> Result<(), CudaError> {
        self.count(1);
        // SAFETY: needed to enqueue the copy; the caller vouches for both ranges.
        let result = unsafe {
            (self.context.table().copy_to_device)(to, from.cast(), size_bytes, self.stream)
        };
        self.context.table().check("cuMemcpyHtoDAsync", result)
    }

    /// Copies device memory to the host.
    ///
    /// # Errors
    /// Fails like [`Stream::copy_to_device`].
    ///
    /// # Safety
    /// The requirements of [`Stream::copy_to_device`] apply.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DeviceAddress,
        size_bytes: usize,
    ) -> Result<(), CudaError> {
        self.count(1);
        // SAFETY: needed to enqueue the copy; the caller vouches for both ranges.
        let result = unsafe {
            (self.context.table().copy_to_host)(to.cast(), from, size_bytes, self.stream)
        };
        self.context.table().check("cuMemcpyDtoHAsync", result)
    }

    /// Copies within the device.
    ///
    /// # Errors
    /// Fails like [`Stream::copy_to_device`].
    ///
    /// # Safety
    /// The requirements of [`Stream::copy_to_device`] apply; the ranges do not overlap.
    pub unsafe fn copy_on_device(
        &self,
        to: DeviceAddress,
        from: DeviceAddress,
        size_bytes: usize,
    ) -> Result<(), CudaError> {
        self.count(1);
        // SAFETY: needed to enqueue the copy; the caller vouches for both ranges.
        let result =
            unsafe { (self.context.table().copy_on_device)(to, from, size_bytes, self.stream) };
        self.context.table().check("cuMemcpyDtoDAsync", result)
    }

    /// Fills device memory with one byte.
    ///
    /// # Errors
    /// Fails like [`Stream::copy_to_device`].
    ///
    /// # Safety
    /// The range is device memory, and nothing else accesses it until the stream has passed this.
    pub unsafe fn fill(
        &self,
        to: DeviceAddress,
        byte: u8,
        size_bytes: usize,
    ) -> Result<(), CudaError> {
        self.count(1);
        // SAFETY: needed to enqueue the fill; the caller vouches for the range.
        let result = unsafe { (self.context.table().fill)(to, byte, size_bytes, self.stream) };
        self.context.table().check("cuMemsetD8Async", result)
    }

    /// Makes the stream wait until the u32 at `word` has reached `value`, by signed difference.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    ///
    /// # Safety
    /// `word` is the device address of registered host memory that outlives the wait.
    pub unsafe fn wait_value(&self, word: DeviceAddress, value: u32) -> Result<(), CudaError> {
        // SAFETY: the contract of this function.
        unsafe { self.wait(word, value, WAIT_GEQ) }
    }

    /// Makes the stream wait like [`Stream::wait_value`] for a word that announces writes of
    /// another device, such as a drive, to the device's memory: later work of the stream sees these
    /// writes.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    ///
    /// # Safety
    /// The requirements of [`Stream::wait_value`] apply.
    pub unsafe fn wait_value_of_device(
        &self,
        word: DeviceAddress,
        value: u32,
    ) -> Result<(), CudaError> {
        let flush = if self.context.streams_flush_remote_writes() { WAIT_FLUSH } else { 0 };
        // SAFETY: the contract of this function.
        unsafe { self.wait(word, value, WAIT_GEQ | flush) }
    }

    unsafe fn wait(&self, word: DeviceAddress, value: u32, flags: u32) -> Result<(), CudaError> {
        self.count(1);
        // SAFETY: needed to enqueue the wait; the caller vouches for the word.
        let result =
            unsafe { (self.context.table().stream_wait_value)(self.stream, word, value, flags) };
        self.context.table().check("cuStreamWaitValue32", result)
    }

    /// Blocks until all work of the stream is done: for loading and for tests, where nothing can
    /// end the wait early.
    ///
    /// # Errors
    /// Returns a failure that occurred on the device meanwhile.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: needed to wait; this value owns the stream.
        let result = unsafe { (self.context.table().stream_synchronize)(self.stream) };
        self.context.table().check("cuStreamSynchronize", result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: needed to destroy the stream; the driver lets queued work finish.
        let _ = unsafe { (self.context.table().stream_destroy)(self.stream) };
    }
}

/// A point in a stream, with the time at which the device passed it.
#[derive(Debug)]
pub struct Event {
    context: Context,
    event: sys::CUevent,
}

// SAFETY: needed because the event is a pointer. The driver's functions may be called from any
// thread.
unsafe impl Send for Event {}
// SAFETY: as for `Send`; calls on one event from several threads are ordered by the driver.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event with timing.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn new(context: &Context) -> Result<Event, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: needed to create an event; the driver writes one pointer.
        let result = unsafe { (context.table().event_create)(&raw mut event, 0) };
        context.table().check("cuEventCreate", result)?;
        Ok(Event { context: context.clone(), event })
    }

    /// Records the event at the current end of the stream.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.count(1);
        // SAFETY: needed to enqueue the event; event and stream are alive.
        let result = unsafe { (self.context.table().event_record)(self.event, stream.stream) };
        self.context.table().check("cuEventRecord", result)
    }

    /// Returns true if the stream has passed the last recorded point.
    ///
    /// # Errors
    /// Returns a failure that occurred on the device meanwhile.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: needed for the query; the event is alive.
        match unsafe { (self.context.table().event_query)(self.event) } {
            code::NOT_READY => Ok(false),
            result => self.context.table().check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Returns the time from `earlier` to this event in nanoseconds; both must be done.
    ///
    /// # Errors
    /// Fails if the driver refuses.
    pub fn elapsed_ns(&self, earlier: &Event) -> Result<u64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: needed to query the time; the driver writes one f32, both events are alive.
        let result = unsafe {
            (self.context.table().event_elapsed)(&raw mut milliseconds, earlier.event, self.event)
        };
        self.context.table().check("cuEventElapsedTime", result)?;
        Ok((f64::from(milliseconds.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: needed to destroy the event; the driver keeps it while it is in use.
        let _ = unsafe { (self.context.table().event_destroy)(self.event) };
    }
}
