//! Writing a page such that it is either complete or absent.

use std::io::{self, Write};

use atomic_fs::{Directory, PRIVATE_MODE, TemporaryFile};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Head, Header};
use crate::files::{ORIGIN, TEMPORARY, page_file, temporary_prefix};
use crate::origin::Origin;
use crate::page::{Page, PageMemory, Withdrawn};

/// Computes the header of a page.
///
/// # Errors
/// Fails if the memory was withdrawn.
pub(crate) fn header(
    origin: &[u8; 32],
    page: &Page<'_>,
    memory: &mut dyn PageMemory,
) -> io::Result<Header> {
    let mut checksums = Vec::new();
    each_run(memory, |run| {
        checksums.push(xxh3_64(run));
        Ok(())
    })?;
    let sizes_bytes: Vec<u64> =
        memory.run_sizes_bytes().into_iter().map(|size_bytes| size_bytes as u64).collect();
    Ok(Header {
        head: Head {
            index: page.index,
            tokens: page.tokens.len() as u32,
            runs: sizes_bytes.len() as u32,
            origin: *origin,
            before: page.before,
            name: page.name,
        },
        tokens: page.tokens.to_vec(),
        sizes_bytes,
        checksums,
    })
}

/// Calls `each` with a copy of each run.
fn each_run(
    memory: &mut dyn PageMemory,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    for (run, size_bytes) in memory.run_sizes_bytes().into_iter().enumerate() {
        buffer.resize(size_bytes, 0);
        memory.copy_out(run, &mut buffer).map_err(|Withdrawn| {
            io::Error::other("the write was cancelled while the drive did not respond")
        })?;
        each(&buffer)?;
    }
    Ok(())
}

/// Writes a page under a temporary name and renames it once it is durable on the drive. Only the
/// user may read it, since it contains prompts.
pub(crate) fn page(
    folder: &Directory,
    header: &Header,
    memory: &mut dyn PageMemory,
) -> io::Result<()> {
    let name = &header.head.name;
    let temporary = folder.temporary_file(&temporary_prefix(name), TEMPORARY, PRIVATE_MODE)?;
    whole(&temporary, header, memory)?;
    // A power failure may lose the name; the page is then computed again. A name without its bytes
    // is impossible, since the bytes were durable before.
    temporary.persist(page_file(name))
}

/// Writes the file, which is locked as long as it is open, so that other processes do not remove it
/// as an abandoned one.
fn whole(
    temporary: &TemporaryFile<'_>,
    header: &Header,
    memory: &mut dyn PageMemory,
) -> io::Result<()> {
    let mut file = temporary.file();
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    file.write_all(&header.write())?;
    each_run(memory, |run| file.write_all(run))?;
    file.sync_data()
}

/// Writes the description of a folder's origin unless it exists.
pub(crate) fn origin(folder: &Directory, origin: &Origin) -> io::Result<()> {
    if folder.entry(ORIGIN)?.is_some() {
        return Ok(());
    }
    let text = serde_json::to_vec_pretty(origin).map_err(io::Error::other)?;
    folder.replace(ORIGIN, &text, PRIVATE_MODE)
}
