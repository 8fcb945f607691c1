//! Which way of reading this machine allows.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::request::{Io, Request};
use super::threads::Threads;
use super::uring::Uring;
use crate::buffer::AlignedBuffer;
use crate::disk;
use crate::error::ReaderError;
use crate::layout::PAGE_BYTES;

/// Threads where there is no io_uring, if as many requests may be in flight.
const THREADS_MAX: u32 = 8;

/// How reads reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoKind {
    /// Through io_uring where the system allows it, and by threads elsewhere.
    #[default]
    Auto,
    /// Through io_uring.
    Uring,
    /// By a few threads with `pread`.
    Threads,
}

/// A file, opened for reading.
#[derive(Debug)]
pub(crate) struct Opened {
    pub io: Box<dyn Io>,
    /// The same file, for hints about the page cache; `None` where it is passed by.
    pub cached: Option<File>,
    /// The parts of a description.
    pub how: String,
    pub cache: &'static str,
}

/// Whether an error says that something is not possible here, rather than that it failed.
fn is_refusal(error: &io::Error) -> bool {
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

/// Reads a page, to see whether reads are possible at all.
fn try_read(io: &mut dyn Io, file_bytes: u64) -> io::Result<()> {
    if file_bytes < PAGE_BYTES {
        return Ok(());
    }
    let mut page = AlignedBuffer::new(PAGE_BYTES as usize);
    let request =
        Request { tag: 0, offset_bytes: 0, to: page.start(), size_bytes: PAGE_BYTES as u32 };
    // SAFETY: needed because the device writes through a pointer; the page is used by nobody else
    // until the request has completed, which is waited for.
    unsafe { io.submit(request)? };
    io.complete().result.map(drop)
}

/// Opens the weights `path` of `file_bytes` for `depth` requests in flight: past the page cache, if
/// `direct` and that is possible, and by the way that `kind` leaves.
pub(crate) fn open(
    path: &Path,
    file_bytes: u64,
    depth: u32,
    kind: IoKind,
    direct: bool,
) -> Result<Opened, ReaderError> {
    let failed = |source| ReaderError::Io { path: path.to_path_buf(), source };
    let mut options = OpenOptions::new();
    options.read(true);
    let mut files = Vec::new();
    if direct {
        files.extend(disk::open_direct(&options, path).map_err(failed)?);
    }
    let first_cached = files.len();
    let cached = options.open(path).map_err(failed)?;
    // Also for its duplicates, through which is read.
    disk::read_nothing_ahead(&cached);
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
                true => Uring::new(file, depth).map(|io| Box::new(io) as Box<dyn Io>),
                false => Threads::new(file, depth, threads).map(|io| Box::new(io) as Box<dyn Io>),
            };
            match io.and_then(|mut io| try_read(io.as_mut(), file_bytes).map(|()| io)) {
                Ok(io) => {
                    let is_cached = index >= first_cached;
                    let how = match is_uring {
                        true => "io_uring".to_owned(),
                        false => format!("pread, {threads} threads{uring_refusal}"),
                    };
                    let cache = match (is_cached, direct) {
                        (false, _) => "O_DIRECT",
                        (true, true) => "page cache (O_DIRECT is refused here)",
                        (true, false) => "page cache",
                    };
                    let cached = if is_cached { files.pop() } else { None };
                    return Ok(Opened { io, cached, how, cache });
                }
                Err(error) if is_refusal(&error) => {
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
