//! Where the lines go: a file that survives anything, or a stream.
//!
//! A file is a log while the job runs: lines are only ever appended, as they are finished, and fsynced.
//! [`Sink::settle`] brings them into input order at the end, through a temporary file and a rename, so
//! that there is no instant at which an answer exists in neither. A write that fails is taken back to
//! the end of the one before.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::error::JobError;

/// What to do with an output that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Refuse it.
    New,
    /// Go on where it ends.
    Resume,
    /// Overwrite it, when the first answers are there.
    Overwrite,
}

/// Stdin or stdout (`-`), or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Standard,
    File(PathBuf),
}

/// An open output.
#[derive(Debug)]
pub struct Sink {
    to: To,
    name: String,
    /// Bytes of whole writes; whatever lies behind is taken back.
    good_bytes: u64,
}

#[derive(Debug)]
enum To {
    Stdout,
    /// A pipe, terminal or device by name: no offsets, no fsync.
    Stream(File),
    Regular(Regular),
}

#[derive(Debug)]
struct Regular {
    file: File,
    path: PathBuf,
    /// We made the file and nothing is in it yet.
    remove_if_unused: bool,
    /// `--force`: the old content goes when the first new content comes.
    truncate_first: bool,
}

impl Sink {
    /// Opens the output and, to resume it, reads what it holds. `input` is the input's metadata if
    /// it is a file, to notice that both are the same.
    ///
    /// # Errors
    /// An output that exists (`New`), is the input, is in use, is no file (`Resume`) or cannot be
    /// opened.
    pub fn open(
        place: &Place,
        mode: OutputMode,
        input: Option<&std::fs::Metadata>,
    ) -> Result<(Sink, Vec<u8>), JobError> {
        let Place::File(path) = place else {
            let sink = Sink { to: To::Stdout, name: "stdout".to_owned(), good_bytes: 0 };
            return Ok((sink, Vec::new()));
        };
        let name = path.display().to_string();
        let existed = path.symlink_metadata().is_ok();
        let metadata = path.metadata().ok();
        if let (Some(a), Some(b)) = (input, &metadata)
            && (a.dev(), a.ino()) == (b.dev(), b.ino())
            && b.is_file()
        {
            return Err(JobError::SameFile { path: name });
        }
        if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(JobError::OutputFolder { path: name });
        }
        let is_stream = metadata.as_ref().is_some_and(|m| !m.is_file());
        if existed && !is_stream && mode == OutputMode::New {
            return Err(JobError::OutputExists { path: name });
        }
        if is_stream && mode == OutputMode::Resume {
            return Err(JobError::ResumeStream { path: name });
        }
        let open_error = |source| JobError::OutputOpen { path: name.clone(), source };
        let mut file = OpenOptions::new()
            .write(true)
            .read(!is_stream)
            .create(!is_stream)
            .truncate(false)
            .open(path)
            .map_err(open_error)?;
        if is_stream {
            return Ok((Sink { to: To::Stream(file), name, good_bytes: 0 }, Vec::new()));
        }
        if is_busy(&file) {
            return Err(JobError::OutputBusy { path: name });
        }
        let mut existing = Vec::new();
        if mode == OutputMode::Resume {
            file.read_to_end(&mut existing).map_err(open_error)?;
        }
        let regular = Regular {
            path: path.canonicalize().map_err(open_error)?,
            file,
            remove_if_unused: !existed,
            truncate_first: mode == OutputMode::Overwrite,
        };
        Ok((Sink { to: To::Regular(regular), name, good_bytes: 0 }, existing))
    }

    /// The first `bytes` bytes of the existing file are whole lines; the next append cuts the rest.
    pub fn keep(&mut self, bytes: u64) {
        self.good_bytes = bytes;
    }

    /// Whether lines may come in any order: [`Sink::settle`] brings them into the right one.
    pub fn is_log(&self) -> bool {
        matches!(self.to, To::Regular(_))
    }

    /// Appends lines, durable on return; where they lie in the file.
    ///
    /// # Errors
    /// A full disk, or a reader that went away. The file then ends after the last write.
    pub fn append(&mut self, lines: &[u8]) -> Result<Range<u64>, JobError> {
        let start = self.good_bytes;
        let written = match &mut self.to {
            To::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines).and_then(|()| stdout.flush())
            }
            To::Stream(file) => file.write_all(lines),
            To::Regular(regular) => regular.append(start, lines),
        };
        written.map_err(|source| self.write_error(source))?;
        self.good_bytes += lines.len() as u64;
        Ok(start..self.good_bytes)
    }

    /// Leaves exactly `lines`, in this order, in a regular file: nothing to do when they already
    /// lie so, else through a temporary file beside it and a rename. A job that is not `complete`
    /// and wrote nothing leaves everything as it was.
    ///
    /// # Errors
    /// As [`Sink::append`]; the file is then unchanged.
    pub fn settle(&mut self, lines: &[Range<u64>], complete: bool) -> Result<(), JobError> {
        let good_bytes = self.good_bytes;
        let To::Regular(regular) = &mut self.to else { return Ok(()) };
        if !complete && (regular.truncate_first || regular.remove_if_unused) {
            return Ok(());
        }
        let settled = if in_order(lines, good_bytes) {
            regular.cut(good_bytes)
        } else {
            regular.rewrite(lines)
        };
        settled.map_err(|source| self.write_error(source))
    }

    fn write_error(&self, source: io::Error) -> JobError {
        if source.kind() == ErrorKind::BrokenPipe {
            return JobError::BrokenPipe;
        }
        let path = self.name.clone();
        if self.is_log() {
            JobError::OutputWrite { path, source }
        } else {
            JobError::StreamWrite { path, source }
        }
    }
}

