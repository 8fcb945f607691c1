//! Directory of files and batches. Each object has a record, and a file has its content next to it:
//!
//! | name | content |
//! |---|---|
//! | `file-ID.json`, `file-ID.jsonl` | record and content of a file |
//! | `batch_ID.json` | record of a batch |
//! | `batch_ID.work.jsonl` | output of the job of a batch that has not ended |
//!
//! A content exists before its record and is removed after it, and records are replaced atomically.
//! One server uses a directory at a time.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE, TemporaryFile};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::batch_record::BatchRecord;
use super::directory_scan::{CONTENT_EXTENSION, DirectoryContents, UPLOAD_PREFIX, WORK_EXTENSION};
use super::file_record::FileRecord;
use super::quota::{QuotaReservation, StorageQuota, stored_bytes};
use super::record_file::{record_name, write_record};
use super::storage_index::StorageIndex;

/// File that the server which uses a directory has locked.
const LOCK_NAME: &str = "lock";

/// Files and batches on disk.
#[derive(Debug)]
pub struct BatchStorage {
    path: PathBuf,
    directory: Directory,
    pub quota: Arc<StorageQuota>,
    index: Mutex<StorageIndex>,
    /// Locked while the server runs.
    _lock: File,
}

impl BatchStorage {
    /// Opens a directory, which is created if it is missing, and removes what a killed server left
    /// in it.
    ///
    /// # Errors
    /// The directory cannot be created, read or written, or another server uses it.
    pub fn open(path: &Path, max_bytes: u64) -> io::Result<BatchStorage> {
        let directory = Directory::create(path, PRIVATE_DIRECTORY_MODE)?;
        let lock = directory.open_file(LOCK_NAME, OFlags::RDWR | OFlags::CREATE, PRIVATE_MODE)?;
        // A file system without locks must not prevent the start.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(io::Error::other("another server uses it"));
        }
        let mut contents = DirectoryContents::read(path, &directory)?;
        contents.remove_leftovers(&directory)?;
        let quota = StorageQuota::new(max_bytes);
        for file in &contents.files {
            quota.add(stored_bytes(file.bytes));
        }
        quota.add(contents.batches.len() as u64 * stored_bytes(0));
        let index = Mutex::new(StorageIndex::new(contents.files, contents.batches));
        Ok(BatchStorage { path: path.to_owned(), directory, quota, index, _lock: lock })
    }

    /// Returns the index. Changes of it must be written with the functions below.
    pub fn lock(&self) -> MutexGuard<'_, StorageIndex> {
        // A panic while the lock is held leaves complete records.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a file to be stored, whose name is decided later.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn begin_file(&self) -> io::Result<TemporaryFile<'_>> {
        self.directory.temporary_file(UPLOAD_PREFIX, "", PRIVATE_MODE)
    }

    /// Stores a complete file, which is durable on return. It replaces an earlier file with the
    /// same id. `reservation` holds the bytes of the content.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_file(
        &self,
        record: FileRecord,
        content: TemporaryFile<'_>,
        reservation: QuotaReservation,
    ) -> io::Result<()> {
        content.file().sync_data()?;
        content.persist(content_name(&record.id))?;
        let mut index = self.lock();
        write_record(&self.directory, &record.id, &record)?;
        let replaced = index.files.find(&record.id).map(|known| stored_bytes(known.bytes));
        drop(reservation);
        self.quota.subtract(replaced.unwrap_or(0));
        self.quota.add(stored_bytes(record.bytes));
        index.files.put(record);
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn remove_file(&self, index: &mut StorageIndex, id: &str) -> io::Result<()> {
        let Some(record) = index.files.find(id) else { return Ok(()) };
        let bytes = stored_bytes(record.bytes);
        self.directory.remove_file(record_name(id))?;
        index.files.remove(id);
        self.quota.subtract(bytes);
        // A content without a record is removed with the next start.
        let _ = self.directory.remove_file(content_name(id));
        Ok(())
    }

    /// Opens the content of a file.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open_content(&self, id: &str) -> io::Result<File> {
        self.directory.open_file(content_name(id), OFlags::RDONLY, 0)
    }

    /// Returns the path of the content of a file.
    pub fn content_path(&self, id: &str) -> PathBuf {
        self.path.join(content_name(id))
    }

    /// Writes the record of a batch, which is durable on return.
    ///
    /// # Errors
    /// The record cannot be written; the index is then unchanged.
    pub fn put_batch(&self, index: &mut StorageIndex, record: BatchRecord) -> io::Result<()> {
        write_record(&self.directory, &record.id, &record)?;
        if index.batches.find(&record.id).is_none() {
            self.quota.add(stored_bytes(0));
        }
        index.batches.put(record);
        Ok(())
    }

    /// Removes the record of a batch.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn remove_batch(&self, index: &mut StorageIndex, id: &str) -> io::Result<()> {
        self.directory.remove_file(record_name(id))?;
        if index.batches.remove(id).is_some() {
            self.quota.subtract(stored_bytes(0));
        }
        Ok(())
    }

    /// Returns the path of the working file of a batch, which is created if it is missing: never
    /// through a link, and readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be created, or is not a regular file.
    pub fn work_path(&self, batch_id: &str) -> io::Result<PathBuf> {
        let name = work_name(batch_id);
        let flags = OFlags::RDWR | OFlags::CREATE;
        drop(self.directory.open_file(&name, flags, PRIVATE_MODE)?);
        Ok(self.path.join(name))
    }

    /// Opens the working file of a batch for reading; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open_work(&self, batch_id: &str) -> io::Result<Option<File>> {
        match self.directory.open_file(work_name(batch_id), OFlags::RDONLY, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the size of the working file of a batch, in bytes.
    pub fn work_bytes(&self, batch_id: &str) -> u64 {
        let entry = self.directory.entry(work_name(batch_id));
        entry.ok().flatten().map_or(0, |entry| entry.size_bytes)
    }

    /// Removes the working file of a batch, if there is one.
    pub fn remove_work(&self, batch_id: &str) {
        // A leftover is removed with the next start.
        let _ = self.directory.remove_file(work_name(batch_id));
    }
}

fn content_name(id: &str) -> String {
    format!("{id}{CONTENT_EXTENSION}")
}

fn work_name(batch_id: &str) -> String {
    format!("{batch_id}{WORK_EXTENSION}")
}
