//! Verification of fetched files.

use std::fs::File;
use std::io::{self, Read, Seek};

use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::Digest;

use super::files::HubFile;

const PIECE_BYTES: usize = 1 << 20;

/// Returns true if a file has the size and the checksum that the hub lists, as far as it lists
/// them.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn is_intact(file: &File, listed: &HubFile) -> io::Result<bool> {
    let size_bytes = file.metadata()?.len();
    if listed.size_bytes.is_some_and(|listed_bytes| listed_bytes != size_bytes) {
        return Ok(false);
    }
    match (&listed.sha256, &listed.blob_id) {
        (Some(wanted), _) => Ok(digest::<Sha256>(file, &[])? == wanted.as_str()),
        // A git object is hashed with a prefix of its kind and size.
        (None, Some(wanted)) => {
            let head = format!("blob {size_bytes}\0");
            let head = head.as_bytes();
            let found = match wanted.is_sha256() {
                true => digest::<Sha256>(file, head)?,
                false => digest::<Sha1>(file, head)?,
            };
            Ok(found == wanted.as_str())
        }
        (None, None) => Ok(true),
    }
}

/// Returns the digest of `head` followed by the file, in hexadecimal digits.
fn digest<D: Digest>(mut file: &File, head: &[u8]) -> io::Result<String> {
    let mut digest = D::new_with_prefix(head);
    let mut piece = vec![0; PIECE_BYTES];
    file.rewind()?;
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        digest.update(&piece[..read]);
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
