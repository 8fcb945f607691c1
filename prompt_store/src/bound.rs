//! The maximum size of a store, enforced by removing the least recently used pages.

use std::path::Path;

use crate::error::WriteError;
use crate::files::{PageFile, folders, pages};

/// Fraction of the maximum size (1 / `PART`) that a process may write before it counts all files
/// again.
const PART: u64 = 32;

/// A process's estimate of a store's size. Other processes may write to the store at the same time,
/// so each count leaves enough space for one other process that has just counted too.
#[derive(Debug)]
pub(crate) struct Bound {
    most_bytes: Option<u64>,
    /// Bytes that may be written before files are counted again.
    left_bytes: u64,
}

impl Bound {
    /// Creates a bound of `most_bytes`; `None`: limited only by the drive.
    pub fn new(most_bytes: Option<u64>) -> Bound {
        Bound { most_bytes, left_bytes: 0 }
    }

    /// Makes space for a page of `page_bytes`. If files have to be counted, removes the least
    /// recently used pages.
    ///
    /// # Errors
    /// Fails if the page can never fit, or if files cannot be counted.
    pub fn admit(&mut self, store: &Path, page_bytes: u64) -> Result<(), WriteError> {
        let Some(most_bytes) = self.most_bytes else { return Ok(()) };
        if page_bytes > most_bytes {
            return Err(WriteError::Bound { page_bytes, most_bytes });
        }
        if page_bytes > self.left_bytes {
            let part = most_bytes / PART;
            // Two processes that count at the same time stay below the maximum with all that each
            // may write.
            let kept_bytes = most_bytes.saturating_sub(2 * (page_bytes + part));
            let left = shrink(store, kept_bytes)
                .map_err(|source| WriteError::Io { path: store.to_path_buf(), source })?;
            self.left_bytes = page_bytes + part;
            if let Some(source) = left.error {
                // Another process may take as much of the space that is left as this one.
                if 2 * page_bytes > most_bytes.saturating_sub(left.size_bytes) {
                    self.left_bytes = 0;
                    let (path, held_bytes) = (store.to_path_buf(), left.size_bytes);
                    return Err(WriteError::Held { path, held_bytes, most_bytes, source });
                }
                self.left_bytes = page_bytes;
            }
        }
        self.left_bytes -= page_bytes;
        Ok(())
    }
}

/// Size of a store after its least recently used pages were removed.
struct Left {
    size_bytes: u64,
    /// Last error of removing a page, if the store is still larger than requested.
    error: Option<std::io::Error>,
}

/// Removes the least recently used pages until at most `kept_bytes` are left, or no more pages can
/// be removed.
fn shrink(store: &Path, kept_bytes: u64) -> std::io::Result<Left> {
    let mut all: Vec<PageFile> = Vec::new();
    for folder in folders(store)? {
        all.extend(pages(&folder)?);
    }
    let mut left = Left { size_bytes: all.iter().map(|page| page.size_bytes).sum(), error: None };
    all.sort_by_key(|page| page.used);
    for page in all {
        if left.size_bytes <= kept_bytes {
            return Ok(Left { error: None, ..left });
        }
        match std::fs::remove_file(&page.path) {
            // The page belongs to another user or is in another user's folder: it still counts.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => left.error = Some(error),
            // Removed, either now or by another process.
            _ => left.size_bytes -= page.size_bytes,
        }
    }
    if left.size_bytes <= kept_bytes {
        left.error = None;
    }
    Ok(left)
}
