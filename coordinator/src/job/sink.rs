//! Where the lines go: a file that survives anything, or a stream.
//!
//! A file is a log while the job runs: lines are only ever appended, as they are finished, and
//! fsynced. [`Sink::settle`] brings them into input order at the end, through a temporary file and
//! a rename, so that there is no instant at which an answer exists in neither. A write that fails
//! is taken back to the end of the one before.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::error::JobError;
use super::regular::{ForeignSettling, Regular};

/// What to do with an output that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Refuse it, unless it is empty.
    New,
    /// Go on where it ends; refuse it when it holds an answer that the input no longer asks for.
    Resume,
    /// Go on where it ends, and replace the answers that the input no longer asks for.
    ResumeReplacing,
    /// Overwrite it, when the first answers are there.
    Overwrite,
}

impl OutputMode {
    /// Whether answers in the output are kept.
    pub fn resumes(self) -> bool {
        matches!(self, OutputMode::Resume | OutputMode::ResumeReplacing)
    }
}

/// Stdin or stdout (`-`), or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Standard,
    File(PathBuf),
}

impl Place {
    /// Of a file; `None` for a standard stream.
    ///
    /// # Errors
    /// A file that is not there.
    pub fn metadata(&self) -> Result<Option<std::fs::Metadata>, JobError> {
        let Place::File(path) = self else { return Ok(None) };
        let path_shown = || path.display().to_string();
        let metadata = path.metadata();
        metadata.map(Some).map_err(|source| JobError::Input { path: path_shown(), source })
    }
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
        let holds_something = metadata.as_ref().is_some_and(|m| m.is_file() && m.len() > 0);
        if holds_something && mode == OutputMode::New {
            return Err(JobError::OutputExists { path: name });
        }
        if is_stream && mode.resumes() {
            return Err(JobError::ResumeStream { path: name });
        }
        let open_error = |source| JobError::OutputOpen { path: name.clone(), source };
        if is_stream {
            let file = File::options().write(true).open(path).map_err(open_error)?;
            return Ok((Sink { to: To::Stream(file), name, good_bytes: 0 }, Vec::new()));
        }
        let mut regular = match Regular::open(path, mode == OutputMode::Overwrite) {
            Ok(Some(regular)) => regular,
            Ok(None) => return Err(JobError::OutputBusy { path: name }),
            Err(source) => {
                return Err(foreign_settling(&source).unwrap_or_else(|| open_error(source)));
            }
        };
        // Pending again of the file that is locked now: another run may have written it meanwhile.
        if mode == OutputMode::New && !regular.is_empty().map_err(open_error)? {
            return Err(JobError::OutputExists { path: name });
        }
        let mut existing = Vec::new();
        if mode.resumes() {
            existing = regular.read().map_err(open_error)?;
        }
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
        if !complete && regular.is_untouched() {
            return Ok(());
        }
        let settled = regular.settle(lines, good_bytes);
        let moved = regular.moved_to();
        settled.map_err(|source| self.write_error(source))?;
        match moved {
            None => Ok(()),
            Some(now) => Err(JobError::OutputMoved { path: self.name.clone(), now }),
        }
    }

    fn write_error(&self, source: io::Error) -> JobError {
        if source.kind() == ErrorKind::BrokenPipe {
            return JobError::BrokenPipe;
        }
        if let Some(error) = foreign_settling(&source) {
            return error;
        }
        let path = self.name.clone();
        if self.is_log() {
            JobError::OutputWrite { path, source }
        } else {
            JobError::StreamWrite { path, source }
        }
    }
}

/// The sentence about a settling file that is not ours, if that is what failed.
fn foreign_settling(source: &io::Error) -> Option<JobError> {
    let foreign: &ForeignSettling = source.get_ref()?.downcast_ref()?;
    Some(JobError::ForeignSettling { path: foreign.path.display().to_string() })
}
