//! A store as a run sees it: the pages of one origin, and a bound over all.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::bound::Bound;
use crate::error::{OpenError, Refused, WriteError};
use crate::files::{folders, open_regular, page_path, remove_torn};
use crate::name::Name;
use crate::origin::Origin;
use crate::page::{Page, PageMemory};
use crate::read::{self, Unread};
use crate::write;

/// What became of a page that was to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrote {
    /// So many bytes.
    Bytes(u64),
    /// It is there already.
    Present,
}

/// Pages of one origin in a folder that all have in common.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    folder: PathBuf,
    origin: Origin,
    fingerprint: [u8; 32],
    bound: Bound,
}

impl Store {
    /// Opens or makes a store, which may have so many bytes in all, and removes what writers left
    /// torn.
    ///
    /// # Errors
    /// A folder that cannot be made or written.
    pub fn open(
        directory: &Path,
        origin: Origin,
        most_bytes: Option<u64>,
    ) -> Result<Store, OpenError> {
        let folder = directory.join(origin.folder());
        let failed = |source| OpenError { path: directory.to_path_buf(), source };
        private_folder(directory, &origin).map_err(failed)?;
        folders(directory).map_err(failed)?.iter().for_each(|folder| remove_torn(folder));
        Ok(Store {
            directory: directory.to_path_buf(),
            folder,
            fingerprint: origin.fingerprint(),
            origin,
            bound: Bound::new(most_bytes),
        })
    }

    /// What the first page of a prompt is behind, of which more than its tokens decides.
    pub fn first(&self, kind: &[u8]) -> Name {
        Name::of_origin(self.fingerprint, kind)
    }

    /// Whether a page is there.
    pub fn has(&self, name: &Name) -> bool {
        page_path(&self.folder, name).exists()
    }

    /// Says that a page is used, one behind so many others, which count as used later; false: it is
    /// not there. One that is another user's stays as it is.
    pub fn touch(&self, name: &Name, index: u32) -> bool {
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

    /// Reads a page into its runs; `None`: it is not there, or its memory was withdrawn.
    ///
    /// # Errors
    /// A page that was not used and is removed. Its runs may hold anything then.
    pub fn read(
        &self,
        page: &Page<'_>,
        memory: &mut dyn PageMemory,
    ) -> Result<Option<u64>, Refused> {
        let path = page_path(&self.folder, &page.name);
        let file = match open_regular(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidInput || path.is_symlink() {
                    // As below. A folder stays.
                    let _ = std::fs::remove_file(&path);
                }
                return Err(Refused { path, reason: error.to_string() });
            }
        };
        match read::page(&file, (&self.fingerprint, page), memory) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Unread::Withdrawn) => Ok(None),
            Err(Unread::Wrong(reason)) => {
                // Whoever computes it writes it again.
                let _ = std::fs::remove_file(&path);
                Err(Refused { path, reason })
            }
        }
    }

    /// Lets the system read a page ahead.
    pub fn prefetch(&self, name: &Name) {
        if let Ok(file) = open_regular(&page_path(&self.folder, name)) {
            // Where it does not, reading waits.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
    }

    /// Writes a page of these runs, if it is not there.
    ///
    /// # Errors
    /// Why it was not; the longest unused pages may have been removed all the same.
    pub fn write(
        &mut self,
        page: &Page<'_>,
        memory: &mut dyn PageMemory,
    ) -> Result<Wrote, WriteError> {
        if self.touch(&page.name, page.index) {
            return Ok(Wrote::Present);
        }
        let failed = |source| WriteError::Io { path: self.directory.clone(), source };
        let header = write::header(&self.fingerprint, page, memory).map_err(failed)?;
        let size_bytes = header.head.body_offset() + header.sizes_bytes.iter().sum::<u64>();
        self.bound.admit(&self.directory, size_bytes)?;
        // Whoever removed all pages has removed the folder too.
        let folder = private_folder(&self.directory, &self.origin).map_err(failed)?;
        write::origin(&folder, &self.origin).map_err(failed)?;
        write::page(&folder, &header, memory).map_err(failed)?;
        self.touch(&page.name, page.index);
        Ok(Wrote::Bytes(size_bytes))
    }
}

/// Opens the folder of an origin, and creates what is missing, for this user alone. A folder that
/// others may enter, as earlier versions made it, is closed to them if it is this user's.
fn private_folder(directory: &Path, origin: &Origin) -> io::Result<Directory> {
    let store = Directory::create(directory, PRIVATE_DIRECTORY_MODE)?;
    let folder = store.subdirectory(origin.folder(), PRIVATE_DIRECTORY_MODE)?;
    if folder.mode()? & !PRIVATE_DIRECTORY_MODE & 0o777 != 0 {
        // Another user's stays as it is.
        let _ = folder.set_mode(PRIVATE_DIRECTORY_MODE);
    }
    Ok(folder)
}
