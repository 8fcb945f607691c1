//! What can fail, each with its sentence.

use std::io;
use std::path::PathBuf;

/// Why a folder cannot be a store.
#[derive(Debug, thiserror::Error)]
#[error("the prompt store {}: {source}", path.display())]
pub struct OpenError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// Why a page that is there was not used. It is removed, and will be computed.
#[derive(Debug, thiserror::Error)]
#[error("the stored page {} is not used: {reason}", path.display())]
pub struct Refused {
    pub path: PathBuf,
    pub reason: String,
}

/// Why a page was not written. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It alone is larger than the bound.
    #[error(
        "a page takes {page_bytes} bytes and the prompt store may have {most_bytes}: allow it more"
    )]
    Bound { page_bytes: u64, most_bytes: u64 },
    /// Too much of the store cannot be removed.
    #[error(
        "the prompt store {} holds {held_bytes} of the {most_bytes} bytes that it may have in \
         pages that cannot be removed ({source}): remove them, or allow it more",
        path.display()
    )]
    Held { path: PathBuf, held_bytes: u64, most_bytes: u64, source: io::Error },
    #[error("the prompt store {} takes no page: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}
