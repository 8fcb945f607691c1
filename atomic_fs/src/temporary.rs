//! Files that are written under random names and renamed once they are complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::Path;

use crate::directory::Directory;

/// Permission bits of a file that only its owner may read.
pub const PRIVATE_MODE: u32 = 0o600;
/// Permission bits of a directory that only its owner may enter.
pub const PRIVATE_DIRECTORY_MODE: u32 = 0o700;
/// Permission bits of a file whose readers are determined by the umask.
pub const PUBLIC_MODE: u32 = 0o666;

/// Maximum number of random names tried before creating a file fails.
const MAX_TRIES: u32 = 64;

/// A new file under a random name, removed when dropped unless it was persisted.
#[derive(Debug)]
pub struct TemporaryFile<'a> {
    directory: &'a Directory,
    /// `None` after the file was persisted.
    name: Option<OsString>,
    file: File,
}

impl Directory {
    /// Creates a file whose name is `prefix`, random digits and `suffix`.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn temporary_file(
        &self,
        prefix: &str,
        suffix: &str,
        mode: u32,
    ) -> io::Result<TemporaryFile<'_>> {
        let (file, name) = with_unused_name(prefix, suffix, |name| self.create_new(name, mode))?;
        Ok(TemporaryFile { directory: self, name: Some(name), file })
    }

    /// Atomically replaces the file or link `name` by a new file that contains `bytes`, which are
    /// durable before they have the name.
    ///
    /// # Errors
    /// Fails if the file cannot be written; an earlier file is then unchanged.
    pub fn replace(&self, name: impl AsRef<OsStr>, bytes: &[u8], mode: u32) -> io::Result<()> {
        let temporary = self.temporary_file(".tmp-", "", mode)?;
        temporary.file().write_all(bytes)?;
        temporary.file().sync_data()?;
        temporary.persist(name)
    }
}

impl TemporaryFile<'_> {
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to `name`, atomically replacing a file or link of that name.
    ///
    /// # Errors
    /// Fails if the file cannot be renamed; it is then removed.
    pub fn persist(mut self, name: impl AsRef<OsStr>) -> io::Result<()> {
        if let Some(temporary) = &self.name {
            self.directory.rename(temporary, name)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Fails if the directory has been removed.
            let _ = self.directory.remove_file(name);
        }
    }
}

/// Atomically replaces the file or link at `path` by a new file that contains `bytes`.
///
/// # Errors
/// Fails if the file cannot be written; an earlier file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (directory, name) = Directory::open_parent(path)?;
    directory.replace(name, bytes, mode)
}

/// Calls `create` with random names until one is unused.
pub(crate) fn with_unused_name<T>(
    prefix: &str,
    suffix: &str,
    mut create: impl FnMut(&OsStr) -> io::Result<T>,
) -> io::Result<(T, OsString)> {
    // Keyed with random bytes from the system, so that names cannot be predicted.
    let random = RandomState::new();
    for number in 0..MAX_TRIES {
        let digits = random.hash_one((std::process::id(), number));
        let name = OsString::from(format!("{prefix}{digits:016x}{suffix}"));
        match create(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return Ok((created?, name)),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name for a temporary file is free"))
}
