//! Segments: sealed memfds, mapped shared.
//!
//! The coordinator creates segments and passes their descriptors over a [`crate::Channel`]; workers
//! attach them. A segment has no name in any file system, so nothing is left over however a run
//! ends. It is sealed against shrinking and growing before any other process can access it, so an
//! attached mapping can never fault with SIGBUS.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::mapping::{Access, MapError, Mapping};

/// Error of creating or attaching a segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The kernel refused to create the memory file.
    #[error(
        "The kernel refused to create the memory segment `{name}` of {size_bytes} bytes: {source}."
    )]
    Create {
        /// Purpose of the segment.
        name: String,
        /// Requested size.
        size_bytes: usize,
        /// Error of the kernel.
        source: Errno,
    },
    /// The system does not overcommit memory, and cannot commit this much.
    #[error(
        "The system refused to commit memory for the segment `{name}` of {size_bytes} bytes: \
         {source}. It does not overcommit (vm.overcommit_memory is 2); free memory, raise \
         vm.overcommit_ratio, or use less, for example with smaller --batches."
    )]
    Commit {
        /// Purpose of the segment.
        name: String,
        /// Requested size.
        size_bytes: usize,
        /// Error of the kernel.
        source: Errno,
    },
    /// The requested size is 0, which cannot be mapped.
    #[error("The memory segment `{name}` cannot have 0 bytes; a segment needs at least one.")]
    Empty {
        /// Purpose of the segment.
        name: String,
    },
    /// The kernel refused to map the segment.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The size of the descriptor differs from the announced size.
    #[error(
        "The passed descriptor has {found_bytes} bytes, but a segment of {expected_bytes} bytes \
         is expected; both processes must come from the same build."
    )]
    Size {
        /// Size announced by the sender.
        expected_bytes: usize,
        /// Size of the descriptor's file.
        found_bytes: u64,
    },
    /// The descriptor is not sealed, so it could shrink under the mapping.
    #[error(
        "The passed descriptor is not a memory file whose size is sealed, so it is not safe to map."
    )]
    Unsealed,
}

/// The seals every segment carries.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Returns true if the system does not overcommit memory. Pages of a memory file are then refused
/// when they are first accessed, with SIGBUS.
fn is_strict() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

/// Allocates all pages now, where a lack of memory is an error instead of SIGBUS.
fn commit(fd: impl AsFd, name: &str, size_bytes: usize) -> Result<(), SegmentError> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, size_bytes as u64)
        .map_err(|source| SegmentError::Commit { name: name.to_owned(), size_bytes, source })
}

/// A segment and its mapping in this process.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    mapping: Mapping,
}

impl Segment {
    /// Creates a zero-filled segment of `size_bytes`, sealed against a change of size and mapped
    /// for writing. `name` appears only in `/proc/PID/maps` and in errors.
    pub fn create(name: &str, size_bytes: usize) -> Result<Segment, SegmentError> {
        if size_bytes == 0 {
            return Err(SegmentError::Empty { name: name.to_owned() });
        }
        let refused = |source| SegmentError::Create { name: name.to_owned(), size_bytes, source };
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(refused)?;
        rustix::fs::ftruncate(&fd, size_bytes as u64).map_err(refused)?;
        if is_strict() {
            commit(&fd, name, size_bytes)?;
        }
        rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(refused)?;
        Segment::map(fd, size_bytes, Access::ReadWrite)
    }

    /// Maps a segment that another process created. The descriptor must hold exactly `size_bytes`
    /// and be sealed.
    pub fn attach(fd: OwnedFd, size_bytes: usize, access: Access) -> Result<Segment, SegmentError> {
        let refused = |source| SegmentError::Map(MapError { size_bytes, source });
        let found_bytes = rustix::fs::fstat(&fd).map_err(refused)?.st_size.cast_unsigned();
        if found_bytes != size_bytes as u64 || size_bytes == 0 {
            return Err(SegmentError::Size { expected_bytes: size_bytes, found_bytes });
        }
        // A file without support for seals fails with EINVAL, which means the same as having none.
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SIZE_SEALS) {
            return Err(SegmentError::Unsealed);
        }
        Segment::map(fd, size_bytes, access)
    }

    fn map(fd: OwnedFd, size_bytes: usize, access: Access) -> Result<Segment, SegmentError> {
        // SAFETY: needed to map; both callers have seen that the file is sealed against shrinking.
        let mapping = unsafe { Mapping::shared(fd.as_fd(), size_bytes, access) }?;
        Ok(Segment { fd, mapping })
    }

    /// Returns the descriptor, for passing it to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the memory alone, if the descriptor is not passed to another process.
    pub fn into_mapping(self) -> Mapping {
        self.mapping
    }
}

impl Deref for Segment {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
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
    fn committed_pages_are_there_before_they_are_touched() {
        let segment = Segment::create("committed", 1 << 20).unwrap();
        commit(segment.fd(), "committed", 1 << 20).unwrap();
        assert!(rustix::fs::fstat(segment.fd()).unwrap().st_blocks * 512 >= 1 << 20);
    }

    #[test]
    fn what_cannot_be_committed_is_an_error_that_says_what_to_do() {
        let segment = Segment::create("sealed", 4096).unwrap();
        // Growing is sealed, so the kernel refuses the pages.
        let error = commit(segment.fd(), "sealed", 8192).unwrap_err().to_string();
        assert!(error.contains("`sealed` of 8192 bytes") && error.contains("--batches"), "{error}");
    }

    #[test]
    fn reserved_pages_cost_nothing_until_touched() {
        if is_strict() {
            println!("SKIP reserved pages: this system commits them all");
            return;
        }
        // Far more than the machine has.
        let segment = Segment::create("reserved", 1 << 42).unwrap();
        // SAFETY: this test is the only owner of the segment.
        unsafe { segment.slice_mut::<u64>((1 << 42) - 8, 1)[0] = 1 };
        let blocks = rustix::fs::fstat(segment.fd()).unwrap().st_blocks;
        assert!(blocks * 512 <= 4 << 20, "{blocks} blocks for one touched page");
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn a_writable_view_of_a_read_only_segment_panics() {
        let created = Segment::create("readable", 64).unwrap();
        let readable = Segment::attach(copy_of(&created), 64, Access::ReadOnly).unwrap();
        // SAFETY: nothing else uses the segment; the call panics before it makes a slice.
        let _ = unsafe { readable.slice_mut::<u8>(0, 1) };
    }
}