fn in_order(lines: &[Range<u64>], len_bytes: u64) -> bool {
    let mut end = 0;
    for line in lines {
        if line.start != end {
            return false;
        }
        end = line.end;
    }
    end == len_bytes
}

impl Regular {
    fn append(&mut self, start: u64, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.cut(start)?;
        self.file.seek(SeekFrom::Start(start))?;
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_all());
        if written.is_err() {
            // A line that is half there would be cut by the next --resume anyway.
            let _ = self.file.set_len(start);
        }
        written
    }

    /// Ends the file after `len_bytes`; from now on it holds this job's lines.
    fn cut(&mut self, len_bytes: u64) -> io::Result<()> {
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

    fn rewrite(&self, lines: &[Range<u64>]) -> io::Result<()> {
        let temporary = temporary_path(&self.path);
        let result = self.write_temporary(&temporary, lines).and_then(|()| {
            std::fs::rename(&temporary, &self.path)?;
            // The rename itself must survive a power cut; some file systems cannot fsync a folder.
            let _ = self.path.parent().map(|folder| File::open(folder).and_then(|f| f.sync_all()));
            Ok(())
        });
        if result.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        result
    }

    fn write_temporary(&self, temporary: &Path, lines: &[Range<u64>]) -> io::Result<()> {
        let file = File::create(temporary)?;
        file.set_permissions(self.file.metadata()?.permissions())?;
        let mut out = io::BufWriter::new(&file);
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

impl Drop for Regular {
    fn drop(&mut self) {
        if self.remove_if_unused {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// `out.jsonl` to `.out.jsonl.settling`, in the same folder so that the rename is atomic. A leftover
/// of a killed run is overwritten.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.settling"))
}
/// How long another run may take to let go of the output: one that has just ended, or a process
/// that is about to become another program, holds the lock for a moment longer.
const BUSY_MAX: Duration = Duration::from_secs(1);

/// Whether another run has locked the file; locks it otherwise.
fn is_busy(file: &File) -> bool {
    let until = Instant::now() + BUSY_MAX;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return true,
            // A file system without locks is no reason to refuse it.
            _ => return false,
        }
    }
}
