//! The files of a store, and the handling of entries that are not regular files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use atomic_fs::Directory;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::page_hash::PageHash;
use crate::page_origin::is_origin_folder;

const PAGE_EXTENSION: &str = ".kv";
pub(crate) const TEMPORARY_EXTENSION: &str = ".tmp";
/// Name of the file that describes an origin for people.
pub(crate) const ORIGIN_FILE: &str = "origin.json";

/// File of a page.
#[derive(Debug, Clone)]
pub(crate) struct PageFile {
    pub name: PageHash,
    pub path: PathBuf,
    pub size_bytes: u64,
    pub last_used: SystemTime,
}

/// Returns the path of a page in a folder.
pub(crate) fn page_path(folder: &Path, name: &PageHash) -> PathBuf {
    folder.join(page_file(name))
}

/// Returns the name of a page's file.
pub(crate) fn page_file(name: &PageHash) -> String {
    format!("{name}{PAGE_EXTENSION}")
}

/// Returns the prefix of the temporary name under which this process writes a page; random digits
/// follow.
pub(crate) fn temporary_prefix(name: &PageHash) -> String {
    format!("{name}{PAGE_EXTENSION}.{}-", std::process::id())
}

/// Opens a file of a store for reading. Anything but a regular file, such as a link or a pipe
/// without a writer, is refused at once instead of waited for.
///
/// # Errors
/// Returns the system's error, or one of the kind `Other` for anything but a regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let (folder, name) = Directory::open_parent(path)?;
    folder.open_file(name, OFlags::RDONLY, 0)
}

/// Returns the folders of all origins of a store.
pub(crate) fn list_folders(store: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(store)? {
        let entry = entry?;
        let is_own = entry.file_name().to_str().is_some_and(is_origin_folder);
        if is_own && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// Returns the pages of a folder. Skips folders, and pages that are removed meanwhile.
pub(crate) fn list_pages(folder: &Path) -> io::Result<Vec<PageFile>> {
    let mut pages = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pages),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file_name = entry.file_name();
        let name =
            file_name.to_str().and_then(|name| name.strip_suffix(PAGE_EXTENSION)?.parse().ok());
        let (Some(name), Ok(metadata)) = (name, entry.metadata()) else { continue };
        let last_used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        pages.push(PageFile { name, path: entry.path(), size_bytes: metadata.len(), last_used });
    }
    Ok(pages)
}

/// Removes files of writers that did not finish: temporary files that no process has locked.
pub(crate) fn remove_temporary_files(folder: &Path) {
    let (Ok(entries), Ok(directory)) = (std::fs::read_dir(folder), Directory::open(folder)) else {
        return;
    };
    let is_temporary = |name: &str| name.ends_with(TEMPORARY_EXTENSION) && name.contains(".kv.");
    for name in entries.flatten().map(|entry| entry.file_name()) {
        if !name.to_str().is_some_and(is_temporary) {
            continue;
        }
        let Ok(file) = directory.open_file(&name, OFlags::RDONLY, 0) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Another process may have removed it first.
            let _ = directory.remove_file(&name);
        }
    }
}
