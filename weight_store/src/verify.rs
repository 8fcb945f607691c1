//! Verification: reads everything that is staged and compares it with its checksums.

use std::ptr::NonNull;

use crate::buffer::AlignedBuffer;
use crate::checksum::ChecksumBuilder;
use crate::error::{ReadError, ReaderError};
use crate::layout::BLOCK_BYTES;
use crate::options::ReaderOptions;
use crate::reader::Reader;
use crate::staged::{BlobId, StagedCopy};

/// Number of blocks read at a time: 32 MiB.
const WINDOW_BLOCKS: u64 = 512;

/// A damaged blob.
#[derive(Debug)]
pub struct DamagedBlob {
    /// Name of the blob.
    pub blob: String,
    /// First error of reading it.
    pub error: ReadError,
}

/// Result of a verification.
#[derive(Debug)]
pub struct VerifyReport {
    /// Size of the blobs that were processed.
    pub done_bytes: u64,
    /// True if all blobs were processed and the verification was not stopped before.
    pub is_complete: bool,
    pub damaged: Vec<DamagedBlob>,
    /// Way of reading, for reports.
    pub method: String,
}

impl StagedCopy {
    /// Reads every blob like a run does, and continues after a damaged one. Calls `progress` after
    /// every part with the bytes done and the bytes of all blobs; verification stops if it returns
    /// false.
    ///
    /// # Errors
    ///
    /// Fails if the weights cannot be opened for reading.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<VerifyReport, ReaderError> {
        let mut reader = Reader::open(self, ReaderOptions::default())?;
        let mut window = AlignedBuffer::new((WINDOW_BLOCKS * BLOCK_BYTES) as usize);
        let total_bytes = self.total_bytes();
        let method = reader.describe();
        let mut verified =
            VerifyReport { done_bytes: 0, is_complete: false, damaged: Vec::new(), method };
        for blob in self.blobs() {
            let before_bytes = verified.done_bytes;
            let mut on_part = |part_bytes| progress(before_bytes + part_bytes, total_bytes);
            match verify_blob(&mut reader, self, blob, &mut window, &mut on_part) {
                Ok(true) => {}
                Ok(false) => return Ok(verified),
                Err(error) => {
                    verified.damaged.push(DamagedBlob { blob: self.name(blob).to_owned(), error });
                }
            }
            verified.done_bytes += self.size_bytes(blob);
            if !progress(verified.done_bytes, total_bytes) {
                return Ok(verified);
            }
        }
        verified.is_complete = true;
        Ok(verified)
    }
}

/// Reads one blob; returns false if `on_part` stopped it.
fn verify_blob(
    reader: &mut Reader,
    staged: &StagedCopy,
    blob: BlobId,
    window: &mut AlignedBuffer,
    on_part: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, ReadError> {
    let size_bytes = staged.size_bytes(blob);
    let blocks = staged.blocks(blob);
    let mut running = ChecksumBuilder::default();
    for first in (0..blocks).step_by(WINDOW_BLOCKS as usize) {
        let end = (first + WINDOW_BLOCKS).min(blocks);
        let start: NonNull<u8> = window.start();
        // SAFETY: needed because the device writes through a pointer. The window holds at least as
        // many blocks, and nothing else uses it until the call has returned.
        unsafe { reader.read_part(blob, first..end, start)? };
        let from_bytes = first * BLOCK_BYTES;
        let part_bytes = (end * BLOCK_BYTES).min(size_bytes) - from_bytes;
        running.update(&window.bytes()[..part_bytes as usize]);
        if end < blocks && !on_part(from_bytes + part_bytes) {
            return Ok(false);
        }
    }
    if running.finish() == staged.checksum(blob) {
        return Ok(true);
    }
    // Every block matches its checksum but the blob does not: the checksums contradict each other.
    Err(reader.mismatch(blob, 0, size_bytes))
}
