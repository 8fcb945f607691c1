//! Ranges that copies and kernels may access: device memory in memfds, pinned and registered host
//! memory.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Maximum size of an allocation that is filled with garbage; larger ones start with zeros. Garbage
/// reveals reads of memory that was never written, and the tests for this are small.
const GARBAGE_BYTES_MAX: usize = 256 << 20;
/// A byte that forms a NaN in every float format.
const GARBAGE: u8 = 0xff;
/// First bytes of a handle.
const MAGIC: u64 = 0x5354_414e_4449_4e31;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeKind {
    Device,
    /// Device memory of another process.
    Opened,
    /// Host memory allocated by the driver.
    Pinned,
    /// Host memory mapped by the program.
    Registered,
}

#[derive(Debug)]
struct MemoryRange {
    kind: RangeKind,
    size_bytes: usize,
    /// File of a device allocation, to which its handle refers.
    fd: Option<OwnedFd>,
}

/// All ranges, by first address.
#[derive(Debug, Default)]
pub(crate) struct MemoryRanges {
    ranges: BTreeMap<usize, MemoryRange>,
}

impl MemoryRanges {
    /// Returns the device memory that this process uses, in bytes.
    pub(crate) fn device_bytes(&self) -> usize {
        let device = self.ranges.values().filter(|range| range.kind == RangeKind::Device);
        device.map(|range| range.size_bytes).sum()
    }

    /// Returns the kind of the range that contains all of `address..address + size_bytes`.
    pub(crate) fn kind(&self, address: usize, size_bytes: usize) -> Option<RangeKind> {
        let (first, range) = self.ranges.range(..=address).next_back()?;
        let end = address.checked_add(size_bytes)?;
        (end <= first + range.size_bytes).then_some(range.kind)
    }

    /// Returns true if the device may use the range as its own memory.
    pub(crate) fn is_device(&self, address: usize, size_bytes: usize) -> bool {
        matches!(self.kind(address, size_bytes), Some(RangeKind::Device | RangeKind::Opened))
    }

    /// Allocates device or pinned memory.
    pub(crate) fn allocate(&mut self, kind: RangeKind, size_bytes: usize) -> Option<usize> {
        let fd = rustix::fs::memfd_create("standin-cuda", MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&fd, size_bytes as u64).ok()?;
        let base = map(&fd, size_bytes)?;
        if kind == RangeKind::Device && size_bytes <= GARBAGE_BYTES_MAX {
            // SAFETY: needed to fill fresh memory; it was just mapped with this size.
            unsafe { std::ptr::write_bytes(base as *mut u8, GARBAGE, size_bytes) };
        }
        self.ranges.insert(base, MemoryRange { kind, size_bytes, fd: Some(fd) });
        Some(base)
    }

    /// Registers host memory that the program mapped; returns false if it is known already.
    pub(crate) fn register(&mut self, address: usize, size_bytes: usize) -> bool {
        let range = MemoryRange { kind: RangeKind::Registered, size_bytes, fd: None };
        if self.kind(address, 1).is_some() {
            return false;
        }
        self.ranges.insert(address, range);
        true
    }

    /// Releases a range that begins at `address` and has this kind.
    pub(crate) fn release(&mut self, kind: RangeKind, address: usize) -> bool {
        if self.ranges.get(&address).is_none_or(|range| range.kind != kind) {
            return false;
        }
        if let Some(range) = self.ranges.remove(&address)
            && kind != RangeKind::Registered
        {
            // SAFETY: needed to release the memory; the range was mapped by `map` and nothing holds
            // a reference to it, only addresses.
            let _ = unsafe { rustix::mm::munmap(address as *mut _, range.size_bytes) };
        }
        true
    }

    /// Returns the handle of a device allocation: its process, its descriptor, and its size.
    pub(crate) fn export(&self, address: usize) -> Option<[u8; 64]> {
        let range = self.ranges.get(&address).filter(|range| range.kind == RangeKind::Device)?;
        let fd = range.fd.as_ref()?.as_raw_fd();
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&MAGIC.to_le_bytes());
        handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        handle[12..16].copy_from_slice(&fd.to_le_bytes());
        handle[16..24].copy_from_slice(&(range.size_bytes as u64).to_le_bytes());
        Some(handle)
    }

    /// Opens an allocation of another process.
    pub(crate) fn open(&mut self, handle: &[u8; 64]) -> Option<usize> {
        let word =
            |at: usize| u32::from_le_bytes(handle[at..at + 4].try_into().unwrap_or_default());
        let (process, number) = (word(8), word(12));
        if handle[..8] != MAGIC.to_le_bytes() || process == std::process::id() {
            return None;
        }
        let size_bytes = word(16) as usize | (word(20) as usize) << 32;
        let path = format!("/proc/{process}/fd/{number}");
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let base = map(&fd, size_bytes)?;
        self.ranges.insert(base, MemoryRange { kind: RangeKind::Opened, size_bytes, fd: None });
        Some(base)
    }
}

fn map(fd: &OwnedFd, size_bytes: usize) -> Option<usize> {
    // SAFETY: mapping is a foreign call. The address is the kernel's choice, so no mapping is
    // replaced; the file has this size and nothing shrinks it.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            size_bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
            fd,
            0,
        )
    };
    base.ok().map(|base| base as usize)
}
