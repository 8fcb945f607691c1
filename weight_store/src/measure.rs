//! Measuring the time that devices take for their shares of a blob when all of them read at once.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::time::Instant;

use crate::buffer::AlignedBuffer;
use crate::error::ReadError;
use crate::layout::BLOCK_BYTES;
use crate::reader::Reader;
use crate::staged::BlobId;

/// A device's share of the destination.
struct BlobPart {
    blocks: Range<u64>,
    to: NonNull<u8>,
}

// SAFETY: needed because of the pointer. Parts are of different blocks, so the thread that has one
// may write its bytes.
unsafe impl Send for BlobPart {}

/// Reads `blob` through all `readers` at once, `repeats` times: the first `sizes[0]` blocks through
/// the first reader and so on, each in its own thread. All threads start a repeat together. Returns
/// for each reader the median of its times in seconds, or its first error.
///
/// # Panics
///
/// Panics if the number of sizes differs from the number of readers, the sizes exceed the blocks of
/// the blob, `to` is shorter than the blob, or `repeats` is 0.
pub fn measure(
    readers: &mut [Reader],
    blob: BlobId,
    sizes: &[u64],
    to: &mut AlignedBuffer,
    repeats: usize,
) -> Vec<Result<f64, ReadError>> {
    assert_eq!(readers.len(), sizes.len(), "a size for every reader");
    assert!(repeats > 0, "a median of nothing");
    let total_bytes = sizes.iter().sum::<u64>() * BLOCK_BYTES;
    for reader in readers.iter() {
        assert!(sizes.iter().sum::<u64>() <= reader.staged().blocks(blob), "blocks of the blob");
    }
    let size_bytes = readers.iter().map(|reader| reader.staged().size_bytes(blob)).max();
    let needed_bytes = total_bytes.min(size_bytes.unwrap_or(0));
    assert!(to.len() as u64 >= needed_bytes, "the destination holds the blob");
    let start = to.start();
    let barrier = Barrier::new(readers.len());
    std::thread::scope(|scope| {
        let mut next_block = 0;
        let mut threads = Vec::new();
        for (reader, size) in readers.iter_mut().zip(sizes) {
            let part = BlobPart { blocks: next_block..next_block + size, to: start };
            next_block += size;
            let barrier = &barrier;
            threads.push(scope.spawn(move || read_part(reader, blob, &part, barrier, repeats)));
        }
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

fn read_part(
    reader: &mut Reader,
    blob: BlobId,
    part: &BlobPart,
    barrier: &Barrier,
    repeats: usize,
) -> Result<f64, ReadError> {
    let mut times_s = Vec::with_capacity(repeats);
    let mut failure = None;
    for _ in 0..repeats {
        // Also after a failure, since all other threads wait at the barrier.
        barrier.wait();
        if failure.is_some() {
            continue;
        }
        let begin = Instant::now();
        // SAFETY: needed because the device writes through a pointer. The destination holds the
        // blob, is borrowed by `measure` until all threads have ended, and no other thread has
        // these blocks.
        match unsafe { reader.read(blob, part.blocks.clone(), part.to) } {
            Ok(()) => times_s.push(begin.elapsed().as_secs_f64()),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => {
            times_s.sort_by(f64::total_cmp);
            Ok(times_s[times_s.len() / 2])
        }
    }
}
