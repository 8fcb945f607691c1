//! Selection of the way of reading that this machine allows.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::request::{Io, ReadRequest};
use super::threads::ThreadPoolIo;
use super::uring::UringIo;
use crate::buffer::AlignedBuffer;
use crate::disk;
use crate::error::ReaderError;
use crate::layout::PAGE_BYTES;

/// Maximum number of threads where io_uring is unavailable; no more than there are requests in
/// flight.
const THREADS_MAX: u32 = 8;

/// Way in which reads reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoKind {
    /// io_uring where the system allows it, otherwise threads.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// A few threads that call `pread`.
    Threads,
}

/// A file opened for reading.
#[derive(Debug)]
pub(crate) struct OpenedWeights {
    pub io: Box<dyn Io>,
    /// File opened a second time, for hints about the page cache; `None` if reads bypass the cache.
    pub cached: Option<File>,
    /// Way of reading, for reports and messages.
    pub method: String,
    pub cache: &'static str,
}

/// Returns true if an error means that an operation is not possible on this system, as opposed to
/// an I/O failure.
fn is_unsupported(error: &io::Error) -> bool {
    let refusals = [
        Errno::NOSYS,
        Errno::PERM,
        Errno::ACCESS,
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::NOMEM,
        Errno::MFILE,
    ];
    refusals.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Reads one page, to check that reads are possible at all.
fn probe_read(io: &mut dyn Io, file_bytes: u64) -> io::Result<()> {
    if file_bytes < PAGE_BYTES {
        return Ok(());
    }
    let mut page = AlignedBuffer::new(PAGE_BYTES as usize);
    let request =
        ReadRequest { tag: 0, offset_bytes: 0, to: page.start(), size_bytes: PAGE_BYTES as u32 };
    // SAFETY: needed because the device writes through a pointer; nothing else uses the page until
    // the request has completed, and this function waits for that.
    unsafe { io.submit(request)? };
    io.complete().result.map(drop)
}

/// Opens the weights `path` of `file_bytes` for `depth` requests in flight. Bypasses the page cache
/// if `direct` is set and the system allows it; reads in the way that `kind` specifies.
pub(crate) fn open(
    path: &Path,
    file_bytes: u64,
    depth: u32,
    kind: IoKind,
    direct: bool,
) -> Result<OpenedWeights, ReaderError> {
    let failed = |source| ReaderError::Io { path: path.to_path_buf(), source };
    let mut options = OpenOptions::new();
    options.read(true);
    let mut files = Vec::new();
    if direct {
        files.extend(disk::open_direct(&options, path).map_err(failed)?);
    }
    let first_cached = files.len();
    let cached = options.open(path).map_err(failed)?;
    // Also applies to the duplicates of this descriptor, which the readers below use.
    disk::disable_readahead(&cached);
    files.push(cached);
    let threads = depth.min(THREADS_MAX);
    let mut refusal: Option<io::Error> = None;
    let mut uring_refusal = String::new();
    for (index, file) in files.iter().enumerate() {
        for is_uring in [true, false] {
            if kind == if is_uring { IoKind::Threads } else { IoKind::Uring } {
                continue;
            }
            let file = file.try_clone().map_err(failed)?;
            let io = match is_uring {
                true => UringIo::new(file, depth).map(|io| Box::new(io) as Box<dyn Io>),
                false => {
                    ThreadPoolIo::new(file, depth, threads).map(|io| Box::new(io) as Box<dyn Io>)
                }
            };
            match io.and_then(|mut io| probe_read(io.as_mut(), file_bytes).map(|()| io)) {
                Ok(io) => {
                    let is_cached = index >= first_cached;
                    let method = match is_uring {
                        true => "io_uring".to_owned(),
                        false => format!("pread, {threads} threads{uring_refusal}"),
                    };
                    let cache = match (is_cached, direct) {
                        (false, _) => "O_DIRECT",
                        (true, true) => "page cache (O_DIRECT is refused here)",
                        (true, false) => "page cache",
                    };
                    let cached = if is_cached { files.pop() } else { None };
                    return Ok(OpenedWeights { io, cached, method, cache });
                }
                Err(error) if is_unsupported(&error) => {
                    if is_uring {
                        uring_refusal = format!(" (io_uring is refused here: {error})");
                    }
                    refusal = Some(error);
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
    let how = if kind == IoKind::Uring { "io_uring" } else { "pread" };
    let source = refusal.unwrap_or_else(|| Errno::NOSYS.into());
    Err(ReaderError::Refused { how, source })
}
