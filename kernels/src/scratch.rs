//! Scratch memory: allocated once by `Kernels::new` from given limits, so that no kernel call
//! allocates.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Largest shapes that one set of kernels supports. A call beyond them panics, except for `rows`,
/// which only determines the number of rows processed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchLimits {
    /// Rows of a linear in one call; more are processed in several passes over the weight.
    pub rows: usize,
    /// Input width (`k`) of a linear.
    pub linear_inputs: usize,
    /// Positions of one attention unit, cached and fresh together.
    pub positions: usize,
    /// Query heads that share a KV head.
    pub group: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

/// Zeroed f32 on a 64-byte boundary. Pages are allocated by the system only when a kernel writes
/// them.
pub(crate) struct AlignedBuffer {
    pointer: NonNull<f32>,
    len: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(len: usize) -> Self {
        let len = len.max(16).next_multiple_of(16);
        let layout = Self::layout(len);
        // SAFETY: the layout has a size of at least 64 bytes.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer.cast::<f32>()) else {
            handle_alloc_error(layout);
        };
        AlignedBuffer { pointer, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len * 4, 64).expect("scratch smaller than the address space")
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut f32 {
        self.pointer.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.pointer.as_ptr().cast(), Self::layout(self.len)) };
    }
}

// SAFETY: the buffer owns its memory; access goes through raw pointers, whose users are responsible
// for it.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; sharing the buffer shares only the address.
unsafe impl Sync for AlignedBuffer {}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

/// One buffer for each thread of the pool.
#[derive(Debug)]
pub(crate) struct ThreadScratch(Vec<AlignedBuffer>);

impl ThreadScratch {
    pub(crate) fn new(threads: usize, len: usize) -> Self {
        ThreadScratch((0..threads).map(|_| AlignedBuffer::new(len)).collect())
    }

    /// Returns the scratch of one thread of the pool; only that thread may use it, within one task.
    pub(crate) fn for_thread(&self, thread: usize) -> *mut f32 {
        self.0[thread].as_mut_ptr()
    }
}

/// A pointer that tasks on several threads use, each for its own part.
#[derive(Debug)]
pub struct SharedPointer<T>(pub(crate) *mut T);

impl<T> Clone for SharedPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    /// Returns the pointer; a method, so that a closure captures the wrapper and not its field.
    #[inline(always)]
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }
}

// SAFETY: only the address is shared; code that dereferences it is responsible for disjoint parts.
unsafe impl<T: Send> Sync for SharedPointer<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedPointer<T> {}
