//! Errors of the crate, with their messages.

use std::io;
use std::path::PathBuf;

/// Error of opening a folder as a store.
#[derive(Debug, thiserror::Error)]
#[error("the prompt store {}: {source}", path.display())]
pub struct PromptCacheOpenError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// A page that exists but was not used. It was removed, and its positions will be computed again.
#[derive(Debug, thiserror::Error)]
#[error("the stored page {} is not used: {reason}", path.display())]
pub struct RejectedPage {
    pub path: PathBuf,
    pub reason: String,
}

/// Error of writing a page. No part of the page is left.
#[derive(Debug, thiserror::Error)]
pub enum PageWriteError {
    /// The page alone exceeds the maximum size of the store.
    #[error(
        "a page takes {page_bytes} bytes, but the prompt store may use only {max_bytes}: raise \
         its limit"
    )]
    TooLarge { page_bytes: u64, max_bytes: u64 },
    /// Too many pages of the store cannot be removed.
    #[error(
        "the prompt store {} uses {held_bytes} of at most {max_bytes} bytes for pages that \
         cannot be removed ({source}): remove them, or raise its limit",
        path.display()
    )]
    Unremovable { path: PathBuf, held_bytes: u64, max_bytes: u64, source: io::Error },
    #[error("the prompt store {} cannot store a page: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}
