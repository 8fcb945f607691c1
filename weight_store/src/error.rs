//! Errors of the crate, with their messages.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Error of staging weights.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The name is not allowed as a folder's name.
    #[error(
        "{name:?} cannot be the name of a staging: use lower-case letters, digits, '.', '_' and \
         '-', not beginning with '.', at most 200"
    )]
    Name {
        /// Rejected name.
        name: String,
    },
    /// Two blobs have the same name.
    #[error("two blobs are named {name:?}; names of blobs must be unique")]
    SameName {
        /// Name that occurs twice.
        name: String,
    },
    /// The total size exceeds the maximum size of a file.
    #[error("the blobs are larger than any file can be")]
    TooLarge,
    /// The folder in which to stage does not exist.
    #[error("{} is not a folder: mount the drive there, or create it", dir.display())]
    NoFolder {
        /// Path of the missing folder.
        dir: PathBuf,
    },
    /// A complete staged copy of this name exists.
    #[error("{} already exists; remove it to stage these weights again", path.display())]
    Exists {
        /// Folder of the staged copy.
        path: PathBuf,
    },
    /// Another process is staging the same weights.
    #[error("another process is staging into {}; wait until it ends", path.display())]
    Locked {
        /// Folder of the partial copy.
        path: PathBuf,
    },
    /// The drive has too little space. Nothing was written.
    #[error(
        "{} has {available_bytes} bytes free, but staging needs {needed_bytes} more; free space \
         there or choose another drive", dir.display()
    )]
    NoSpace {
        /// Folder in which to stage.
        dir: PathBuf,
        /// Bytes still to be written.
        needed_bytes: u64,
        /// Bytes that this user may still write.
        available_bytes: u64,
    },
    /// The drive is full, or a quota or a limit on file sizes was reached while writing.
    #[error(
        "{} cannot grow ({source}); free space there and stage again; data already written is kept",
        path.display()
    )]
    DiskFull {
        /// File that was being written.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The size of a blob differs from the announced size.
    #[error("blob {blob} has {given_bytes} bytes, but {expected_bytes} were expected")]
    WrongSize {
        /// Name of the blob.
        blob: String,
        /// Announced size.
        expected_bytes: u64,
        /// Size given.
        given_bytes: u64,
    },
    /// The blob was written already, or was not announced.
    #[error("blob number {index} is not missing")]
    NotMissing {
        /// Index of the blob in the announced list.
        index: usize,
    },
    /// The writer was finished before all blobs were written.
    #[error("{missing} blobs are not written yet; the first is {first}")]
    Unfinished {
        /// Number of missing blobs.
        missing: usize,
        /// Name of the first missing blob.
        first: String,
    },
    /// Any other failure of a file operation.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Operation that failed, as a verb.
        what: &'static str,
        /// File or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// The copy was written but cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStagedError),
}

impl StageError {
    /// Wraps the error `source` of the operation `what` on `path`; returns [`StageError::DiskFull`]
    /// if the error means a full drive, a quota or a limit on file sizes.
    pub(crate) fn from_io(what: &'static str, path: &Path, source: io::Error) -> StageError {
        let path = path.to_path_buf();
        let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
        if full.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error())) {
            return StageError::DiskFull { path, source };
        }
        StageError::Io { what, path, source }
    }
}

/// A field of an identity that differs from the expected value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field.
    pub field: &'static str,
    /// Value in the staged copy.
    pub staged: String,
    /// Expected value.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} is {:?}, not {:?}", self.field, self.staged, self.expected)
    }
}

fn list_differences(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// Error of opening a staged copy.
#[derive(Debug, thiserror::Error)]
pub enum OpenStagedError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File that cannot be read.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The content of a file is not as it was written.
    #[error("{} is damaged: {reason}; remove the staging and stage again", path.display())]
    Damaged {
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// The copy was written in a format of another version.
    #[error(
        "{} has format {format}, but this version reads format {supported}; stage again",
        path.display()
    )]
    Format {
        path: PathBuf,
        /// Format of the file.
        format: u64,
        /// Format that this version reads.
        supported: u64,
    },
    /// The copy contains other weights than expected.
    #[error(
        "{} contains other weights: {}; stage the right ones", path.display(),
        list_differences(differences)
    )]
    Different {
        /// Folder of the staged copy.
        path: PathBuf,
        /// Fields that differ.
        differences: Vec<Difference>,
    },
}

impl OpenStagedError {
    pub(crate) fn io(path: &Path, source: io::Error) -> OpenStagedError {
        OpenStagedError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> OpenStagedError {
        OpenStagedError::Damaged { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// Error of opening a [`crate::Reader`].
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// An option is out of range.
    #[error("{what}")]
    Options {
        /// Description of the problem, with the permitted values.
        what: String,
    },
    /// The file cannot be opened, or its first page cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File that cannot be read.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The system refuses the chosen way of reading.
    #[error("{how} cannot be used here: {source}; use the automatic choice")]
    Refused {
        /// Name of the way of reading.
        how: &'static str,
        source: io::Error,
    },
}

/// Error of reading blocks. No request is in flight any more; the content of the destination is
/// undefined for these blocks.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The device failed.
    #[error("cannot read blob {blob} at byte {offset_bytes} of {}: {source}", path.display())]
    Io {
        path: PathBuf,
        /// Name of the blob.
        blob: String,
        /// Offset in the blob.
        offset_bytes: u64,
        source: io::Error,
    },
    /// The file ends before the blob does.
    #[error(
        "{} ends within blob {blob}, at its byte {offset_bytes}: the file was cut short; \
         stage again",
        path.display()
    )]
    Truncated {
        path: PathBuf,
        /// Name of the blob.
        blob: String,
        /// Offset in the blob.
        offset_bytes: u64,
    },
    /// The checksum of a block differs from the recorded one.
    #[error(
        "blob {blob} of {} is damaged between bytes {offset_bytes} and {end_bytes}: their \
         checksum does not match the staged one; check the drive and stage again", path.display()
    )]
    Checksum {
        path: PathBuf,
        /// Name of the blob.
        blob: String,
        /// Offset of the block's first byte in the blob.
        offset_bytes: u64,
        /// Offset of the block's end in the blob.
        end_bytes: u64,
    },
    /// The blob has fewer blocks than requested.
    #[error("blocks {first} to {end} of blob {blob} cannot be read: it has {blocks}")]
    NoSuchBlocks {
        /// Name of the blob.
        blob: String,
        /// First block requested.
        first: u64,
        /// End of the requested range.
        end: u64,
        /// Number of blocks of the blob.
        blocks: u64,
    },
    /// The address of the destination is not aligned.
    #[error("the destination address {address:#x} is not a multiple of 4096")]
    Unaligned {
        /// Address of the first byte.
        address: usize,
    },
}
