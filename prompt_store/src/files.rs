//! The files of a store, and those that only look like it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use atomic_fs::Directory;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::name::Name;
use crate::origin::is_folder;

const PAGE: &str = ".kv";
pub(crate) const TEMPORARY: &str = ".tmp";
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
    folder.join(page_file(name))
}

/// The name of a page's file.
pub(crate) fn page_file(name: &Name) -> String {
    format!("{name}{PAGE}")
}

/// How the name begins under which this process writes a page first; random digits follow.
pub(crate) fn temporary_prefix(name: &Name) -> String {
    format!("{name}{PAGE}.{}-", std::process::id())
}

/// Opens a file of a store for reading. What is no regular file, such as a link or a pipe that
/// nobody writes to, is refused at once and not waited for.
///
/// # Errors
/// What the system says, or `InvalidInput` for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
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
    let (Ok(entries), Ok(directory)) = (std::fs::read_dir(folder), Directory::open(folder)) else {
        return;
    };
    let is_temporary = |name: &str| name.ends_with(TEMPORARY) && name.contains(".kv.");
    for name in entries.flatten().map(|entry| entry.file_name()) {
        if !name.to_str().is_some_and(is_temporary) {
            continue;
        }
        let Ok(file) = directory.open_file(&name, OFlags::RDONLY | OFlags::NONBLOCK, 0) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Whoever removed it first has done the same.
            let _ = directory.remove_file(&name);
        }
    }
}
