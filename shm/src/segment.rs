//! Segments: sealed memfds, mapped shared. The only `mmap` of the control path and of tensor
//! memory.
//!
//! The coordinator creates segments and passes their descriptors over a [`crate::Channel`]; workers
//! attach them. A segment has no name in any file system, so nothing is left behind however a run
//! ends. It is sealed against shrinking and growing before anybody else sees it, so an attached
//! mapping can never fault with SIGBUS. Pages are real only once touched (`MAP_NORESERVE`), so a
//! segment may reserve its maximum.
//!
//! Invariants: the mapping lives as long as the `Segment`; ranges are offsets from its base and
//! never addresses.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use bytemuck::Pod;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// What a process may do with a segment it attaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapped for reading; a write would fault.
    ReadOnly,
    /// Mapped for reading and writing.
    ReadWrite,
}

/// Why a segment could not be created or attached.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The kernel refused the memory file.
    #[error(
        "The kernel refused to create the memory segment `{name}` of {size_bytes} bytes: {source}."
    )]
    Create {
        /// What the segment is for.
        name: String,
        /// Its wanted size.
        size_bytes: usize,
        /// The kernel's reason.
        source: Errno,
    },
    /// A segment of no bytes cannot be mapped.
    #[error(
        "The memory segment `{name}` was asked for with 0 bytes; a segment needs at least one."
    )]
    Empty {
        /// What the segment is for.
        name: String,
    },
    /// The kernel refused to map.
    #[error(
        "The kernel refused to map {size_bytes} bytes of shared memory: {source}. Free memory or raise the \
         address-space limit (`ulimit -v`)."
    )]
    Map {
        /// Bytes to be mapped.
        size_bytes: usize,
        /// The kernel's reason.
        source: Errno,
    },
    /// The descriptor is not the segment that was announced.
    #[error(
        "The passed descriptor holds {found_bytes} bytes where a segment of {expected_bytes} bytes was announced; \
         both processes must come from the same build."
    )]
    Size {
        /// What the sender said.
        expected_bytes: usize,
        /// What the descriptor says.
        found_bytes: u64,
    },
    /// The descriptor could shrink under the mapping.
    #[error(
        "The passed descriptor is not a memory file sealed against a change of size, so it is not safe to map."
    )]
    Unsealed,
}

/// The seals every segment carries.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A mapped segment. `Send + Sync`; wrap it in an `Arc` to keep views of it.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    base: NonNull<u8>,
    size_bytes: usize,
    access: Access,
}

