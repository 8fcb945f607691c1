//! Writing a page such that it is either complete or absent.

use std::io::{self, Write};

use atomic_fs::{Directory, PRIVATE_MODE, TemporaryFile};
use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::xxh3_64;

use crate::files::{ORIGIN_FILE, TEMPORARY_EXTENSION, page_file, temporary_prefix};
use crate::page::{MemoryWithdrawn, PageKey, PageMemory};
use crate::page_header::{FixedHeader, PageHeader};
use crate::page_origin::PageOrigin;

/// Computes the header of a page.
///
/// # Errors
/// Fails if the memory was withdrawn.
pub(crate) fn build_header(
    origin: &[u8; 32],
    page: &PageKey<'_>,
    memory: &mut dyn PageMemory,
) -> io::Result<PageHeader> {
    let mut checksums = Vec::new();
    for_each_run(memory, |run| {
        checksums.push(xxh3_64(run));
        Ok(())
    })?;
    let sizes_bytes: Vec<u64> =
        memory.run_sizes_bytes().into_iter().map(|size_bytes| size_bytes as u64).collect();
    Ok(PageHeader {
        fixed: FixedHeader {
            index: page.index,
            tokens: page.tokens.len() as u32,
            runs: sizes_bytes.len() as u32,
            origin: *origin,
            previous: page.previous,
            name: page.name,
        },
        tokens: page.tokens.to_vec(),
        sizes_bytes,
        checksums,
    })
}

/// Calls `each` with a copy of each run.
fn for_each_run(
    memory: &mut dyn PageMemory,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    for (run, size_bytes) in memory.run_sizes_bytes().into_iter().enumerate() {
        buffer.resize(size_bytes, 0);
        memory.copy_out(run, &mut buffer).map_err(|MemoryWithdrawn| {
            io::Error::other("the write was cancelled while the drive did not respond")
        })?;
        each(&buffer)?;
    }
    Ok(())
}

/// Writes a page under a temporary name and renames it once it is durable on the drive. Only the
/// user may read it, since it contains prompts.
pub(crate) fn write_page(
    folder: &Directory,
    header: &PageHeader,
    memory: &mut dyn PageMemory,
) -> io::Result<()> {
    let name = &header.fixed.name;
    let temporary =
        folder.temporary_file(&temporary_prefix(name), TEMPORARY_EXTENSION, PRIVATE_MODE)?;
    write_all_runs(&temporary, header, memory)?;
    // A power failure may lose the name; the page is then computed again. A name without its bytes
    // is impossible, since the bytes were durable before.
    temporary.persist(page_file(name))
}

/// Writes the file, which is locked as long as it is open, so that other processes do not remove it
/// as an abandoned one.
fn write_all_runs(
    temporary: &TemporaryFile<'_>,
    header: &PageHeader,
    memory: &mut dyn PageMemory,
) -> io::Result<()> {
    let mut file = temporary.file();
    flock(file, FlockOperation::NonBlockingLockExclusive)?;
    file.write_all(&header.write())?;
    for_each_run(memory, |run| file.write_all(run))?;
    file.sync_data()
}

/// Writes the description of a folder's origin unless it exists.
pub(crate) fn write_origin(folder: &Directory, origin: &PageOrigin) -> io::Result<()> {
    if folder.entry(ORIGIN_FILE)?.is_some() {
        return Ok(());
    }
    let text = serde_json::to_vec_pretty(origin).map_err(io::Error::other)?;
    folder.replace(ORIGIN_FILE, &text, PRIVATE_MODE)
}
