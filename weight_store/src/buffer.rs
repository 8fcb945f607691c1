//! Memory for reads and writes that bypass the page cache.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::layout::PAGE_BYTES;

/// Zeroed memory whose address and size are multiples of [`PAGE_BYTES`].
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: needed because of the pointer. This value has exclusive ownership of the memory.
unsafe impl Send for AlignedBuffer {}
// SAFETY: needed because of the pointer. Shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates at least `size_bytes`, rounded up to whole pages, and at least one page.
    ///
    /// # Panics
    ///
    /// Panics if the size exceeds the address space.
    pub fn new(size_bytes: usize) -> AlignedBuffer {
        let page_bytes = PAGE_BYTES as usize;
        let rounded = size_bytes.max(1).checked_next_multiple_of(page_bytes);
        let layout = rounded.and_then(|size| Layout::from_size_align(size, page_bytes).ok());
        let layout = layout.expect("a buffer fits in an address space");
        // SAFETY: needed because the allocator's interface is unsafe; the size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuffer { start, layout }
    }

    /// Returns the size in bytes, a multiple of [`PAGE_BYTES`].
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns false: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the address of the first byte.
    pub fn start(&mut self) -> NonNull<u8> {
        self.start
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: needed to see an allocation as a slice. It has this size, was zeroed and is
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    /// Returns all bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: needed because the allocator's interface is unsafe; allocated with this layout
        // and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
