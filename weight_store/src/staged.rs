//! Complete staged copies, and the progress of partial ones.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checksum::Checksum;
use crate::disk;
use crate::error::OpenStagedError;
use crate::identity::Identity;
use crate::index::{Blob, Content};
use crate::journal::{JOURNAL, Journal, JournalRecord};
use crate::layout::{BlobExtent, CHECKSUM_BYTES, Layout};

/// File names of a staged copy.
pub(crate) const WEIGHTS: &str = "weights.bin";
pub(crate) const BLOCKS: &str = "blocks.bin";
pub(crate) const INDEX: &str = "index.json";

/// Returns the folder in which a copy is written until it is complete.
pub(crate) fn partial_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.partial"))
}

/// Index of a blob in the list that was staged. Equal lists give equal indices on every drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u32);

/// Progress of a partial copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyProgress {
    /// Size of the finished blobs.
    pub done_bytes: u64,
    /// Size of all blobs; 0 if unknown.
    pub total_bytes: u64,
    /// True if a process is writing it now.
    pub is_being_written: bool,
}

/// Result of [`StagedCopy::lookup`].
#[derive(Debug)]
pub enum Lookup {
    /// No copy of this name exists.
    Missing,
    /// A copy that is being written, or whose writer ended early.
    Partial(CopyProgress),
    /// A complete copy.
    Complete(StagedCopy),
}

/// A complete staged copy. Its index and the checksums of its blocks have been verified, but not
/// its weights.
#[derive(Debug, Clone)]
pub struct StagedCopy {
    path: PathBuf,
    content: Arc<Content>,
    layout: Arc<Layout>,
    /// Checksums of every block of all blobs.
    checksums: Arc<[u64]>,
}

impl StagedCopy {
    /// Looks up the copy of these weights in `dir`.
    ///
    /// # Errors
    ///
    /// Fails if the copy of this name is damaged or contains other weights.
    pub fn lookup(dir: &Path, identity: &Identity) -> Result<Lookup, OpenStagedError> {
        let path = dir.join(&identity.name);
        if path.is_dir() {
            let staged = StagedCopy::open(&path)?;
            let differences = staged.identity().differences(identity);
            if !differences.is_empty() {
                return Err(OpenStagedError::Different { path, differences });
            }
            return Ok(Lookup::Complete(staged));
        }
        let partial = partial_path(dir, &identity.name);
        Ok(if partial.is_dir() { Lookup::Partial(progress(&partial)) } else { Lookup::Missing })
    }

