//! An output that is a regular file: locked, durable, and sorted at the end.
//!
//! Invariants: the locked file is the one that the path names; appended lines survive if the file
//! is moved or removed while the job runs.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atomic_fs::{Directory, PRIVATE_MODE};
use rustix::fs::{FlockOperation, flock};

/// Maximum time to wait for another run to release the output: one that has just ended, or a
/// process that is about to execute another program, holds the lock for a moment longer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum length of a file name on Linux, in bytes.
const NAME_MAX_BYTES: usize = 255;

/// Error: the path of the temporary file for sorting is taken by a link, another user's file or
/// anything but a regular file.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is a link, belongs to another user or is not a regular file, but the answers are \
     sorted there", path.display()
)]
pub(super) struct ForeignTempFile {
    pub(super) path: PathBuf,
}

#[derive(Debug)]
pub(super) struct OutputFile {
    file: File,
    /// Current path of the file, which differs from `opened_at` if the file was moved.
    path: PathBuf,
    original_path: PathBuf,
    /// True if this run created the file and has not written to it.
    remove_if_unused: bool,
    /// Truncates the old content when the first new content is written (`--force`).
    truncate_first: bool,
}

impl OutputFile {
    /// Opens or creates a file and locks it; returns `None` if another run has locked it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened, or [`ForeignTempFile`] if its temporary file
    /// cannot be used.
    pub(super) fn open(path: &Path, truncate_first: bool) -> io::Result<Option<OutputFile>> {
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            let (file, created) = open_or_create(path)?;
            if !try_lock_until(&file, until) {
                return Ok(None);
            }
            // The previous holder of the lock may have replaced or removed the file.
            if is_file_at(&file, path)? {
                let regular = OutputFile::from_locked(file, path, created, truncate_first)?;
                // Checked early, so that it is reported before anything is computed.
                let (folder, name) = Directory::open_parent(&regular.path)?;
                regular.check_temp_file(&folder, &temp_file_name(name))?;
                if created {
                    // The name must survive a power cut, too; some file systems cannot do that.
                    let _ = folder.sync();
                }
                return Ok(Some(regular));
            }
        }
    }

    /// Wraps a locked file. If another run filled the file that this one created (`created`) before
    /// this one got the lock, the file is not removed.
    fn from_locked(
        file: File,
        path: &Path,
        created: bool,
        truncate_first: bool,
    ) -> io::Result<OutputFile> {
        let path = path.canonicalize()?;
        let remove_if_unused = created && file.metadata()?.len() == 0;
        Ok(OutputFile { original_path: path.clone(), path, file, remove_if_unused, truncate_first })
    }

    pub(super) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Returns the whole content.
    pub(super) fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut existing = Vec::new();
        self.file.read_to_end(&mut existing)?;
        Ok(existing)
    }

    /// Returns true if the file holds nothing of this job.
    pub(super) fn is_unwritten(&self) -> bool {
        self.truncate_first || self.remove_if_unused
    }

    /// Returns the current path of the file if it was moved since it was opened.
    pub(super) fn moved_to(&self) -> Option<String> {
        (self.path != self.original_path).then(|| self.path.display().to_string())
    }

    /// Writes lines after the first `start` bytes; they are durable on return.
    pub(super) fn append(&mut self, start: u64, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.truncate(start)?;
        self.relocate(start)?;
        self.file.seek(SeekFrom::Start(start))?;
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_all());
        if written.is_err() {
            // The next --resume would also truncate a partial line.
            let _ = self.file.set_len(start);
        }
        written
    }

    /// Reduces the first `len_bytes` bytes to exactly `lines`, in this order.
    pub(super) fn retain_lines(&mut self, lines: &[Range<u64>], len_bytes: u64) -> io::Result<()> {
        self.relocate(len_bytes)?;
        if is_in_order(lines, len_bytes) {
            self.truncate(len_bytes)?;
            // Checked after the last write: if the file is removed from now on, it was finished.
            return self.relocate(len_bytes);
        }
        let (path, kept) = (self.path.clone(), lines.to_vec());
        self.rewrite(&path, &kept)
    }

    /// Truncates the file to `len_bytes`; from now on it holds this job's lines.
    fn truncate(&mut self, len_bytes: u64) -> io::Result<()> {
        if self.truncate_first {
            self.file.set_len(0)?;
            self.truncate_first = false;
        }
        if self.file.metadata()?.len() != len_bytes {
            self.file.set_len(len_bytes)?;
        }
        self.remove_if_unused = false;
        Ok(())
    }

    /// Follows a file that was moved. A file that was removed is created again from its open
    /// descriptor: at its path, or with an added `.kept` if another file is there now.
    fn relocate(&mut self, len_bytes: u64) -> io::Result<()> {
        if is_file_at(&self.file, &self.path)? {
            return Ok(());
        }
        if self.file.metadata()?.nlink() > 0 {
            let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            self.path = std::fs::read_link(link)?;
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut unused_path = self.path.clone();
        while unused_path.symlink_metadata().is_ok() {
            unused_path.as_mut_os_string().push(".kept");
        }
        self.rewrite(&unused_path, std::slice::from_ref(&(0..len_bytes)))?;
        self.path = unused_path;
        Ok(())
    }

    /// Writes these lines to a new file, locked like the current one, and renames it to `path`.
    fn rewrite(&mut self, path: &Path, lines: &[Range<u64>]) -> io::Result<()> {
        let (folder, name) = Directory::open_parent(path)?;
        let temp_name = temp_file_name(name);
        if self.check_temp_file(&folder, &temp_name)? {
            folder.remove_file(&temp_name)?;
        }
        let file = folder.create_new(&temp_name, PRIVATE_MODE)?;
        let result = self.write_lines(&file, lines).and_then(|()| folder.rename(&temp_name, name));
        if result.is_err() {
            let _ = folder.remove_file(&temp_name);
        }
        result?;
        let _ = folder.sync();
        self.file = file;
        Ok(())
    }

    /// Returns true if a killed run left its temporary file.
    ///
    /// # Errors
    /// Returns [`ForeignTempFile`] if the file is not this user's regular file.
    fn check_temp_file(&self, folder: &Directory, temp_name: &OsStr) -> io::Result<bool> {
        let Some(entry) = folder.entry(temp_name)? else { return Ok(false) };
        // On a network file system the files of this process may have another owner than the
        // process; the output shows which.
        let trusted_owners = [rustix::process::geteuid().as_raw(), self.file.metadata()?.uid()];
        if entry.is_file && trusted_owners.contains(&entry.owner) {
            return Ok(true);
        }
        let path = self.path.with_file_name(temp_name);
        Err(io::Error::other(ForeignTempFile { path }))
    }

    fn write_lines(&self, file: &File, lines: &[Range<u64>]) -> io::Result<()> {
        // No other process knows this file yet; a file system without locks must not fail the job.
        let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        file.set_permissions(self.file.metadata()?.permissions())?;
        let mut out = io::BufWriter::new(file);
        let mut line = Vec::new();
        for range in lines {
            line.resize((range.end - range.start) as usize, 0);
            self.file.read_exact_at(&mut line, range.start)?;
            out.write_all(&line)?;
        }
        out.flush()?;
        drop(out);
        file.sync_all()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.remove_if_unused && is_file_at(&self.file, &self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens or creates the file at `path`; returns true with it if it was created.
fn open_or_create(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        // A dangling link exists too: it is followed, and its target is created.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok((options.create(true).open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

/// Locks the file; returns false if another run still holds the lock at `until`.
fn try_lock_until(file: &File, until: Instant) -> bool {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return false,
            // A file system without locks must not fail the job.
            _ => return true,
        }
    }
}

/// Returns true if `path` names this very file.
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    let own_metadata = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (own_metadata.dev(), own_metadata.ino())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn is_in_order(lines: &[Range<u64>], len_bytes: u64) -> bool {
    let mut end = 0;
    for line in lines {
        if line.start != end {
            return false;
        }
        end = line.end;
    }
    end == len_bytes
}

/// Returns the name of the temporary file: `.out.jsonl.settling` for `out.jsonl`, in the same
/// directory so that the rename is atomic. A leftover of a killed run is removed first. If that
/// name is too long, it is built from the process ID instead.
fn temp_file_name(name: &OsStr) -> OsString {
    let settling = format!(".{}.settling", name.to_string_lossy());
    if settling.len() <= NAME_MAX_BYTES {
        return settling.into();
    }
    format!(".{}.settling", std::process::id()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_run_filled_is_not_removed_by_the_one_that_made_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.jsonl");
        for (content, resident) in [("", false), ("an answer of the other run\n", true)] {
            std::fs::write(&path, content).expect("writable");
            let file = File::options().read(true).write(true).open(&path).expect("there");
            drop(OutputFile::from_locked(file, &path, true, false).expect("opened"));
            assert_eq!(path.exists(), resident, "{content}");
        }
    }
}
