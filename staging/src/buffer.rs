//! Memory that reads and writes past the page cache may use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::layout::PAGE_BYTES;

/// Zeroed memory that begins at a multiple of [`PAGE_BYTES`] and is a multiple of it long.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: needed because of the pointer. The memory belongs to this value alone.
unsafe impl Send for AlignedBuffer {}
// SAFETY: needed because of the pointer. Shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// At least `size_bytes`, rounded up to pages, and at least one page.
    ///
    /// # Panics
    ///
    /// If no address space has that many bytes.
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

    /// Its bytes, rounded up as they are.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never: a buffer has a page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its first byte.
    pub fn start(&mut self) -> NonNull<u8> {
        self.start
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: needed to see an allocation as a slice. It has this size, was zeroed and is
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    /// All bytes, to write them.
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
