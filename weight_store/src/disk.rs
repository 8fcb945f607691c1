//! System calls on files and drives.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

/// Magic numbers of file systems in memory (tmpfs, ramfs): they accept `O_DIRECT` but have only the
/// page cache.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Opens `path` bypassing the page cache; `None` where that is refused or has no effect.
pub(crate) fn open_direct(options: &OpenOptions, path: &Path) -> io::Result<Option<File>> {
    let mut direct = options.clone();
    if_direct(direct.custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path))
}

/// Returns a file that was opened with `O_DIRECT`; `None` where that is refused or has no effect.
pub(crate) fn if_direct(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Ok(file) if is_in_memory(&file)? => Ok(None),
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_in_memory(file: &File) -> io::Result<bool> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    // A magic number has 32 bits; some architectures sign-extend it.
    Ok(IN_MEMORY.contains(&(kind as u32)))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Drops the pages of a range from the page cache, all from `offset_bytes` if `size_bytes` is 0.
/// Only a hint: dirty pages remain.
pub(crate) fn drop_cache(file: impl AsFd, offset_bytes: u64, size_bytes: u64) {
    let size_bytes = std::num::NonZeroU64::new(size_bytes);
    let _ = rustix::fs::fadvise(file, offset_bytes, size_bytes, Advice::DontNeed);
}

/// Disables read-ahead into the page cache.
pub(crate) fn disable_readahead(file: impl AsFd) {
    let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
}

/// Sets the size of `file` with all blocks allocated; sets only the size on file systems that
/// cannot allocate in advance.
pub(crate) fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    if size_bytes > 0 {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if file.metadata()?.len() != size_bytes { file.set_len(size_bytes) } else { Ok(()) }
}

/// Returns the number of bytes that this user may still write to the drive of `dir`.
pub(crate) fn available_bytes(dir: &Path) -> io::Result<u64> {
    let drive = rustix::fs::statvfs(dir)?;
    Ok(drive.f_bavail.saturating_mul(drive.f_frsize))
}

/// Returns the number of bytes that a file occupies on its drive.
pub(crate) fn allocated_bytes(file: &File) -> io::Result<u64> {
    // The unit of `st_blocks` is always 512 bytes.
    Ok(file.metadata()?.blocks() * 512)
}
