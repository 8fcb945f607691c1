//! Reading a page and verifying all its bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::page::{MemoryWithdrawn, PageKey, PageMemory};
use crate::page_header::{FixedHeader, PageHeader};

/// Reason why a page was not read.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// The destination was withdrawn by its owner.
    Withdrawn,
    /// The file is not the expected page, with the reason.
    Invalid(String),
}

impl From<MemoryWithdrawn> for ReadFailure {
    fn from(_: MemoryWithdrawn) -> ReadFailure {
        ReadFailure::Withdrawn
    }
}

impl From<String> for ReadFailure {
    fn from(reason: String) -> ReadFailure {
        ReadFailure::Invalid(reason)
    }
}

impl From<&str> for ReadFailure {
    fn from(reason: &str) -> ReadFailure {
        ReadFailure::Invalid(reason.to_owned())
    }
}

/// Reads a page into its runs and returns their size in bytes.
///
/// # Errors
/// Returns the reason why the page was not read.
pub(crate) fn read_page(
    file: &File,
    (origin, page): (&[u8; 32], &PageKey<'_>),
    memory: &mut dyn PageMemory,
) -> Result<u64, ReadFailure> {
    let header = read_header(file)?;
    let head = &header.fixed;
    let is_it = head.origin == *origin
        && (head.name, head.previous, head.index) == (page.name, page.previous, page.index)
        && header.tokens == page.tokens;
    if !is_it {
        return Err("it contains another page than its name indicates".into());
    }
    let mut offset_bytes = head.body_offset();
    let mut body_bytes = header.sizes_bytes.iter();
    let size_bytes = body_bytes.try_fold(offset_bytes, |sum, run| sum.checked_add(*run));
    if Some(file.metadata().map_err(|error| error.to_string())?.len()) != size_bytes {
        return Err("it is torn".into());
    }
    let mut places = header.sizes_bytes.iter().zip(&header.checksums);
    let mut buffer = Vec::new();
    for (run, run_bytes) in memory.run_sizes_bytes().into_iter().enumerate() {
        let Some((size_bytes, checksum)) = places.next() else {
            return Err("it contains less than a page".into());
        };
        if run_bytes as u64 != *size_bytes {
            return Err("its parts have different sizes".into());
        }
        buffer.resize(run_bytes, 0);
        file.read_exact_at(&mut buffer, offset_bytes).map_err(|error| error.to_string())?;
        if xxh3_64(&buffer) != *checksum {
            return Err(format!("it is damaged at or after byte {offset_bytes}").into());
        }
        memory.copy_in(run, &buffer)?;
        offset_bytes += size_bytes;
    }
    match places.next() {
        None => Ok(offset_bytes),
        Some(_) => Err("it contains more than a page".into()),
    }
}

fn read_header(file: &File) -> Result<PageHeader, String> {
    let head = read_head(file)?;
    let mut bytes = vec![0; head.header_bytes()];
    file.read_exact_at(&mut bytes, 0).map_err(|_| "it is torn".to_owned())?;
    Ok(PageHeader::read(&bytes)?)
}

/// Reads the fixed part of a file's header.
pub(crate) fn read_head(file: &File) -> Result<FixedHeader, String> {
    let mut bytes = [0; FixedHeader::BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(|_| "it is torn".to_owned())?;
    Ok(FixedHeader::read(&bytes)?)
}
