//! Reading allocates nothing. A separate program, because the allocator counts for all threads.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};

use common::*;
use shm::sync::{AtomicU64, Ordering};
use weight_store::{AlignedBuffer, IoKind, Reader, ReaderError, ReaderOptions};

static COUNT: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: needed because the trait is unsafe. Every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_per_read() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    let size_bytes = SIZES_BYTES.iter().max().unwrap();
    let mut buffer = AlignedBuffer::new(*size_bytes as usize);
    for io in [IoKind::Uring, IoKind::Threads] {
        for (direct, faults) in [(true, ""), (false, ""), (true, "rate=10G,short@40")] {
            let faults = faults.parse().unwrap();
            let request_bytes = 1 << 17;
            let options = ReaderOptions { io, direct, request_bytes, faults, ..Default::default() };
            let mut reader = match Reader::open(&staged, options) {
                Err(ReaderError::Refused { .. }) => continue,
                opened => opened.unwrap(),
            };
            let start = buffer.start();
            // The first read is not counted: threads allocate when they start.
            let blob = staged.blob("blob 9").unwrap();
            for _ in 0..3 {
                // SAFETY: needed because the device writes through a pointer; it holds the blob.
                unsafe { reader.read(blob, 0..staged.blocks(blob), start).unwrap() };
            }
            let before = COUNT.load(Ordering::Relaxed);
            for blob in staged.blobs() {
                // SAFETY: as above.
                unsafe { reader.read(blob, 0..staged.blocks(blob), start).unwrap() };
            }
            let allocations = COUNT.load(Ordering::Relaxed) - before;
            assert_eq!(allocations, 0, "{}", reader.describe());
        }
    }
    assert!(COUNT.load(Ordering::Relaxed) > 0, "the allocator counts");
}
