//! What can fail, each with its sentence.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why weights could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The name is not a folder's.
    #[error(
        "{name:?} cannot be the name of a staging: use small letters, digits, '.', '_' and '-', \
         not beginning with '.', at most 200"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two blobs have one name.
    #[error("two blobs are called {name:?}; a staging knows its blobs by their names")]
    SameName {
        /// The name.
        name: String,
    },
    /// No file can hold the blobs.
    #[error("the blobs are larger than any file can be")]
    TooLarge,
    /// The folder in which to stage is not there.
    #[error("{} is not a folder: mount the drive there, or create it", dir.display())]
    NoFolder {
        /// The folder.
        dir: PathBuf,
    },
    /// It is staged already.
    #[error("{} is there already; remove it to stage these weights anew", path.display())]
    Exists {
        /// The staging's folder.
        path: PathBuf,
    },
    /// Another process stages the same.
    #[error("another process is staging into {}; wait until it has ended", path.display())]
    Locked {
        /// The partial folder.
        path: PathBuf,
    },
    /// The drive has too little space, and nothing was written.
    #[error(
        "{} has {available_bytes} bytes free, and staging needs {needed_bytes} more; \
         free space there or choose another drive", dir.display()
    )]
    NoSpace {
        /// The folder in which to stage.
        dir: PathBuf,
        /// Bytes still to be written.
        needed_bytes: u64,
        /// Bytes that this user may still write.
        available_bytes: u64,
    },
    /// The drive, a quota or a limit on file sizes was reached while writing.
    #[error(
        "{} cannot grow ({source}); free space there and stage again: what is written is kept",
        path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A blob came with another size than was announced.
    #[error("blob {blob} has {given_bytes} bytes, and {expected_bytes} were announced")]
    WrongSize {
        /// Its name.
        blob: String,
        /// Bytes announced.
        expected_bytes: u64,
        /// Bytes given.
        given_bytes: u64,
    },
    /// A blob was written twice, or is none of those announced.
    #[error("blob number {index} is not one that is missing")]
    NotMissing {
        /// Its number.
        index: usize,
    },
    /// The end was announced before all blobs were there.
    #[error("{missing} of the blobs are not written yet, the first is {first}")]
    Unfinished {
        /// How many.
        missing: usize,
        /// The first one's name.
        first: String,
    },
    /// Any other failure of a file.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was done, as a verb.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What was staged does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl StageError {
    /// `source` as a failure of `what` on `path`, or of a full drive if that is what it says.
    pub(crate) fn of(what: &'static str, path: &Path, source: io::Error) -> StageError {
        let path = path.to_path_buf();
        let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
        if full.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error())) {
            return StageError::DiskFull { path, source };
        }
        StageError::Io { what, path, source }
    }
}

/// A field of an identity that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field's name.
    pub field: &'static str,
    /// What is staged.
    pub staged: String,
    /// What was to be there.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} is {:?} and not {:?}", self.field, self.staged, self.expected)
    }
}

fn list_differences(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a staging was refused.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of it cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file of it is not as it was written.
    #[error("{} is damaged: {reason}; remove the staging and stage again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It was written by a version that writes otherwise.
    #[error(
        "{} has format {format}, and this version reads format {supported}; stage again",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u64,
        /// The format of this version.
        supported: u64,
    },
    /// It holds something else than what is to be read.
    #[error(
        "{} holds other weights: {}; stage the right ones", path.display(),
        list_differences(differences)
    )]
    Different {
        /// The staging's folder.
        path: PathBuf,
        /// What differs.
        differences: Vec<Difference>,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, source: io::Error) -> OpenError {
        OpenError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// Why a staging could not be opened for reading.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// The options make no sense.
    #[error("{what}")]
    Options {
        /// What is wrong, and what is possible.
        what: String,
    },
    /// The file cannot be opened, or its first page not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The way of reading that was chosen is refused here.
    #[error("{how} cannot be used here: {source}; leave the choice open")]
    Refused {
        /// The way.
        how: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Why blocks could not be read. Nothing is in flight any more, and what the destination holds of
/// these blocks is undefined.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The device failed.
    #[error("cannot read blob {blob} at byte {offset_bytes} of {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The blob's name.
        blob: String,
        /// Where in the blob.
        offset_bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The file ends too early.
    #[error(
        "{} ends within blob {blob}, at its byte {offset_bytes}: the file was cut; stage again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The blob's name.
        blob: String,
        /// Where in the blob.
        offset_bytes: u64,
    },
    /// A block is not what was written.
    #[error(
        "blob {blob} of {} is damaged between bytes {offset_bytes} and {end_bytes}: their \
         checksum is not the one that was staged; check the drive and stage again", path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The blob's name.
        blob: String,
        /// The block's first byte in the blob.
        offset_bytes: u64,
        /// Where it ends.
        end_bytes: u64,
    },
    /// The blob has no such blocks.
    #[error("blocks {first} to {end} of blob {blob} cannot be read: it has {blocks}")]
    NoSuchBlocks {
        /// The blob's name.
        blob: String,
        /// The first block.
        first: u64,
        /// The block after the last.
        end: u64,
        /// Blocks that there are.
        blocks: u64,
    },
    /// The destination is not aligned.
    #[error("a destination at {address:#x} is not at a multiple of 4096")]
    Unaligned {
        /// Its address.
        address: usize,
    },
}
