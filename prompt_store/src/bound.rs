//! How large a store may become, and which pages go when it would pass that.

use std::path::Path;

use crate::error::WriteError;
use crate::files::{PageFile, folders, pages};

/// A part of the bound that a process may write before it counts all files again.
const PART: u64 = 32;

/// What a process knows of a store's size. Others may write to it at the same time: what is counted
/// leaves room for one that has just counted too.
#[derive(Debug)]
pub(crate) struct Bound {
    most_bytes: Option<u64>,
    /// What may be written before files are counted again.
    left_bytes: u64,
}

impl Bound {
    /// `None`: as large as the drive.
    pub fn new(most_bytes: Option<u64>) -> Bound {
        Bound { most_bytes, left_bytes: 0 }
    }

    /// Makes room for a page of so many bytes; where files are counted, the longest unused go.
    ///
    /// # Errors
    /// A page for which there is no room at all, or files that cannot be counted.
    pub fn admit(&mut self, store: &Path, page_bytes: u64) -> Result<(), WriteError> {
        let Some(most_bytes) = self.most_bytes else { return Ok(()) };
        if page_bytes > most_bytes {
            return Err(WriteError::Bound { page_bytes, most_bytes });
        }
        if page_bytes > self.left_bytes {
            let part = most_bytes / PART;
            // Two processes that count at the same time stay below it with all that each may write.
            let kept_bytes = most_bytes.saturating_sub(2 * (page_bytes + part));
            let left = shrink(store, kept_bytes)
                .map_err(|source| WriteError::Io { path: store.to_path_buf(), source })?;
            self.left_bytes = page_bytes + part;
            if let Some(source) = left.error {
                // Of what the bound leaves beside such pages the other process may take as much.
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

/// The pages of a store after the longest unused were removed.
struct Left {
    size_bytes: u64,
    /// Why more than was asked is left.
    error: Option<std::io::Error>,
}

/// Removes the longest unused pages until so many bytes are left, or none can be removed any more.
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
            // Another user's, or in a folder that is not ours: it still takes its bytes.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => left.error = Some(error),
            // Removed, now or by another process.
            _ => left.size_bytes -= page.size_bytes,
        }
    }
    if left.size_bytes <= kept_bytes {
        left.error = None;
    }
    Ok(left)
}
