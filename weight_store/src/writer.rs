//! Writing a staged copy: blobs go into a partial folder, which is renamed once it is complete.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use atomic_fs::{Directory, PUBLIC_MODE};
use rustix::fs::OFlags;

use crate::aligned_writer::AlignedFileWriter;
use crate::checksum::{Checksum, checksum_blocks};
use crate::disk;
use crate::error::StageError;
use crate::identity::Identity;
use crate::index::{Blob, Content, FORMAT};
use crate::journal::{FinishedBlob, Header, JOURNAL, Journal, JournalError, JournalRecord};
use crate::layout::{BlobExtent, BlobSize, CHECKSUM_BYTES, Layout, size_bytes};
use crate::staged::{BLOCKS, INDEX, StagedCopy, WEIGHTS, partial_path};

/// Permission bits of the folder, before the umask.
const FOLDER_MODE: u32 = 0o777;

/// A staged copy that is being written. Dropped or killed at any time, it leaves a partial folder
/// that [`Writer::begin`] resumes.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    /// Path of the partial folder.
    folder: PathBuf,
    /// The partial folder as an open descriptor: a link that replaces it is never followed.
    partial: Directory,
    identity: Identity,
    blobs: Vec<BlobSize>,
    layout: Layout,
    weights: AlignedFileWriter,
    blocks: File,
    journal: Journal,
    finished: Vec<Option<FinishedBlob>>,
}

impl Writer {
    /// Starts to stage `blobs` in `dir`, or resumes after a writer of the same identity and blobs.
    /// A partial folder of other blobs is started over. All space is allocated at once if the file
    /// system supports it.
    ///
    /// # Errors
    ///
    /// Fails if `dir` does not exist, the staged copy exists already or another process is writing
    /// it, blobs share a name, or the drive has too little space.
    pub fn begin(
        dir: &Path,
        identity: &Identity,
        blobs: &[BlobSize],
    ) -> Result<Writer, StageError> {
        identity.check_name()?;
        check_names(blobs)?;
        let layout = Layout::from_sizes(blobs.iter().map(|blob| blob.size_bytes));
        let layout = layout.ok_or(StageError::TooLarge)?;
        if !dir.is_dir() {
            return Err(StageError::NoFolder { dir: dir.to_path_buf() });
        }
        let target = dir.join(&identity.name);
        if target.exists() {
            return Err(StageError::Exists { path: target });
        }
        let folder = partial_path(dir, &identity.name);
        let partial = Directory::open(dir).and_then(|parent| {
            let name = folder.file_name().unwrap_or_default();
            parent.subdirectory(name, FOLDER_MODE)
        });
        let partial = partial.map_err(|error| StageError::from_io("create", &folder, error))?;
        let (journal, record) = open_journal(&partial, &folder, &target)?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let blocks = partial.open_file(BLOCKS, flags, PUBLIC_MODE);
        let blocks =
            blocks.map_err(|error| StageError::from_io("create", &folder.join(BLOCKS), error))?;
        let weights = AlignedFileWriter::open(&partial, WEIGHTS)
            .map_err(|error| StageError::from_io("create", &folder.join(WEIGHTS), error))?;
        let mut writer = Writer {
            dir: dir.to_path_buf(),
            folder,
            partial,
            identity: identity.clone(),
            finished: vec![None; blobs.len()],
            blobs: blobs.to_vec(),
            layout,
            weights,
            blocks,
            journal,
        };
        writer.prepare(record)?;
        Ok(writer)
    }

