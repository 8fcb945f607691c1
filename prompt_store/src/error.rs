//! Errors of the crate, with their messages.

use std::io;
use std::path::PathBuf;

/// Error of opening a folder as a store.
#[derive(Debug, thiserror::Error)]
#[error("the prompt store {}: {source}", path.display())]
pub struct OpenError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// A page that exists but was not used. It was removed, and its positions will be computed again.
#[derive(Debug, thiserror::Error)]
#[error("the stored page {} is not used: {reason}", path.display())]
pub struct Refused {
    pub path: PathBuf,
    pub reason: String,
}

/// Error of writing a page. No part of the page is left.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The page alone exceeds the maximum size of the store.
    #[error(
        "a page takes {page_bytes} bytes, but the prompt store may use only {most_bytes}: raise \
         its limit"
    )]
    Bound { page_bytes: u64, most_bytes: u64 },
    /// Too many pages of the store cannot be removed.
    #[error(
        "the prompt store {} uses {held_bytes} of at most {most_bytes} bytes for pages that \
         cannot be removed ({source}): remove them, or raise its limit",
        path.display()
    )]
    Held { path: PathBuf, held_bytes: u64, most_bytes: u64, source: io::Error },
    #[error("the prompt store {} cannot store a page: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}
