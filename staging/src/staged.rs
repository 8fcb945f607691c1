//! A whole staging, and how far a partial one has come.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checksum::Checksum;
use crate::disk;
use crate::error::OpenError;
use crate::identity::Identity;
use crate::index::{Blob, Content};
use crate::journal::{JOURNAL, Journal, Record};
use crate::layout::{CHECKSUM_BYTES, Layout, Place};

/// The files of a staging.
pub(crate) const WEIGHTS: &str = "weights.bin";
pub(crate) const BLOCKS: &str = "blocks.bin";
pub(crate) const INDEX: &str = "index.json";

/// Where a staging lies while it is written.
pub(crate) fn partial_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.partial"))
}

/// A blob of a staging, by its place in the list that was staged. The same list gives the same
/// numbers on every drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u32);

/// How far a partial staging has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of the blobs that are finished.
    pub done_bytes: u64,
    /// Bytes of all blobs; 0 if nothing is known.
    pub total_bytes: u64,
    /// Whether a process is writing it now.
    pub is_being_written: bool,
}

/// What lies under a name.
#[derive(Debug)]
pub enum Lookup {
    /// Nothing.
    Missing,
    /// A staging that is being written, or whose writer ended early.
    Partial(Progress),
    /// A whole one.
    Whole(Staged),
}

/// A whole staging: its index and the checksums of its blocks, but not its weights, were checked.
#[derive(Debug, Clone)]
pub struct Staged {
    path: PathBuf,
    content: Arc<Content>,
    layout: Arc<Layout>,
    /// Of every block of all blobs.
    checksums: Arc<[u64]>,
}

impl Staged {
    /// What `dir` holds of these weights.
    ///
    /// # Errors
    ///
    /// If what lies there under this name is damaged, or holds something else.
    pub fn lookup(dir: &Path, identity: &Identity) -> Result<Lookup, OpenError> {
        let path = dir.join(&identity.name);
        if path.is_dir() {
            let staged = Staged::open(&path)?;
            let differences = staged.identity().differences(identity);
            if !differences.is_empty() {
                return Err(OpenError::Different { path, differences });
            }
            return Ok(Lookup::Whole(staged));
        }
        let partial = partial_path(dir, &identity.name);
        Ok(if partial.is_dir() { Lookup::Partial(progress(&partial)) } else { Lookup::Missing })
    }

    /// Opens the staging in the folder `path`, whatever it holds.
    ///
    /// # Errors
    ///
    /// If a file is missing, was edited, cut or torn, or is of another format.
    pub fn open(path: &Path) -> Result<Staged, OpenError> {
        let index_path = path.join(INDEX);
        let content = Content::read(&index_path)?;
        if path.file_name().is_none_or(|name| name != content.identity.name.as_str()) {
            let reason = format!("its folder was called {:?}", content.identity.name);
            return Err(OpenError::damaged(&index_path, reason));
        }
        let layout = content.layout(&index_path)?;
        let weights_path = path.join(WEIGHTS);
        let weights = File::open(&weights_path).and_then(|file| file.metadata());
        let size = weights.map_err(|error| OpenError::io(&weights_path, error))?.len();
        if size != layout.weights_bytes {
            let reason = format!("it has {size} bytes and not {}", layout.weights_bytes);
            return Err(OpenError::damaged(&weights_path, reason));
        }
        let checksums = read_checksums(&path.join(BLOCKS), &layout, content.blocks_checksum)?;
        Ok(Staged {
            path: path.to_path_buf(),
            content: Arc::new(content),
            layout: Arc::new(layout),
            checksums,
        })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose weights it holds.
    pub fn identity(&self) -> &Identity {
        &self.content.identity
    }

    /// The blob of a name.
    pub fn blob(&self, name: &str) -> Option<BlobId> {
        let index = self.content.blobs.iter().position(|blob| blob.name == name)?;
        u32::try_from(index).ok().map(BlobId)
    }

    /// All blobs, in the order in which they were listed.
    pub fn blobs(&self) -> impl ExactSizeIterator<Item = BlobId> + use<> {
        // An index of 2^32 blobs would be far longer than an index may be.
        (0..self.content.blobs.len() as u32).map(BlobId)
    }

    /// A blob's name.
    ///
    /// # Panics
    ///
    /// As all that follow, if there is no such blob.
    pub fn name(&self, blob: BlobId) -> &str {
        &self.record(blob).name
    }

    /// A blob's bytes.
    pub fn size_bytes(&self, blob: BlobId) -> u64 {
        self.record(blob).size_bytes
    }

    /// A blob's blocks.
    pub fn blocks(&self, blob: BlobId) -> u64 {
        self.place(blob).blocks
    }

    /// Bytes of all blobs.
    pub fn total_bytes(&self) -> u64 {
        self.content.blobs.iter().map(|blob| blob.size_bytes).sum()
    }

    /// Bytes of `weights.bin`.
    pub(crate) fn weights_bytes(&self) -> u64 {
        self.layout.weights_bytes
    }

    pub(crate) fn weights_path(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    pub(crate) fn place(&self, blob: BlobId) -> Place {
        self.layout.places[blob.0 as usize]
    }

    /// The checksum of a whole blob.
    pub(crate) fn checksum(&self, blob: BlobId) -> Checksum {
        self.record(blob).checksum
    }

    /// Opens the weights, past the page cache where that is possible.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open_weights(&self) -> std::io::Result<File> {
        let mut options = File::options();
        options.read(true);
        let path = self.weights_path();
        match disk::open_direct(&options, &path)? {
            Some(file) => Ok(file),
            None => options.open(&path),
        }
    }

    /// Whether `bytes` are a block of a blob, as it was staged.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    pub fn is_block(&self, blob: BlobId, block: u64, bytes: &[u8]) -> bool {
        let place = self.place(blob);
        assert!(block < place.blocks, "block {block} of {}", place.blocks);
        Checksum::of(bytes) == self.block_checksum(place.first_block + block)
    }

    /// The checksum of a block, counted over all blobs.
    #[inline]
    pub(crate) fn block_checksum(&self, block: u64) -> Checksum {
        Checksum(self.checksums[block as usize])
    }

    fn record(&self, blob: BlobId) -> &Blob {
        &self.content.blobs[blob.0 as usize]
    }
}

fn read_checksums(
    path: &Path,
    layout: &Layout,
    expected: Checksum,
) -> Result<Arc<[u64]>, OpenError> {
    let metadata = std::fs::metadata(path).map_err(|error| OpenError::io(path, error))?;
    if metadata.len() != layout.blocks_bytes() {
        let reason = format!("it has {} bytes and not {}", metadata.len(), layout.blocks_bytes());
        return Err(OpenError::damaged(path, reason));
    }
    let bytes = std::fs::read(path).map_err(|error| OpenError::io(path, error))?;
    if bytes.len() as u64 != layout.blocks_bytes() || Checksum::of(&bytes) != expected {
        return Err(OpenError::damaged(path, "its checksum is not the one that the index has"));
    }
    let (words, _) = bytes.as_chunks::<{ CHECKSUM_BYTES as usize }>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// How far the staging in a partial folder has come.
pub(crate) fn progress(folder: &Path) -> Progress {
    let journal = std::fs::read(folder.join(JOURNAL)).ok();
    let record = journal.and_then(|bytes| Record::of(&bytes));
    Progress {
        done_bytes: record.as_ref().map_or(0, Record::done_bytes),
        total_bytes: record.as_ref().map_or(0, |record| record.header.total_bytes),
        is_being_written: Journal::is_locked(folder),
    }
}