    /// Resumes from the blobs that `record` proves to be durable, then checks and allocates the
    /// space for the rest.
    fn prepare(&mut self, record: Option<JournalRecord>) -> Result<(), StageError> {
        let header = Header {
            format: FORMAT,
            plan: plan_checksum(&self.identity, &self.blobs),
            total_bytes: self.blobs.iter().map(|blob| blob.size_bytes).sum(),
        };
        let record = record.filter(|record| record.header == header);
        let journal_path = self.folder.join(JOURNAL);
        let journal_failed = |error| StageError::from_io("write", &journal_path, error);
        match &record {
            Some(record) => self.journal.resume(record).map_err(journal_failed)?,
            None => self.journal.restart().map_err(journal_failed)?,
        }
        for finished in record.iter().flat_map(|record| &record.finished) {
            if let Some(blob) = self.blobs.get(finished.blob)
                && blob.size_bytes == finished.size_bytes
                && self.has_blocks(finished)
            {
                self.finished[finished.blob] = Some(*finished);
            }
        }
        if self.finished.iter().all(Option::is_none) {
            let cleared = self.weights.file().set_len(0).and_then(|()| self.blocks.set_len(0));
            cleared.map_err(|error| StageError::from_io("clear", &self.folder, error))?;
        }
        self.allocate_space()?;
        if record.is_none() {
            self.journal.begin(&header).map_err(journal_failed)?;
        }
        let synced = disk::sync_folder(&self.folder).and_then(|()| disk::sync_folder(&self.dir));
        synced.map_err(|error| StageError::from_io("write", &self.folder, error))
    }

    /// Returns true if `blocks.bin` contains the checksums of a finished blob.
    fn has_blocks(&self, finished: &FinishedBlob) -> bool {
        let place = self.layout.extents[finished.blob];
        let mut bytes = vec![0; (place.blocks * CHECKSUM_BYTES) as usize];
        let read = self.blocks.read_exact_at(&mut bytes, place.first_block * CHECKSUM_BYTES);
        read.is_ok() && Checksum::of_bytes(&bytes) == finished.blocks_checksum
    }

    fn allocate_space(&self) -> Result<(), StageError> {
        let files = [
            (self.weights.file(), WEIGHTS, self.layout.weights_bytes),
            (&self.blocks, BLOCKS, self.layout.blocks_bytes()),
        ];
        let mut needed_bytes = size_bytes(&self.blobs);
        for (file, name, _) in files {
            let taken = disk::allocated_bytes(file)
                .map_err(|error| StageError::from_io("read", &self.folder.join(name), error))?;
            needed_bytes = needed_bytes.saturating_sub(taken);
        }
        let available_bytes = disk::available_bytes(&self.dir)
            .map_err(|error| StageError::from_io("read", &self.dir, error))?;
        if needed_bytes > available_bytes {
            let dir = self.dir.clone();
            return Err(StageError::NoSpace { dir, needed_bytes, available_bytes });
        }
        for (file, name, size_bytes) in files {
            disk::allocate(file, size_bytes)
                .map_err(|error| StageError::from_io("write", &self.folder.join(name), error))?;
        }
        Ok(())
    }

    /// Returns the indices of the blobs that are still to be written, in order.
    pub fn missing(&self) -> Vec<usize> {
        let pairs = self.finished.iter().enumerate();
        pairs.filter(|(_, finished)| finished.is_none()).map(|(index, _)| index).collect()
    }

    /// Writes the blob `index`; it is durable on the drive when this returns.
    ///
    /// # Errors
    ///
    /// Fails if the blob is not missing, the size of `bytes` differs from the announced one, or the
    /// drive is full or fails. Staging can then be resumed.
    pub fn write(&mut self, index: usize, bytes: &[u8]) -> Result<(), StageError> {
        if !matches!(self.finished.get(index), Some(None)) {
            return Err(StageError::NotMissing { index });
        }
        let place = self.layout.extents[index];
        if bytes.len() as u64 != place.size_bytes {
            return Err(StageError::WrongSize {
                blob: self.blobs[index].name.clone(),
                expected_bytes: place.size_bytes,
                given_bytes: bytes.len() as u64,
            });
        }
        let failed =
            |name: &str, error| StageError::from_io("write", &self.folder.join(name), error);
        let written = self.weights.write(place.offset_bytes, bytes);
        written.map_err(|error| failed(WEIGHTS, error))?;
        let blocks_checksum = write_blocks(&self.blocks, place, bytes);
        let finished = FinishedBlob {
            blob: index,
            size_bytes: place.size_bytes,
            checksum: Checksum::of_bytes(bytes),
            blocks_checksum: blocks_checksum.map_err(|error| failed(BLOCKS, error))?,
        };
        self.journal.finish(&finished).map_err(|error| failed(JOURNAL, error))?;
        self.finished[index] = Some(finished);
        Ok(())
    }

