//! Counting allocator, which measures the invariant that nothing is allocated from ready to drain.
//! The binary installs it with `#[global_allocator]`; without it the count stays 0.

use std::alloc::{GlobalAlloc, Layout, System};

use shm::sync::{AtomicU32, AtomicU64, Ordering};

static ARMED: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts allocations and reallocations while armed.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Starts counting from 0, in all threads of the process.
pub fn arm() {
    COUNT.store(0, Ordering::Relaxed);
    ARMED.store(1, Ordering::Release);
}

/// Stops counting.
pub fn disarm() {
    ARMED.store(0, Ordering::Release);
}

/// Returns the number of allocations since [`arm`].
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

fn record_allocation() {
    if ARMED.load(Ordering::Relaxed) != 0 {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: needed because the trait is unsafe. Every call goes to the system's allocator unchanged;
// counting allocates nothing, so it cannot recurse.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_allocation();
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record_allocation();
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size_bytes: usize) -> *mut u8 {
        record_allocation();
        // SAFETY: the caller's contract is passed on.
        unsafe { System.realloc(pointer, layout, size_bytes) }
    }
}
