//! The files of a store, and those that only look like it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::name::Name;
use crate::origin::is_folder;

const PAGE: &str = ".kv";
const TEMPORARY: &str = ".tmp";
/// What an origin is, for people.
pub(crate) const ORIGIN: &str = "origin.json";

/// A page on the drive.
#[derive(Debug, Clone)]
pub(crate) struct PageFile {
    pub name: Name,
    pub path: PathBuf,
    pub size_bytes: u64,
    pub used: SystemTime,
}

/// Where a page of a folder is.
pub(crate) fn page_path(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{name}{PAGE}"))
}

/// Where this process writes it first: nobody else does, nor a process of this number in another
/// container.
pub(crate) fn temporary_path(folder: &Path, name: &Name) -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (process, now_ns) = (std::process::id(), now.as_nanos());
    folder.join(format!("{name}{PAGE}.{process}-{now_ns}{TEMPORARY}"))
}

/// Opens a file of a store for reading. What is no regular file, such as a pipe that nobody writes
/// to, is refused at once and not waited for.
///
/// # Errors
/// What the system says, or `InvalidInput` for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}

/// The folders of origins in a store.
pub(crate) fn folders(store: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(store)? {
        let entry = entry?;
        let is_own = entry.file_name().to_str().is_some_and(is_folder);
        if is_own && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// The pages of a folder. One that is removed meanwhile is left out, and so is a folder.
pub(crate) fn pages(folder: &Path) -> io::Result<Vec<PageFile>> {
    let mut pages = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pages),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        let name = file_name.to_str().and_then(|name| name.strip_suffix(PAGE)?.parse().ok());
        let (Some(name), Ok(metadata)) = (name, entry.metadata()) else { continue };
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        pages.push(PageFile { name, path: entry.path(), size_bytes: metadata.len(), used });
    }
    Ok(pages)
}

/// Removes what writers left in a folder that did not come to their end: nobody has it locked.
pub(crate) fn remove_torn(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_temporary = |name: &str| name.ends_with(TEMPORARY) && name.contains(".kv.");
    for entry in
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_temporary))
    {
        let Ok(file) = open_regular(&entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Whoever removed it first has done the same.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
