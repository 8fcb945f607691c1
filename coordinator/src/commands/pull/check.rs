//! Whether a fetched file is the hub's.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::Digest;

use super::files::HubFile;

const PIECE_BYTES: usize = 1 << 20;
/// Hexadecimal digits of a SHA-1.
const SHA1_DIGITS: usize = 40;

/// Whether the file at `path` has the checksum that the hub lists; without one, its size.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn is_whole(path: &Path, file: &HubFile) -> io::Result<bool> {
    let size_bytes = std::fs::metadata(path)?.len();
    match file.checksum() {
        Some(wanted) if file.sha256().is_some() => {
            Ok(digest::<Sha256>(path, &[])?.eq_ignore_ascii_case(wanted))
        }
        // A git object: its kind and size stand before it.
        Some(wanted) if wanted.len() == SHA1_DIGITS => {
            let head = format!("blob {size_bytes}\0");
            Ok(digest::<Sha1>(path, head.as_bytes())?.eq_ignore_ascii_case(wanted))
        }
        _ => Ok(file.size_bytes() == 0 || file.size_bytes() == size_bytes),
    }
}

/// Of `head` and the file behind it, in hexadecimal digits.
fn digest<D: Digest>(path: &Path, head: &[u8]) -> io::Result<String> {
    let mut digest = D::new_with_prefix(head);
    let mut opened = File::open(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = opened.read(&mut piece)?;
        if read == 0 {
            break;
        }
        digest.update(&piece[..read]);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
