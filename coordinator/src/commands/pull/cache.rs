//! A repository's folder in the Hugging Face cache, with the layout that other programs share:
//! `blobs/HASH` are contents, `snapshots/COMMIT/PATH` are links to them, and `refs/REVISION`
//! contains the name of a commit. All accesses are relative to descriptors, so that no link leads
//! out of the folder.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use atomic_fs::{Directory, PUBLIC_MODE};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::names::{Hash, is_path};

/// Permission bits of folders before the umask.
const FOLDER_MODE: u32 = 0o777;

/// Folder of a repository in the cache; see the module's documentation.
pub(super) struct Repository {
    path: PathBuf,
    folder: Directory,
    blobs: Directory,
}

impl Repository {
    /// Opens the folder of `org/name` in a cache, and creates it if necessary.
    ///
    /// # Errors
    /// A folder that cannot be created, or a link in its place.
    pub(super) fn open(cache: &Path, name: &str) -> io::Result<Repository> {
        let folder_name = format!("models--{}", name.replace('/', "--"));
        let folder = Directory::create(cache, FOLDER_MODE)?;
        let folder = folder.subdirectory(&folder_name, FOLDER_MODE)?;
        let blobs = folder.subdirectory("blobs", FOLDER_MODE)?;
        Ok(Repository { path: cache.join(folder_name), folder, blobs })
    }

    /// Returns the path of the repository in the cache.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of free bytes in the file system.
    pub(super) fn available_bytes(&self) -> io::Result<u64> {
        self.folder.available_bytes()
    }

    /// Returns the path of the snapshot of a commit.
    pub(super) fn snapshot(&self, commit: &Hash) -> PathBuf {
        self.path.join("snapshots").join(commit.as_str())
    }

    /// Returns true if a file of a commit exists, as a regular file or a link to a blob.
    pub(super) fn has(&self, commit: &Hash, path: &str) -> bool {
        let found = || -> io::Result<bool> {
            let mut folder =
                self.folder.open_subdirectory("snapshots")?.open_subdirectory(commit.as_str())?;
            let (folders, name) = split(path)?;
            for part in folders {
                folder = folder.open_subdirectory(part)?;
            }
            let Some(entry) = folder.entry(name)? else { return Ok(false) };
            if !entry.is_link {
                return Ok(entry.is_file);
            }
            let target = folder.read_link(name)?;
            let blob = target.file_name().and_then(|name| Hash::parse(name.to_str()?));
            let Some(blob) = blob.filter(|blob| target == link_target(path, blob)) else {
                return Ok(false);
            };
            Ok(self.blobs.entry(blob.as_str())?.is_some_and(|entry| entry.is_file))
        };
        found().unwrap_or(false)
    }

    /// Links a file of a commit to its blob.
    ///
    /// # Errors
    /// A folder or link that cannot be created.
    pub(super) fn link(&self, commit: &Hash, path: &str, blob: &Hash) -> io::Result<()> {
        let mut folder = self
            .folder
            .subdirectory("snapshots", FOLDER_MODE)?
            .subdirectory(commit.as_str(), FOLDER_MODE)?;
        let (folders, name) = split(path)?;
        for part in folders {
            folder = folder.subdirectory(part, FOLDER_MODE)?;
        }
        folder.replace_link(&link_target(path, blob), name)
    }

    /// Records the commit of a branch or tag.
    ///
    /// # Errors
    /// A revision that is not a path, or a file that cannot be written.
    pub(super) fn set_revision(&self, revision: &str, commit: &Hash) -> io::Result<()> {
        if revision == commit.as_str() {
            return Ok(());
        }
        let mut folder = self.folder.subdirectory("refs", FOLDER_MODE)?;
        let (folders, name) = split(revision)?;
        for part in folders {
            folder = folder.subdirectory(part, FOLDER_MODE)?;
        }
        folder.replace(name, commit.as_str().as_bytes(), PUBLIC_MODE)
    }

    /// Opens a complete blob; returns `None` if there is none.
    ///
    /// # Errors
    /// A link or another thing in its place, or a file that cannot be read.
    pub(super) fn blob(&self, hash: &Hash) -> io::Result<Option<File>> {
        match self.blobs.open_file(hash.as_str(), OFlags::RDONLY, 0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the number of bytes of a blob that an earlier run fetched.
    pub(super) fn part_bytes(&self, hash: &Hash) -> u64 {
        let entry = self.blobs.entry(part_name(hash)).ok().flatten();
        entry.filter(|entry| entry.is_file).map_or(0, |entry| entry.size_bytes)
    }

    /// Opens and locks the partial file of a blob; returns `None` while another process fetches it.
    ///
    /// # Errors
    /// A link or another thing in its place, or a file that cannot be written.
    pub(super) fn part(&self, hash: &Hash) -> io::Result<Option<Part<'_>>> {
        loop {
            let name = part_name(hash);
            let file = self.blobs.open_file(&name, OFlags::RDWR | OFlags::CREATE, PUBLIC_MODE)?;
            // Other errors come from file systems without locks and are no reason to fail.
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            if locked == Err(rustix::io::Errno::WOULDBLOCK) {
                return Ok(None);
            }
            // The previous holder of the lock may have finished the blob: then the name is free, or
            // names another file.
            let is_named = self
                .blobs
                .open_file(&name, OFlags::RDONLY, 0)
                .is_ok_and(|named| same_file(&named, &file).unwrap_or(false));
            if !is_named {
                continue;
            }
            let links =
                file.metadata().map(|metadata| std::os::unix::fs::MetadataExt::nlink(&metadata))?;
            if links != 1 {
                let path = self.path.join("blobs").join(&name);
                let sentence = format!("{} has other hard links; remove it", path.display());
                return Err(io::Error::other(sentence));
            }
            return Ok(Some(Part { blobs: &self.blobs, hash: hash.clone(), file }));
        }
    }
}

/// Partial file of a blob that is being fetched.
pub(super) struct Part<'a> {
    blobs: &'a Directory,
    hash: Hash,
    file: File,
}

impl Part<'_> {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Renames the file to the blob's name, after all of it was written to the drive.
    pub(super) fn finish(self) -> io::Result<()> {
        self.file.sync_data()?;
        self.blobs.rename(part_name(&self.hash), self.hash.as_str())
    }

    pub(super) fn remove(self) -> io::Result<()> {
        self.blobs.remove_file(part_name(&self.hash))
    }
}

fn part_name(hash: &Hash) -> String {
    format!("{hash}.part")
}

fn same_file(a: &File, b: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Splits a path into its folders and its name.
fn split(path: &str) -> io::Result<(Vec<&str>, &str)> {
    if !is_path(path) {
        let sentence = format!("{path:?} is not a path below a folder");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    let name = parts.pop().unwrap_or_default();
    Ok((parts, name))
}

/// Returns the target of a link at `path` in a commit's folder.
fn link_target(path: &str, blob: &Hash) -> PathBuf {
    let up = "../".repeat(2 + path.matches('/').count());
    PathBuf::from(format!("{up}blobs/{blob}"))
}
