//! An open directory, and operations in it that never follow a link.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Maximum length of a file name on Linux.
const MAX_NAME_BYTES: usize = 255;

/// An open directory. Its descriptor stays valid if the directory is renamed or replaced.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
}

/// Metadata of a directory entry. For a link, those of the link itself and not of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryMetadata {
    pub is_file: bool,
    pub is_link: bool,
    /// User ID of the owner.
    pub owner: u32,
    pub size_bytes: u64,
}

impl Directory {
    /// Opens the directory at `path`. Links in `path` are followed: the caller vouches for it.
    ///
    /// # Errors
    /// Fails if the path does not exist, is not a directory, or may not be searched.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Directory::open_at(CWD, path.as_os_str(), OFlags::empty())
    }

    /// Opens the directory at `path` and creates missing components with permission bits `mode`,
    /// subject to the umask.
    ///
    /// # Errors
    /// Fails like [`Directory::open`], or if a directory cannot be created.
    pub fn create(path: &Path, mode: u32) -> io::Result<Directory> {
        if !path.as_os_str().is_empty() {
            DirBuilder::new().recursive(true).mode(mode).create(path)?;
        }
        Directory::open(path)
    }

    /// Opens the directory that contains the file at `path`, and returns the file's name.
    ///
    /// # Errors
    /// Fails like [`Directory::open`], or if the path does not end in a name.
    pub fn open_parent(path: &Path) -> io::Result<(Directory, &OsStr)> {
        let name = path.file_name().ok_or_else(|| invalid_name(path.as_os_str()))?;
        Ok((Directory::open(path.parent().unwrap_or_else(|| Path::new("")))?, name))
    }

    fn open_at(at: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<Directory> {
        // O_PATH: a directory need not be readable to create files in it.
        let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory { fd: rustix::fs::openat(at, name, flags, Mode::empty())? })
    }

    /// Opens a subdirectory.
    ///
    /// # Errors
    /// Fails if there is none, or if the entry is a link or a file.
    pub fn open_subdirectory(&self, name: impl AsRef<OsStr>) -> io::Result<Directory> {
        let name = check_name(name.as_ref())?;
        let opened = Directory::open_at(&self.fd, name, OFlags::NOFOLLOW);
        opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOTDIR | Errno::LOOP) => {
                io::Error::other(format!("{} is a link or a file, not a folder", name.display()))
            }
            _ => error,
        })
    }

    /// Opens a subdirectory, creating it if it is missing.
    ///
    /// # Errors
    /// Fails if the entry is a link or a file, or if the directory cannot be created.
    pub fn subdirectory(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Directory> {
        let name = check_name(name.as_ref())?;
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.open_subdirectory(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file with `flags`; never a link, a device or a pipe.
    ///
    /// # Errors
    /// Returns the system's error, or one of the kind `Other` for a link and for anything else
    /// that is not a regular file.
    pub fn open_file(&self, name: impl AsRef<OsStr>, flags: OFlags, mode: u32) -> io::Result<File> {
        let name = check_name(name.as_ref())?;
        // O_NONBLOCK: opening a pipe must not wait for its other end. Regular files ignore it.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode)) {
            Err(Errno::LOOP) => {
                return Err(io::Error::other(format!("{} is a link", name.display())));
            }
            file => File::from(file?),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a regular file", name.display())));
        }
        Ok(file)
    }

    /// Creates a file that does not exist yet, for reading and writing.
    ///
    /// # Errors
    /// Fails if an entry of that name exists, even a dangling link, or if the file cannot be
    /// created.
    pub fn create_new(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
    }

    /// Returns the metadata of an entry; `None` if there is none.
    ///
    /// # Errors
    /// Returns any other error of the file system.
    pub fn entry(&self, name: impl AsRef<OsStr>) -> io::Result<Option<EntryMetadata>> {
        let name = check_name(name.as_ref())?;
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(Some(EntryMetadata {
            is_file: kind == FileType::RegularFile,
            is_link: kind == FileType::Symlink,
            owner: stat.st_uid,
            size_bytes: stat.st_size.try_into().unwrap_or(0),
        }))
    }

    /// Returns the target of a link.
    ///
    /// # Errors
    /// Fails if the entry is missing or is not a link.
    pub fn read_link(&self, name: impl AsRef<OsStr>) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.fd, check_name(name.as_ref())?, Vec::new())?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
    }

    /// Creates a link to `target`, atomically replacing a file or link of that name.
    ///
    /// # Errors
    /// Fails if the link cannot be created, or if a directory has this name.
    pub fn replace_link(&self, target: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = check_name(name.as_ref())?;
        let temporary = crate::temporary::with_unused_name(".link-", "", |temporary| {
            Ok(rustix::fs::symlinkat(target, &self.fd, temporary)?)
        });
        let ((), temporary) = temporary?;
        let renamed = self.rename(&temporary, name);
        if renamed.is_err() {
            let _ = self.remove_file(&temporary);
        }
        renamed
    }

    /// Renames an entry, atomically replacing a file or link of the new name.
    ///
    /// # Errors
    /// Fails if the entry is missing, or if a directory has the new name.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (check_name(from.as_ref())?, check_name(to.as_ref())?);
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Removes a file or a link.
    ///
    /// # Errors
    /// Fails if the entry is missing, is a directory, or may not be removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, check_name(name.as_ref())?, AtFlags::empty())?)
    }

    /// Sets the directory's permission bits.
    ///
    /// # Errors
    /// Fails if the directory belongs to another user.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::chmodat(&self.fd, ".", mode, AtFlags::empty())?)
    }

    /// Returns the directory's permission bits.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn mode(&self) -> io::Result<u32> {
        Ok(Mode::from_raw_mode(rustix::fs::fstat(&self.fd)?.st_mode).bits())
    }

    /// Makes created and replaced names durable.
    ///
    /// # Errors
    /// Fails on file systems that cannot sync a directory.
    pub fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        Ok(rustix::fs::fsync(readable)?)
    }

    /// Returns the number of bytes that this user may still write to the directory's file system.
    ///
    /// # Errors
    /// Returns any error of the file system.
    pub fn available_bytes(&self) -> io::Result<u64> {
        let drive = rustix::fs::fstatvfs(&self.fd)?;
        Ok(drive.f_bavail.saturating_mul(drive.f_frsize))
    }
}

/// Returns an error unless `name` is a single component of a path.
fn check_name(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_bytes();
    let is_name = !matches!(bytes, b"" | b"." | b"..")
        && bytes.len() <= MAX_NAME_BYTES
        && !bytes.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_name { Ok(name) } else { Err(invalid_name(name)) }
}

fn invalid_name(name: &OsStr) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{:?} is not the name of a file", name))
}