    /// Writes the index, renames the folder to its final name and opens it. None of the weights
    /// remains in the page cache.
    ///
    /// # Errors
    ///
    /// Fails if blobs are missing, or the drive is full or fails. Staging can then be resumed.
    pub fn finish(mut self) -> Result<StagedCopy, StageError> {
        let missing = self.missing();
        if let Some(first) = missing.first() {
            let first = self.blobs[*first].name.clone();
            return Err(StageError::Unfinished { missing: missing.len(), first });
        }
        self.write_index()?;
        let failed =
            |name: &str, error| StageError::from_io("write", &self.folder.join(name), error);
        self.weights.finish().map_err(|error| failed(WEIGHTS, error))?;
        self.blocks.sync_all().map_err(|error| failed(BLOCKS, error))?;
        disk::sync_folder(&self.folder).map_err(|error| failed("", error))?;
        let target = self.dir.join(&self.identity.name);
        std::fs::rename(&self.folder, &target)
            .and_then(|()| disk::sync_folder(&self.dir))
            .map_err(|error| StageError::from_io("rename", &self.folder, error))?;
        // The journal is no longer needed; one that remains is ignored.
        let _ = std::fs::remove_file(target.join(JOURNAL));
        Ok(StagedCopy::open(&target)?)
    }

    fn write_index(&mut self) -> Result<(), StageError> {
        let blocks_path = self.folder.join(BLOCKS);
        let mut checksums = vec![0; self.layout.blocks_bytes() as usize];
        self.blocks
            .read_exact_at(&mut checksums, 0)
            .map_err(|error| StageError::from_io("read", &blocks_path, error))?;
        let places = self.layout.extents.iter().zip(&self.blobs);
        let blobs =
            places.zip(self.finished.iter().flatten()).map(|((place, blob), finished)| Blob {
                name: blob.name.clone(),
                offset_bytes: place.offset_bytes,
                size_bytes: place.size_bytes,
                checksum: finished.checksum,
            });
        let content = Content {
            format: FORMAT,
            identity: self.identity.clone(),
            blobs: blobs.collect(),
            weights_bytes: self.layout.weights_bytes,
            blocks_checksum: Checksum::of_bytes(&checksums),
        };
        let path = self.folder.join(INDEX);
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            let mut file = self.partial.open_file(INDEX, flags, PUBLIC_MODE)?;
            file.write_all(content.text()?.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|error| StageError::from_io("write", &path, error))
    }
}

fn write_blocks(file: &File, place: BlobExtent, blob: &[u8]) -> io::Result<Checksum> {
    let checksums = checksum_blocks(blob);
    file.write_all_at(&checksums, place.first_block * CHECKSUM_BYTES)?;
    file.sync_data()?;
    Ok(Checksum::of_bytes(&checksums))
}

fn check_names(blobs: &[BlobSize]) -> Result<(), StageError> {
    let mut names: Vec<&str> = blobs.iter().map(|blob| blob.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StageError::SameName { name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Returns a checksum that distinguishes staged copies of the same name.
fn plan_checksum(identity: &Identity, blobs: &[BlobSize]) -> Checksum {
    let mut text = String::new();
    let fields = [&identity.name, &identity.model, &identity.weights, &identity.form];
    let lines = fields.into_iter().map(|field| format!("{field:?}\n"));
    text.extend(lines);
    text.extend(blobs.iter().map(|blob| format!("{:?} {}\n", blob.name, blob.size_bytes)));
    Checksum::of_bytes(text.as_bytes())
}

fn open_journal(
    partial: &Directory,
    folder: &Path,
    target: &Path,
) -> Result<(Journal, Option<JournalRecord>), StageError> {
    Journal::open(partial, folder).map_err(|error| match error {
        JournalError::Locked => StageError::Locked { path: folder.to_path_buf() },
        JournalError::Moved => StageError::Exists { path: target.to_path_buf() },
        JournalError::Io(error) => StageError::from_io("open", &folder.join(JOURNAL), error),
    })
}
