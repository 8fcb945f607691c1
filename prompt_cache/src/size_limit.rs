//! The maximum size of a store, enforced by removing the least recently used pages.

use std::path::Path;

use crate::error::PageWriteError;
use crate::files::{PageFile, list_folders, list_pages};

/// Fraction of the maximum size (1 / `RECOUNT_FRACTION`) that a process may write before it counts
/// all files again.
const RECOUNT_FRACTION: u64 = 32;

/// A process's estimate of a store's size. Other processes may write to the store at the same time,
/// so each count leaves enough space for one other process that has just counted too.
#[derive(Debug)]
pub(crate) struct SizeLimit {
    max_bytes: Option<u64>,
    /// Bytes that may be written before files are counted again.
    budget_bytes: u64,
}

impl SizeLimit {
    /// Creates a bound of `max_bytes`; `None`: limited only by the drive.
    pub fn new(max_bytes: Option<u64>) -> SizeLimit {
        SizeLimit { max_bytes, budget_bytes: 0 }
    }

    /// Makes space for a page of `page_bytes`. If files have to be counted, removes the least
    /// recently used pages.
    ///
    /// # Errors
    /// Fails if the page can never fit, or if files cannot be counted.
    pub fn reserve(&mut self, store: &Path, page_bytes: u64) -> Result<(), PageWriteError> {
        let Some(max_bytes) = self.max_bytes else { return Ok(()) };
        if page_bytes > max_bytes {
            return Err(PageWriteError::TooLarge { page_bytes, max_bytes });
        }
        if page_bytes > self.budget_bytes {
            let part = max_bytes / RECOUNT_FRACTION;
            // Two processes that count at the same time stay below the maximum with all that each
            // may write.
            let target_bytes = max_bytes.saturating_sub(2 * (page_bytes + part));
            let result = shrink(store, target_bytes)
                .map_err(|source| PageWriteError::Io { path: store.to_path_buf(), source })?;
            self.budget_bytes = page_bytes + part;
            if let Some(source) = result.error {
                // Another process may take as much of the space that is left as this one.
                if 2 * page_bytes > max_bytes.saturating_sub(result.size_bytes) {
                    self.budget_bytes = 0;
                    let (path, held_bytes) = (store.to_path_buf(), result.size_bytes);
                    return Err(PageWriteError::Unremovable {
                        path,
                        held_bytes,
                        max_bytes,
                        source,
                    });
                }
                self.budget_bytes = page_bytes;
            }
        }
        self.budget_bytes -= page_bytes;
        Ok(())
    }
}

/// Size of a store after its least recently used pages were removed.
struct ShrinkResult {
    size_bytes: u64,
    /// Last error of removing a page, if the store is still larger than requested.
    error: Option<std::io::Error>,
}

/// Removes the least recently used pages until at most `target_bytes` are left, or no more pages
/// can be removed.
fn shrink(store: &Path, target_bytes: u64) -> std::io::Result<ShrinkResult> {
    let mut all: Vec<PageFile> = Vec::new();
    for folder in list_folders(store)? {
        all.extend(list_pages(&folder)?);
    }
    let mut result =
        ShrinkResult { size_bytes: all.iter().map(|page| page.size_bytes).sum(), error: None };
    all.sort_by_key(|page| page.last_used);
    for page in all {
        if result.size_bytes <= target_bytes {
            return Ok(ShrinkResult { error: None, ..result });
        }
        match std::fs::remove_file(&page.path) {
            // The page belongs to another user or is in another user's folder: it still counts.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                result.error = Some(error)
            }
            // Removed, either now or by another process.
            _ => result.size_bytes -= page.size_bytes,
        }
    }
    if result.size_bytes <= target_bytes {
        result.error = None;
    }
    Ok(result)
}
