//! A run's view of a store: the pages of one origin, and a maximum size over all origins.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::error::{PageWriteError, PromptCacheOpenError, RejectedPage};
use crate::files::{list_folders, open_regular, page_path, remove_temporary_files};
use crate::page::{PageKey, PageMemory};
use crate::page_hash::PageHash;
use crate::page_origin::PageOrigin;
use crate::page_reader::{self, ReadFailure};
use crate::page_writer;
use crate::size_limit::SizeLimit;

/// Result of writing a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Written, with the size of the file in bytes.
    Written(u64),
    /// The page existed already.
    AlreadyPresent,
}

/// Pages of one origin, in a folder that all origins share.
#[derive(Debug)]
pub struct PageStore {
    directory: PathBuf,
    folder: PathBuf,
    origin: PageOrigin,
    fingerprint: [u8; 32],
    size_limit: SizeLimit,
}

impl PageStore {
    /// Opens or creates a store with a maximum size of `max_bytes` over all origins, and removes
    /// incomplete files of earlier writers.
    ///
    /// # Errors
    /// Fails if the folder cannot be created or written.
    pub fn open(
        directory: &Path,
        origin: PageOrigin,
        max_bytes: Option<u64>,
    ) -> Result<PageStore, PromptCacheOpenError> {
        let folder = directory.join(origin.folder());
        let failed = |source| PromptCacheOpenError { path: directory.to_path_buf(), source };
        private_folder(directory, &origin).map_err(failed)?;
        list_folders(directory)
            .map_err(failed)?
            .iter()
            .for_each(|folder| remove_temporary_files(folder));
        Ok(PageStore {
            directory: directory.to_path_buf(),
            folder,
            fingerprint: origin.fingerprint(),
            origin,
            size_limit: SizeLimit::new(max_bytes),
        })
    }

    /// Returns the predecessor of a prompt's first page. `kind` is anything besides the tokens that
    /// the pages of this prompt depend on.
    pub fn root_hash(&self, kind: &[u8]) -> PageHash {
        PageHash::from_origin(self.fingerprint, kind)
    }

    /// Returns true if the page exists.
    pub fn contains(&self, name: &PageHash) -> bool {
        page_path(&self.folder, name).exists()
    }

    /// Marks a page as used now. The time is earlier by a microsecond for each of the `index` pages
    /// before it, so that the end of a prompt is removed before its start. Returns false if the
    /// page does not exist. The time of another user's page is not changed.
    pub fn touch(&self, name: &PageHash, index: u32) -> bool {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let at = since.saturating_sub(Duration::from_micros(index.into()));
        let at = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let times = Timestamps { last_access: at, last_modification: at };
        let path = page_path(&self.folder, name);
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).is_ok() || path.exists()
    }

    /// Reads a page into its runs and returns their size; `None` if the page does not exist or its
    /// memory was withdrawn.
    ///
    /// # Errors
    /// Fails if the page was refused; the file is then removed, and the content of the runs is
    /// undefined.
    pub fn read(
        &self,
        page: &PageKey<'_>,
        memory: &mut dyn PageMemory,
    ) -> Result<Option<u64>, RejectedPage> {
        let path = page_path(&self.folder, &page.name);
        let file = match open_regular(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                if error.kind() == io::ErrorKind::Other {
                    // Removed so that it can be written again, as below. A folder stays.
                    let _ = std::fs::remove_file(&path);
                }
                return Err(RejectedPage { path, reason: error.to_string() });
            }
        };
        match page_reader::read_page(&file, (&self.fingerprint, page), memory) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(ReadFailure::Withdrawn) => Ok(None),
            Err(ReadFailure::Invalid(reason)) => {
                // The page is written again when it is next computed.
                let _ = std::fs::remove_file(&path);
                Err(RejectedPage { path, reason })
            }
        }
    }

    /// Starts reading a page into the page cache.
    pub fn prefetch(&self, name: &PageHash) {
        if let Ok(file) = open_regular(&page_path(&self.folder, name)) {
            // Only a hint: without it, reading waits for the drive.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
    }

    /// Writes a page of these runs unless it exists.
    ///
    /// # Errors
    /// Fails if the page cannot be written; the least recently used pages may have been removed
    /// even so.
    pub fn write(
        &mut self,
        page: &PageKey<'_>,
        memory: &mut dyn PageMemory,
    ) -> Result<WriteOutcome, PageWriteError> {
        if self.touch(&page.name, page.index) {
            return Ok(WriteOutcome::AlreadyPresent);
        }
        let failed = |source| PageWriteError::Io { path: self.directory.clone(), source };
        let header = page_writer::build_header(&self.fingerprint, page, memory).map_err(failed)?;
        let size_bytes = header.fixed.body_offset() + header.sizes_bytes.iter().sum::<u64>();
        self.size_limit.reserve(&self.directory, size_bytes)?;
        // Created again, since another process may have removed the folder with its last pages.
        let folder = private_folder(&self.directory, &self.origin).map_err(failed)?;
        page_writer::write_origin(&folder, &self.origin).map_err(failed)?;
        page_writer::write_page(&folder, &header, memory).map_err(failed)?;
        self.touch(&page.name, page.index);
        Ok(WriteOutcome::Written(size_bytes))
    }
}

/// Opens the folder of an origin, and creates what is missing with permissions for this user only.
/// Removes the permissions of other users from an existing folder, as created by earlier versions,
/// if this user owns it.
fn private_folder(directory: &Path, origin: &PageOrigin) -> io::Result<Directory> {
    let store = Directory::create(directory, PRIVATE_DIRECTORY_MODE)?;
    let folder = store.subdirectory(origin.folder(), PRIVATE_DIRECTORY_MODE)?;
    if folder.mode()? & !PRIVATE_DIRECTORY_MODE & 0o777 != 0 {
        // The folder of another user stays as it is.
        let _ = folder.set_mode(PRIVATE_DIRECTORY_MODE);
    }
    Ok(folder)
}
