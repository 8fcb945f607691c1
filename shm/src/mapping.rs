//! Mappings: memory of this process addressed by offset, shared with other processes or private.
//!
//! The only `mmap` of the control path and of tensor memory. Pages are allocated on first use
//! (`MAP_NORESERVE`), so a mapping may reserve its maximum.
//!
//! Invariants: the memory stays mapped as long as the `Mapping` lives; ranges are offsets from its
//! base and never addresses.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use bytemuck::Pod;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::sync::{AtomicUsize, Ordering};

/// Size of a piece that a thread populates in one call.
const PIECE_BYTES: usize = 64 << 20;

/// Access that a mapping permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapped for reading; a write would fault.
    ReadOnly,
    /// Mapped for reading and writing.
    ReadWrite,
}

/// The kernel refused to map.
#[derive(Debug, thiserror::Error)]
#[error(
    "The kernel refused to map {size_bytes} bytes of memory: {source}. Free memory or raise the \
     address-space limit (`ulimit -v`)."
)]
pub struct MapError {
    /// Requested size.
    pub size_bytes: usize,
    /// Error of the kernel.
    pub source: Errno,
}

/// Mapped memory. `Send + Sync`; wrap it in an `Arc` to keep views of it.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    size_bytes: usize,
    access: Access,
}

