//! Output of a job: a durable file, or a stream.
//!
//! A file is a log while the job runs: lines are only ever appended, as they are finished, and
//! synced. [`OutputSink::finalize`] sorts them into input order at the end, through a temporary
//! file and a rename, so that every answer is in one of the two files at any time. A failed write
//! is undone by truncating the file to the end of the previous one.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::error::JobError;
use super::output_file::{ForeignTempFile, OutputFile};

/// Treatment of an existing output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// Refuses it, unless it is empty.
    New,
    /// Continues it; refuses it if it holds an answer that the input no longer requests.
    Resume,
    /// Continues it, and replaces the answers that the input no longer requests.
    ResumeReplacing,
    /// Overwrites it when the first answers are finished.
    Overwrite,
}

impl OutputMode {
    /// Returns true if answers in the output are kept.
    pub fn is_resume(self) -> bool {
        matches!(self, OutputMode::Resume | OutputMode::ResumeReplacing)
    }
}

/// An input or output: stdin or stdout (`-`), or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IoTarget {
    Standard,
    File(PathBuf),
}

impl IoTarget {
    /// Returns the metadata of a file; `None` for a standard stream.
    ///
    /// # Errors
    /// Returns an error if the file does not exist.
    pub fn metadata(&self) -> Result<Option<std::fs::Metadata>, JobError> {
        let IoTarget::File(path) = self else { return Ok(None) };
        let path_shown = || path.display().to_string();
        let metadata = path.metadata();
        metadata.map(Some).map_err(|source| JobError::Input { path: path_shown(), source })
    }
}

/// An open output.
#[derive(Debug)]
pub struct OutputSink {
    kind: SinkKind,
    name: String,
    /// End of the last successful write, in bytes; anything after it is truncated.
    committed_bytes: u64,
}

#[derive(Debug)]
enum SinkKind {
    Stdout,
    /// A pipe, terminal or device opened by name: no offsets, no fsync.
    Stream(File),
    File(OutputFile),
}

impl OutputSink {
    /// Opens the output and, to resume it, reads its content. `input` is the input's metadata if it
    /// is a file, to detect that both are the same.
    ///
    /// # Errors
    /// Returns an error if the output exists (`New`), is the input, is in use, is not a regular
    /// file (`Resume`) or cannot be opened.
    pub fn open(
        target: &IoTarget,
        mode: OutputMode,
        input: Option<&std::fs::Metadata>,
    ) -> Result<(OutputSink, Vec<u8>), JobError> {
        let IoTarget::File(path) = target else {
            let sink = OutputSink {
                kind: SinkKind::Stdout,
                name: "stdout".to_owned(),
                committed_bytes: 0,
            };
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
            return Err(JobError::OutputDirectory { path: name });
        }
        let is_stream = metadata.as_ref().is_some_and(|m| !m.is_file());
        let has_content = metadata.as_ref().is_some_and(|m| m.is_file() && m.len() > 0);
        if has_content && mode == OutputMode::New {
            return Err(JobError::OutputExists { path: name });
        }
        if is_stream && mode.is_resume() {
            return Err(JobError::ResumeStream { path: name });
        }
        let open_error = |source| JobError::OutputOpen { path: name.clone(), source };
        if is_stream {
            let file = File::options().write(true).open(path).map_err(open_error)?;
            return Ok((
                OutputSink { kind: SinkKind::Stream(file), name, committed_bytes: 0 },
                Vec::new(),
            ));
        }
        let mut regular = match OutputFile::open(path, mode == OutputMode::Overwrite) {
            Ok(Some(regular)) => regular,
            Ok(None) => return Err(JobError::OutputBusy { path: name }),
            Err(source) => {
                return Err(foreign_temp_file(&source).unwrap_or_else(|| open_error(source)));
            }
        };
        // Checked again with the file locked: another run may have written to it in the meantime.
        if mode == OutputMode::New && !regular.is_empty().map_err(open_error)? {
            return Err(JobError::OutputExists { path: name });
        }
        let mut existing = Vec::new();
        if mode.is_resume() {
            existing = regular.read().map_err(open_error)?;
        }
        Ok((OutputSink { kind: SinkKind::File(regular), name, committed_bytes: 0 }, existing))
    }

    /// Returns the path, or `stdout`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Keeps the first `bytes` bytes of the existing file, which are whole lines; the next append
    /// truncates the rest.
    pub fn keep_prefix(&mut self, bytes: u64) {
        self.committed_bytes = bytes;
    }

    /// Returns true if lines may come in any order, which [`OutputSink::finalize`] restores.
    pub fn is_log(&self) -> bool {
        matches!(self.kind, SinkKind::File(_))
    }

    /// Appends lines, which are durable on return; returns their position in the file.
    ///
    /// # Errors
    /// Returns an error if the disk is full or the reader has closed its end. The file then ends
    /// after the last successful write.
    pub fn append(&mut self, lines: &[u8]) -> Result<Range<u64>, JobError> {
        let start = self.committed_bytes;
        let written = match &mut self.kind {
            SinkKind::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines).and_then(|()| stdout.flush())
            }
            SinkKind::Stream(file) => file.write_all(lines),
            SinkKind::File(regular) => regular.append(start, lines),
        };
        written.map_err(|source| self.write_error(source))?;
        self.committed_bytes += lines.len() as u64;
        Ok(start..self.committed_bytes)
    }

    /// Reduces a regular file to exactly `lines`, in this order: through a temporary file in the
    /// same directory and a rename, unless the file already has this content. A job that is not
    /// `complete` and wrote nothing leaves everything as it was.
    ///
    /// # Errors
    /// Fails like [`OutputSink::append`]; the file is then unchanged.
    pub fn finalize(&mut self, lines: &[Range<u64>], complete: bool) -> Result<(), JobError> {
        let good_bytes = self.committed_bytes;
        let SinkKind::File(regular) = &mut self.kind else { return Ok(()) };
        if !complete && regular.is_unwritten() {
            return Ok(());
        }
        let result = regular.retain_lines(lines, good_bytes);
        let moved = regular.moved_to();
        result.map_err(|source| self.write_error(source))?;
        match moved {
            None => Ok(()),
            Some(now) => Err(JobError::OutputMoved { path: self.name.clone(), now }),
        }
    }

    fn write_error(&self, source: io::Error) -> JobError {
        if source.kind() == ErrorKind::BrokenPipe {
            return JobError::BrokenPipe;
        }
        if let Some(error) = foreign_temp_file(&source) {
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

/// Returns the job's error for a temporary file that cannot be used, if that is the cause.
fn foreign_temp_file(source: &io::Error) -> Option<JobError> {
    let foreign: &ForeignTempFile = source.get_ref()?.downcast_ref()?;
    Some(JobError::ForeignTempFile { path: foreign.path.display().to_string() })
}