// SAFETY: needed because of the raw base pointer. A mapping belongs to the process and not to a
// thread, it is unmapped only by `drop`, and every access through a shared `Segment` is either
// unsafe with an ownership contract or through atomics.
unsafe impl Send for Segment {}
// SAFETY: as for `Send`: `&Segment` gives safe access to numbers that never change only.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a zero-filled segment of `size_bytes`, sealed against a change of size and mapped
    /// for writing. `name` shows in `/proc/PID/maps` and in errors only.
    pub fn create(name: &str, size_bytes: usize) -> Result<Segment, SegmentError> {
        if size_bytes == 0 {
            return Err(SegmentError::Empty { name: name.to_owned() });
        }
        let refused = |source| SegmentError::Create { name: name.to_owned(), size_bytes, source };
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(refused)?;
        rustix::fs::ftruncate(&fd, size_bytes as u64).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(refused)?;
        Segment::map(fd, size_bytes, Access::ReadWrite)
    }

    /// Maps a segment that another process created. The descriptor must hold exactly `size_bytes`
    /// and be sealed.
    pub fn attach(fd: OwnedFd, size_bytes: usize, access: Access) -> Result<Segment, SegmentError> {
        let refused = |source| SegmentError::Map { size_bytes, source };
        let found_bytes = rustix::fs::fstat(&fd).map_err(refused)?.st_size.cast_unsigned();
        if found_bytes != size_bytes as u64 || size_bytes == 0 {
            return Err(SegmentError::Size { expected_bytes: size_bytes, found_bytes });
        }
        // A file that knows no seals answers with EINVAL, which means the same as having none.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SIZE_SEALS) {
            return Err(SegmentError::Unsealed);
        }
        Segment::map(fd, size_bytes, access)
    }

    fn map(fd: OwnedFd, size_bytes: usize, access: Access) -> Result<Segment, SegmentError> {
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: mapping is a foreign call. The address is the kernel's choice, so no existing
        // mapping is replaced, and the file is sealed against shrinking (checked by both callers),
        // so the pages stay valid until `drop` unmaps them.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_bytes,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )
        }
        .map_err(|source| SegmentError::Map { size_bytes, source })?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or(SegmentError::Map { size_bytes, source: Errno::NOMEM })?;
        Ok(Segment { fd, base, size_bytes, access })
    }

    /// The descriptor, to be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of the segment, as asked for at creation.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// What this mapping permits.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The first byte in this process. Page-aligned; never to be stored in shared memory.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Asks the system for the pages of a range in one call, before they are first used: a fault for
    /// each page takes twice as long, and takes it from whoever touches it first. A system that cannot
    /// do it hands them out at the faults.
    ///
    /// # Panics
    /// As [`Segment::pointer`].
    pub fn populate(&self, offset_bytes: usize, size_bytes: usize) {
        let page = rustix::param::page_size();
        let first = offset_bytes - offset_bytes % page;
        let size_bytes = offset_bytes + size_bytes - first;
        let base = self.pointer::<u8>(first, size_bytes).as_ptr().cast();
        let advice = match self.access {
            Access::ReadOnly => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: needed to populate; the range is mapped (checked by `pointer`) and stays so, and the
        // call changes no byte of it.
        let populated = unsafe { rustix::mm::madvise(base, size_bytes, advice) };
        // Linux before 5.14 knows no such advice.
        let _ = populated;
    }

    /// Pointer to `count` values of `T` at `offset_bytes`, checked for bounds and alignment.
    ///
    /// # Panics
    /// If the range leaves the segment or `offset_bytes` is not a multiple of `T`'s alignment: a
    /// plan that asks for it has got past the validator, and going on would corrupt memory.
    pub fn pointer<T>(&self, offset_bytes: usize, count: usize) -> NonNull<T> {
        let end_bytes = size_of::<T>()
            .checked_mul(count)
            .and_then(|length_bytes| length_bytes.checked_add(offset_bytes));
        assert!(
            end_bytes.is_some_and(|end| end <= self.size_bytes),
            "{count} values of {} bytes at offset {offset_bytes} leave a segment of {} bytes",
            size_of::<T>(),
            self.size_bytes,
        );
        assert!(
            offset_bytes.is_multiple_of(align_of::<T>()),
            "offset {offset_bytes} is not aligned to {} bytes",
            align_of::<T>(),
        );
        // SAFETY: needed to stay within the mapping's provenance. The range was just checked to lie
        // in the mapping.
        unsafe { self.base.add(offset_bytes) }.cast()
    }

    /// `count` values at `offset_bytes`, for reading.
    ///
    /// # Safety
    /// The caller owns the range in this epoch: for the life of the slice no process and no thread
    /// writes any byte of it. In a run this follows from the validated program and the timelines
    /// waited on.
    ///
    /// # Panics
    /// As [`Segment::pointer`].
    pub unsafe fn slice<T: Pod>(&self, offset_bytes: usize, count: usize) -> &[T] {
        let first = self.pointer::<T>(offset_bytes, count);
        // SAFETY: needed to view the mapping as values. The range is mapped and aligned (checked by
        // `pointer`), any bytes are a `Pod`, the mapping outlives `&self`, and the caller vouches
        // that nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count) }
    }

    /// `count` values at `offset_bytes`, for writing.
    ///
    /// # Safety
    /// The caller owns the range exclusively in this epoch: for the life of the slice nobody else,
    /// in this process or another, reads or writes any byte of it.
    ///
    /// # Panics
    /// As [`Segment::pointer`], and if the segment was attached read-only.
    #[expect(clippy::mut_from_ref, reason = "exclusiveness is the caller's contract, by epoch")]
    pub unsafe fn slice_mut<T: Pod>(&self, offset_bytes: usize, count: usize) -> &mut [T] {
        assert!(
            self.access == Access::ReadWrite,
            "a writable view was asked of a segment attached read-only"
        );
        let first = self.pointer::<T>(offset_bytes, count);
        // SAFETY: as in `slice`; the mapping is writable (asserted) and the caller vouches for
        // exclusive ownership.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), count) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: unmapping is a foreign call. Base and size are those of `map`, and views borrow
        // from or hold the segment, so none is left. It fails only for arguments that were never
        // mapped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy_of(segment: &Segment) -> OwnedFd {
        segment.fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn two_mappings_share_their_bytes() {
        let created = Segment::create("shared", 5000).unwrap();
        let writable = Segment::attach(copy_of(&created), 5000, Access::ReadWrite).unwrap();
        let readable = Segment::attach(copy_of(&created), 5000, Access::ReadOnly).unwrap();
        assert_ne!(created.base(), writable.base());
        // SAFETY: this test is the only owner of the segment; the writable slice ends before the
        // others begin.
        unsafe {
            assert!(created.slice::<u8>(0, 5000).iter().all(|byte| *byte == 0));
            writable.slice_mut::<u32>(4096, 3).copy_from_slice(&[1, 2, 3]);
            assert_eq!(readable.slice::<u32>(4096, 3), [1, 2, 3]);
            assert_eq!(created.slice::<u64>(4096, 1), [2 << 32 | 1]);
            assert!(created.slice::<u64>(4096, 0).is_empty());
        }
    }

    #[test]
    fn the_size_is_sealed() {
        let segment = Segment::create("sealed", 4096).unwrap();
        assert_eq!(rustix::fs::ftruncate(segment.fd(), 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(segment.fd(), 8192), Err(Errno::PERM));
    }

    #[test]
    fn wrong_descriptors_are_refused() {
        let segment = Segment::create("right", 4096).unwrap();
        let attach = |fd, size_bytes| Segment::attach(fd, size_bytes, Access::ReadOnly);
        assert!(matches!(
            attach(copy_of(&segment), 4095),
            Err(SegmentError::Size { expected_bytes: 4095, found_bytes: 4096 })
        ));
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(attach(unsealed, 4096), Err(SegmentError::Unsealed)));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let size_bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
        assert!(matches!(attach(file.into(), size_bytes), Err(SegmentError::Unsealed)));
        assert!(matches!(Segment::create("none", 0), Err(SegmentError::Empty { .. })));
    }

    #[test]
    fn an_impossible_size_is_an_error_with_its_number() {
        let error = Segment::create("huge", usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains(&(usize::MAX / 2).to_string()), "{error}");
    }

    #[test]
    fn reserved_pages_cost_nothing_until_touched() {
        // Far more than the machine has.
        let segment = Segment::create("reserved", 1 << 42).unwrap();
        // SAFETY: this test is the only owner of the segment.
        unsafe { segment.slice_mut::<u64>((1 << 42) - 8, 1)[0] = 1 };
        let blocks = rustix::fs::fstat(segment.fd()).unwrap().st_blocks;
        assert!(blocks * 512 <= 4 << 20, "{blocks} blocks for one touched page");
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn a_range_past_the_end_panics() {
        Segment::create("short", 64).unwrap().pointer::<u32>(60, 2);
    }

    #[test]
    #[should_panic(expected = "leave a segment")]
    fn a_range_that_overflows_panics() {
        Segment::create("short", 64).unwrap().pointer::<u32>(8, usize::MAX / 2);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_range_panics() {
        Segment::create("short", 64).unwrap().pointer::<u32>(2, 1);
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn a_writable_view_of_a_read_only_segment_panics() {
        let created = Segment::create("readable", 64).unwrap();
        let readable = Segment::attach(copy_of(&created), 64, Access::ReadOnly).unwrap();
        // SAFETY: nobody else uses the segment; the call panics before it makes a slice.
        let _ = unsafe { readable.slice_mut::<u8>(0, 1) };
    }
}