// SAFETY: needed because of the raw base pointer. A mapping belongs to the process and not to a
// thread, it is unmapped only by `drop`, and every access through a shared `Mapping` is either
// unsafe with an ownership contract or through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: `&Mapping` gives safe access only to numbers that never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory of this process alone, in huge pages where the system offers them on
    /// request. Few systems use them for shared memory, and reading memory without them takes 5%
    /// longer.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if `size_bytes` is 0.
    pub fn private(size_bytes: usize) -> Result<Mapping, MapError> {
        let (protection, flags) =
            (Access::ReadWrite.protection(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: mapping is a foreign call; the address is the kernel's choice, so no existing
        // mapping is replaced.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size_bytes, protection, flags)
        };
        let mapping = Mapping::over(base, size_bytes, Access::ReadWrite)?;
        // The memory is useless in a core file. A kernel that lacks either advice maps it all the
        // same.
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontDump] {
            // SAFETY: needed to advise; the range is this mapping, and neither advice changes a
            // byte.
            let advised = unsafe { rustix::mm::madvise(mapping.base().cast(), size_bytes, advice) };
            let _ = advised;
        }
        Ok(mapping)
    }

    /// Maps a file's first `size_bytes`, shared with all other processes that map them.
    ///
    /// # Safety
    /// The file must never become shorter than that.
    pub(crate) unsafe fn shared(
        fd: BorrowedFd<'_>,
        size_bytes: usize,
        access: Access,
    ) -> Result<Mapping, MapError> {
        let (protection, flags) = (access.protection(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: as in `private`; the pages stay valid until `drop` unmaps them, because the file
        // does not shrink (contract of this function).
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), size_bytes, protection, flags, fd, 0) };
        Mapping::over(base, size_bytes, access)
    }

    fn over(
        base: Result<*mut std::ffi::c_void, Errno>,
        size_bytes: usize,
        access: Access,
    ) -> Result<Mapping, MapError> {
        let base = base.and_then(|base| NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM));
        let base = base.map_err(|source| MapError { size_bytes, source })?;
        Ok(Mapping { base, size_bytes, access })
    }

    /// Returns the size in bytes, as requested.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns the access that this mapping permits.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the address of the first byte in this process. Page-aligned; never to be stored in
    /// shared memory.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Requests the pages of a range from the system in one call, before they are first used: a
    /// fault for each page takes twice as long, and delays the thread that first accesses it. A
    /// system without this call provides them on faults.
    ///
    /// # Panics
    /// Panics like [`Mapping::pointer`].
    pub fn populate(&self, offset_bytes: usize, size_bytes: usize) {
        let page = rustix::param::page_size();
        let first = offset_bytes - offset_bytes % page;
        let size_bytes = offset_bytes + size_bytes - first;
        let base = self.pointer::<u8>(first, size_bytes).as_ptr().cast();
        let advice = match self.access {
            Access::ReadOnly => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: needed to populate; the range is mapped (checked by `pointer`) and stays so, and
        // the call changes no byte of it.
        let populated = unsafe { rustix::mm::madvise(base, size_bytes, advice) };
        // Linux before 5.14 does not know this advice.
        let _ = populated;
    }

    /// Populates the pages of a range on `threads` threads: a single thread takes long to clear
    /// gigabytes, and a call that pins memory is single-threaded.
    ///
    /// # Panics
    /// Panics if the range leaves the mapping.
    pub fn populate_range(&self, range: Range<usize>, threads: usize) {
        let pieces = range.len().div_ceil(PIECE_BYTES);
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let first = range.start + next.fetch_add(1, Ordering::Relaxed) * PIECE_BYTES;
                if first >= range.end {
                    break;
                }
                self.populate(first, PIECE_BYTES.min(range.end - first));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(pieces) {
                // Not needed: this thread populates the pages of threads that cannot be started.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }

    /// Returns a pointer to `count` values of `T` at `offset_bytes`, checked for bounds and
    /// alignment.
    ///
    /// # Panics
    /// Panics if the range leaves the mapping or `offset_bytes` is not a multiple of `T`'s
    /// alignment: a plan that requests it has passed the validator wrongly, and continuing would
    /// corrupt memory.
    pub fn pointer<T>(&self, offset_bytes: usize, count: usize) -> NonNull<T> {
        let end_bytes = size_of::<T>()
            .checked_mul(count)
            .and_then(|length_bytes| length_bytes.checked_add(offset_bytes));
        assert!(
            end_bytes.is_some_and(|end| end <= self.size_bytes),
            "{count} values of {} bytes at offset {offset_bytes} leave a mapping of {} bytes",
            size_of::<T>(),
            self.size_bytes,
        );
        assert!(
            offset_bytes.is_multiple_of(align_of::<T>()),
            "offset {offset_bytes} is not aligned to {} bytes",
            align_of::<T>(),
        );
        // SAFETY: needed to stay within the mapping's provenance. The range was just checked to be
        // within the mapping.
        unsafe { self.base.add(offset_bytes) }.cast()
    }

    /// Returns `count` values at `offset_bytes` for reading.
    ///
    /// # Safety
    /// The caller owns the range in this epoch: for the life of the slice no process and no thread
    /// writes any byte of it. In a run this follows from the validated program and the timelines
    /// waited on.
    ///
    /// # Panics
    /// Panics like [`Mapping::pointer`].
    pub unsafe fn slice<T: Pod>(&self, offset_bytes: usize, count: usize) -> &[T] {
        let first = self.pointer::<T>(offset_bytes, count);
        // SAFETY: needed to view the mapping as values. The range is mapped and aligned (checked by
        // `pointer`), any bytes are a `Pod`, the mapping outlives `&self`, and the caller vouches
        // that nothing writes meanwhile.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// Returns `count` values at `offset_bytes` for writing.
    ///
    /// # Safety
    /// The caller owns the range exclusively in this epoch: for the life of the slice no other
    /// thread, in this process or another, reads or writes any byte of it.
    ///
    /// # Panics
    /// Panics like [`Mapping::pointer`], and if the mapping is read-only.
    #[expect(clippy::mut_from_ref, reason = "exclusiveness is the caller's contract, by epoch")]
    pub unsafe fn slice_mut<T: Pod>(&self, offset_bytes: usize, count: usize) -> &mut [T] {
        assert!(
            self.access == Access::ReadWrite,
            "a writable view was asked of a read-only mapping"
        );
        let first = self.pointer::<T>(offset_bytes, count);
        // SAFETY: as in `slice`; the mapping is writable (asserted) and the caller vouches for
        // exclusive ownership.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), count) }
    }
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmapping is a foreign call. Base and size are those that were mapped, and views
        // borrow from or hold the mapping, so none is left. It fails only for arguments that were
        // never mapped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_zero_and_written() {
        let mapping = Mapping::private(5000).unwrap();
        // SAFETY: this test is the only owner of the mapping; the first slice ends before the
        // second.
        unsafe {
            assert!(mapping.slice::<u8>(0, 5000).iter().all(|byte| *byte == 0));
            mapping.slice_mut::<u32>(4096, 3).copy_from_slice(&[1, 2, 3]);
            assert_eq!(mapping.slice::<u32>(4096, 3), [1, 2, 3]);
        }
        mapping.populate(0, 5000);
    }

    #[test]
    fn all_pages_of_a_segment_are_there_once_threads_have_asked_for_them() {
        // A multiple of neither the piece size nor the page size.
        let size_bytes = 2 * PIECE_BYTES + 5000;
        let segment = crate::Segment::create("populated", size_bytes).unwrap();
        let blocks = || rustix::fs::fstat(segment.fd()).unwrap().st_blocks as usize;
        assert_eq!(blocks(), 0);
        segment.populate(0, 1);
        if blocks() == 0 {
            // This kernel does not know the advice.
            return;
        }
        segment.populate_range(0..segment.size_bytes(), 3);
        // Blocks of 512 bytes.
        assert!(blocks() * 512 >= size_bytes, "{} blocks", blocks());
    }

    #[test]
    fn private_memory_of_an_impossible_size_is_an_error_with_its_number() {
        let error = Mapping::private(usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains(&(usize::MAX / 2).to_string()), "{error}");
        assert!(Mapping::private(0).is_err());
    }

    #[test]
    #[should_panic(expected = "leave a mapping")]
    fn a_range_past_the_end_panics() {
        Mapping::private(64).unwrap().pointer::<u32>(60, 2);
    }

    #[test]
    #[should_panic(expected = "leave a mapping")]
    fn a_range_that_overflows_panics() {
        Mapping::private(64).unwrap().pointer::<u32>(8, usize::MAX / 2);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_range_panics() {
        Mapping::private(64).unwrap().pointer::<u32>(2, 1);
    }
}