    /// Opens the staged copy in the folder `path`, regardless of its identity.
    ///
    /// # Errors
    ///
    /// Fails if a file is missing, was edited, cut or torn, or has another format.
    pub fn open(path: &Path) -> Result<StagedCopy, OpenStagedError> {
        let index_path = path.join(INDEX);
        let content = Content::read(&index_path)?;
        if path.file_name().is_none_or(|name| name != content.identity.name.as_str()) {
            let reason = format!("its folder was named {:?}", content.identity.name);
            return Err(OpenStagedError::damaged(&index_path, reason));
        }
        let layout = content.layout(&index_path)?;
        let weights_path = path.join(WEIGHTS);
        let weights = File::open(&weights_path).and_then(|file| file.metadata());
        let size = weights.map_err(|error| OpenStagedError::io(&weights_path, error))?.len();
        if size != layout.weights_bytes {
            let reason = format!("it has {size} bytes, not {}", layout.weights_bytes);
            return Err(OpenStagedError::damaged(&weights_path, reason));
        }
        let checksums = read_checksums(&path.join(BLOCKS), &layout, content.blocks_checksum)?;
        Ok(StagedCopy {
            path: path.to_path_buf(),
            content: Arc::new(content),
            layout: Arc::new(layout),
            checksums,
        })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the weights.
    pub fn identity(&self) -> &Identity {
        &self.content.identity
    }

    /// Returns the blob with this name.
    pub fn blob(&self, name: &str) -> Option<BlobId> {
        let index = self.content.blobs.iter().position(|blob| blob.name == name)?;
        u32::try_from(index).ok().map(BlobId)
    }

    /// Returns all blobs, in the order in which they were listed.
    pub fn blobs(&self) -> impl ExactSizeIterator<Item = BlobId> + use<> {
        // An index of 2^32 blobs would exceed the maximum size of an index.
        (0..self.content.blobs.len() as u32).map(BlobId)
    }

    /// Returns the name of a blob.
    ///
    /// # Panics
    ///
    /// Panics if there is no such blob.
    pub fn name(&self, blob: BlobId) -> &str {
        &self.record(blob).name
    }

    /// Returns the size of a blob.
    ///
    /// # Panics
    ///
    /// Panics if there is no such blob.
    pub fn size_bytes(&self, blob: BlobId) -> u64 {
        self.record(blob).size_bytes
    }

    /// Returns the number of blocks of a blob.
    ///
    /// # Panics
    ///
    /// Panics if there is no such blob.
    pub fn blocks(&self, blob: BlobId) -> u64 {
        self.extent(blob).blocks
    }

    /// Returns the size of all blobs.
    pub fn total_bytes(&self) -> u64 {
        self.content.blobs.iter().map(|blob| blob.size_bytes).sum()
    }

    /// Returns the size of `weights.bin`.
    pub(crate) fn weights_bytes(&self) -> u64 {
        self.layout.weights_bytes
    }

    pub(crate) fn weights_path(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    pub(crate) fn extent(&self, blob: BlobId) -> BlobExtent {
        self.layout.extents[blob.0 as usize]
    }

    /// Returns the checksum of a whole blob.
    pub(crate) fn checksum(&self, blob: BlobId) -> Checksum {
        self.record(blob).checksum
    }

    /// Opens the weights, bypassing the page cache where that is possible.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened.
    pub fn open_weights(&self) -> std::io::Result<File> {
        let mut options = File::options();
        options.read(true);
        let path = self.weights_path();
        match disk::open_direct(&options, &path)? {
            Some(file) => Ok(file),
            None => options.open(&path),
        }
    }

    /// Returns true if `bytes` are a block of a blob as it was staged.
    ///
    /// # Panics
    ///
    /// Panics if there is no such block.
    pub fn is_block(&self, blob: BlobId, block: u64, bytes: &[u8]) -> bool {
        let place = self.extent(blob);
        assert!(block < place.blocks, "block {block} of {}", place.blocks);
        Checksum::of_bytes(bytes) == self.block_checksum(place.first_block + block)
    }

    /// Returns the checksum of a block, indexed over all blobs.
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
) -> Result<Arc<[u64]>, OpenStagedError> {
    let metadata = std::fs::metadata(path).map_err(|error| OpenStagedError::io(path, error))?;
    if metadata.len() != layout.blocks_bytes() {
        let reason = format!("it has {} bytes, not {}", metadata.len(), layout.blocks_bytes());
        return Err(OpenStagedError::damaged(path, reason));
    }
    let bytes = std::fs::read(path).map_err(|error| OpenStagedError::io(path, error))?;
    if bytes.len() as u64 != layout.blocks_bytes() || Checksum::of_bytes(&bytes) != expected {
        return Err(OpenStagedError::damaged(path, "its checksum does not match the index"));
    }
    let (words, _) = bytes.as_chunks::<{ CHECKSUM_BYTES as usize }>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Returns the progress of the copy in a partial folder.
pub(crate) fn progress(folder: &Path) -> CopyProgress {
    let journal = std::fs::read(folder.join(JOURNAL)).ok();
    let record = journal.and_then(|bytes| JournalRecord::from_bytes(&bytes));
    CopyProgress {
        done_bytes: record.as_ref().map_or(0, JournalRecord::done_bytes),
        total_bytes: record.as_ref().map_or(0, |record| record.header.total_bytes),
        is_being_written: Journal::is_locked(folder),
    }
}
