//! Reading a page, every byte of which is verified.

use std::fs::File;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Head, Header};
use crate::page::Page;

/// Reads a page into its runs; how many bytes these are.
///
/// # Errors
/// Why it is not what it should be.
pub(crate) fn page<'a>(
    file: &File,
    (origin, page): (&[u8; 32], &Page<'_>),
    runs: impl Iterator<Item = &'a mut [u8]>,
) -> Result<u64, String> {
    let header = header(file)?;
    let head = &header.head;
    let is_it = head.origin == *origin
        && (head.name, head.before, head.index) == (page.name, page.before, page.index)
        && header.tokens == page.tokens;
    if !is_it {
        return Err("it holds another page than its name says".to_owned());
    }
    let mut offset_bytes = head.body_offset();
    let size_bytes = offset_bytes + header.sizes_bytes.iter().sum::<u64>();
    if file.metadata().map_err(|error| error.to_string())?.len() != size_bytes {
        return Err("it is torn".to_owned());
    }
    let mut places = header.sizes_bytes.iter().zip(&header.checksums);
    for run in runs {
        let Some((size_bytes, checksum)) = places.next() else {
            return Err("it holds less than a page".to_owned());
        };
        if run.len() as u64 != *size_bytes {
            return Err("its parts have other sizes".to_owned());
        }
        file.read_exact_at(run, offset_bytes).map_err(|error| error.to_string())?;
        if xxh3_64(run) != *checksum {
            return Err(format!("it is damaged at byte {offset_bytes} or behind"));
        }
        offset_bytes += size_bytes;
    }
    match places.next() {
        None => Ok(size_bytes),
        Some(_) => Err("it holds more than a page".to_owned()),
    }
}

fn header(file: &File) -> Result<Header, String> {
    let head = head(file)?;
    let mut bytes = vec![0; head.header_bytes()];
    file.read_exact_at(&mut bytes, 0).map_err(|_| "it is torn".to_owned())?;
    Ok(Header::read(&bytes)?)
}

/// What a file says that it is.
pub(crate) fn head(file: &File) -> Result<Head, String> {
    let mut bytes = [0; Head::BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(|_| "it is torn".to_owned())?;
    Ok(Head::read(&bytes)?)
}
