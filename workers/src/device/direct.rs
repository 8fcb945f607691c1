//! Direct reads from stagings into a device's memory, through cuFile.
//!
//! No CPU sees this data, so its blocks are not verified. One block is verified at start, which
//! shows that the data reaches the memory that another process has allocated.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use cuda::{CuFile, DirectFile, DirectMemory, PinnedBuffer, Stream};
use program::ir::BufferId;
use weight_store::device::{ReadRequest, ReadSource, ThreadPoolIo};
use weight_store::{BLOCK_BYTES, BlobId, Reader, ReaderOptions, StagedCopy};

use super::open::Device;
use crate::error::WorkerError;

/// Number of reading threads, each with one request, since calls of cuFile return only when all
/// data has arrived.
const THREADS: u32 = 8;
/// Size of a request, in bytes.
const REQUEST_BYTES: u64 = 4 << 20;

/// A device that is the target of direct reads.
#[derive(Debug)]
pub struct DirectDevice {
    /// The pinned arena; if `None`, the library could not pin it and reads through memory of its
    /// own.
    memory: Option<DirectMemory>,
    cufile: Arc<CuFile>,
    /// Outlives its registrations.
    device: Arc<Device>,
}

fn failed(reason: impl ToString) -> WorkerError {
    let reason = reason.to_string();
    let reason = format!(
        "weights cannot be read straight to the device: {}; run with --nvme-direct off",
        reason.trim_end_matches('.')
    );
    WorkerError::Staging { reason }
}

impl DirectDevice {
    /// Opens cuFile in this process, whose device is open.
    ///
    /// # Errors
    /// Returns an error if cuFile is missing or fails to open.
    pub fn open(device: &Arc<Device>) -> Result<Arc<DirectDevice>, WorkerError> {
        let cufile = CuFile::open().map_err(failed)?;
        let memory = DirectMemory::new(&cufile, device.arena()).ok();
        Ok(Arc::new(DirectDevice { memory, cufile, device: Arc::clone(device) }))
    }

    /// Returns a reader from a staging to the device.
    ///
    /// # Errors
    /// Returns an error if cuFile does not support the file system, or the staging does not support
    /// the options.
    pub fn reader(
        self: &Arc<Self>,
        staged: &StagedCopy,
        options: &ReaderOptions,
    ) -> Result<Reader, WorkerError> {
        let file = staged.open_weights().map_err(failed)?;
        let file = DirectFile::new(&self.cufile, file).map_err(failed)?;
        let options =
            ReaderOptions { queue_depth: THREADS, request_bytes: REQUEST_BYTES, ..options.clone() };
        let source = DirectSource { file, target: Arc::clone(self) };
        let io = ThreadPoolIo::new(source, THREADS, THREADS).map_err(WorkerError::Thread)?;
        let pinned = if self.memory.is_some() { ", pinned arena" } else { "" };
        let description = format!("{}{pinned}, {THREADS} threads", self.cufile.describe());
        Reader::with_io(staged, Box::new(io), &description, &options).map_err(failed)
    }

    /// Returns the location of a slot, as expected by readers of [`DirectDevice::reader`].
    ///
    /// # Panics
    /// Panics if the buffer is in host memory or smaller than `size_bytes`.
    pub fn slot(&self, buffer: BufferId, size_bytes: usize) -> Option<NonNull<u8>> {
        let address = self.device.buffer_addresses().address(buffer, 0, size_bytes);
        NonNull::new(std::ptr::without_provenance_mut(address as usize))
    }

    /// Reads the first block of a blob into a slot and compares the result with the staged data.
    ///
    /// # Errors
    /// Returns an error if the read fails or the data differs.
    ///
    /// # Safety
    /// No lane runs yet, and any concurrent reader to the slot reads the same block.
    pub unsafe fn verify_first_block(
        &self,
        reader: &mut Reader,
        blob: BlobId,
        buffer: BufferId,
    ) -> Result<(), WorkerError> {
        let size_bytes = reader.staged().size_bytes(blob).min(BLOCK_BYTES) as usize;
        if size_bytes == 0 {
            return Ok(());
        }
        let slot = self.slot(buffer, size_bytes).ok_or_else(|| failed("no slot address"))?;
        // SAFETY: needed because the device writes to the slot; the caller guarantees that it is
        // free.
        unsafe { reader.read(blob, 0..1, slot) }.map_err(failed)?;
        let host = PinnedBuffer::allocate(self.device.context(), size_bytes)?;
        let stream = Stream::new(self.device.context())?;
        let from = self.device.buffer_addresses().address(buffer, 0, size_bytes);
        // SAFETY: needed to see what arrived. The range is within the slot, `host` has at least its
        // size, and it is read only once the stream is done.
        let bytes = unsafe {
            stream.copy_to_host(host.base(), from, size_bytes)?;
            stream.synchronize()?;
            std::slice::from_raw_parts(host.base(), size_bytes)
        };
        match reader.staged().is_block(blob, 0, bytes) {
            true => Ok(()),
            false => Err(failed("the bytes read differ from the staged ones")),
        }
    }
}

/// A file, and the device that it is read to.
#[derive(Debug)]
struct DirectSource {
    /// Closed before the library.
    file: DirectFile,
    target: Arc<DirectDevice>,
}

impl ReadSource for DirectSource {
    fn prepare_thread(&self) -> io::Result<()> {
        self.target.device.context().make_current().map_err(io::Error::other)
    }

    unsafe fn read(&self, request: &ReadRequest) -> io::Result<u32> {
        let base = self.target.device.arena().base();
        let ahead_bytes = request.to.as_ptr().addr() as u64 - base;
        // SAFETY: needed to let the drive write. The caller promises that the destination is a
        // range of the device's, which is within the arena (`BufferAddresses::address`), and that
        // nothing else touches it until this returns.
        let read = unsafe {
            let size_bytes = request.size_bytes as usize;
            self.file.read(base, ahead_bytes, request.offset_bytes, size_bytes)
        }?;
        // Precedes the lane's signal that the data has arrived.
        self.target.device.context().flush_remote_writes().map_err(io::Error::other)?;
        Ok(read as u32)
    }
}
