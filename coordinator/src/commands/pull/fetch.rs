//! Download of one file of a repository: it is retried if necessary, limited to the size that the
//! hub listed, verified, and linked.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use anyhow::Context;

use super::cache::{Part, Repository};
use super::check::is_intact;
use super::files::{HubFile, Listing};
use super::hub::{Download, Hub, HubError};
use super::names::Hash;
use session::byte_progress_bar::ByteProgressBar;

/// Maximum number of retries per file.
const RETRIES: u32 = 3;
/// Pause before the first retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(300);
const PIECE_BYTES: usize = 1 << 18;

/// Context for fetching all files of a model.
pub(super) struct Fetcher<'a> {
    pub(super) hub: &'a Hub,
    pub(super) repository: &'a Repository,
    pub(super) listing: &'a Listing,
    pub(super) revision: &'a str,
}

/// Reason why an attempt failed.
enum AttemptError {
    /// A retry may succeed.
    Connection(io::Error),
    Hub(HubError),
    /// A retry would fail again.
    Refused(anyhow::Error),
}

impl From<anyhow::Error> for AttemptError {
    fn from(error: anyhow::Error) -> AttemptError {
        AttemptError::Refused(error)
    }
}

impl AttemptError {
    fn is_transient(&self) -> bool {
        match self {
            AttemptError::Connection(_) => true,
            AttemptError::Hub(HubError::Status(status)) => matches!(status, 408 | 429 | 500..=599),
            AttemptError::Hub(HubError::Http(error)) => matches!(
                error,
                ureq::Error::Io(_)
                    | ureq::Error::Timeout(_)
                    | ureq::Error::HostNotFound
                    | ureq::Error::ConnectionFailed
            ),
            AttemptError::Hub(_) | AttemptError::Refused(_) => false,
        }
    }
}

impl Fetcher<'_> {
    /// Fetches a file, or the rest of it, verifies its checksum and links it.
    ///
    /// # Errors
    /// An error whose message is meant for the user.
    pub(super) fn fetch(
        &self,
        model: &str,
        file: &HubFile,
        progress: &mut FetchProgress,
    ) -> anyhow::Result<()> {
        let mut known = file.checksum().cloned();
        let mut attempts = 0;
        let blob = loop {
            match self.attempt(model, file, &mut known, progress) {
                Ok(blob) => break blob,
                Err(broken) if attempts < RETRIES && broken.is_transient() => {
                    std::thread::sleep(PAUSE * (1 << attempts));
                    attempts += 1;
                }
                Err(broken) => return Err(self.explain(model, file, broken)),
            }
        };
        let linked = self.repository.link(&self.listing.commit, &file.path, &blob);
        linked.with_context(|| format!("{} cannot be put into the cache", file.path))?;
        progress.end_file(file);
        Ok(())
    }

    fn explain(&self, model: &str, file: &HubFile, failure: AttemptError) -> anyhow::Error {
        let path = &file.path;
        let in_part =
            format!("{path} was fetched only in part; run the same command again to resume");
        match failure {
            AttemptError::Refused(error) => error,
            AttemptError::Connection(error) => anyhow::Error::new(error).context(in_part),
            AttemptError::Hub(error @ HubError::Range) => {
                anyhow::Error::new(error).context(in_part)
            }
            AttemptError::Hub(error) => {
                error.user_message(model, self.revision).context(path.clone())
            }
        }
    }

    /// Fetches the missing part of a file's content, and returns the name of its blob. `known` is
    /// that name; for a file without a listed checksum, it is set from the hub's first response.
    fn attempt(
        &self,
        model: &str,
        file: &HubFile,
        known: &mut Option<Hash>,
        progress: &mut FetchProgress,
    ) -> Result<Hash, AttemptError> {
        let mut download = None;
        let blob = match known {
            Some(blob) => blob.clone(),
            None => {
                let started = self.start(model, file, 0)?;
                let etag = started.etag.clone().with_context(|| {
                    format!("the hub has neither a checksum nor an ETag for {}", file.path)
                })?;
                download = Some(started);
                known.insert(etag).clone()
            }
        };
        if self.has_blob(file, &blob)? {
            return Ok(blob);
        }
        let busy_message =
            || format!("another process is fetching {}; wait until it ends", file.path);
        let part = self.repository.part(&blob).with_context(|| cache_context(file))?;
        let part = part.with_context(busy_message)?;
        let mut start = part.size_bytes().with_context(|| cache_context(file))?;
        if file.size_bytes.is_some_and(|size_bytes| start > size_bytes) {
            part.file().set_len(0).with_context(|| cache_context(file))?;
            start = 0;
        }
        // A part with all bytes was left by a run that ended before the part was verified.
        if start == 0 || file.size_bytes != Some(start) {
            let download = match download.filter(|_| start == 0) {
                Some(download) => download,
                None => match self.start(model, file, start) {
                    Err(AttemptError::Hub(HubError::Status(416))) => {
                        part.file().set_len(0).with_context(|| cache_context(file))?;
                        let error = "the hub does not resume where the last download ended";
                        return Err(AttemptError::Connection(io::Error::other(error)));
                    }
                    started => started?,
                },
            };
            self.receive(file, &part, download, progress)?;
        }
        verify(file, part)?;
        Ok(blob)
    }

    /// Returns true if an intact blob already exists, for instance from another revision. A damaged
    /// one is replaced after the file was fetched.
    fn has_blob(&self, file: &HubFile, blob: &Hash) -> Result<bool, AttemptError> {
        let found = self.repository.blob(blob).with_context(|| cache_context(file))?;
        let Some(found) = found else { return Ok(false) };
        Ok(is_intact(&found, file).with_context(|| cache_context(file))?)
    }

    /// Starts to fetch a file from byte `start`.
    fn start(&self, model: &str, file: &HubFile, start: u64) -> Result<Download, AttemptError> {
        let download = self.hub.download(model, self.revision, &file.path, start);
        let download = download.map_err(AttemptError::Hub)?;
        if download.commit.as_ref().is_some_and(|commit| *commit != self.listing.commit) {
            let error = anyhow::anyhow!(
                "{model} has changed during the download; run the same command again"
            );
            return Err(AttemptError::Refused(error));
        }
        Ok(download)
    }

    /// Appends the downloaded bytes to the part.
    fn receive(
        &self,
        file: &HubFile,
        part: &Part<'_>,
        mut download: Download,
        progress: &mut FetchProgress,
    ) -> Result<(), AttemptError> {
        let write_error = |error: io::Error| {
            AttemptError::Refused(
                anyhow::Error::new(error)
                    .context(format!("{} cannot be written into the cache", file.path)),
            )
        };
        let size_bytes = file.size_bytes.or(download.total_bytes).with_context(|| {
            format!("the hub does not report the size of {}, so it is not fetched", file.path)
        })?;
        if download.total_bytes.is_some_and(|total_bytes| total_bytes != size_bytes) {
            return Err(size_mismatch_error(file, size_bytes).into());
        }
        self.check_capacity(file, size_bytes.saturating_sub(download.start))?;
        // A hub that cannot resume sends the whole file again.
        part.file().set_len(download.start).map_err(write_error)?;
        part.file().seek(SeekFrom::Start(download.start)).map_err(write_error)?;
        let mut at = download.start;
        progress.set(at);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = match download.body.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => return Err(AttemptError::Connection(error)),
            };
            if read as u64 > size_bytes - at {
                return Err(size_mismatch_error(file, size_bytes).into());
            }
            part.file().write_all(&piece[..read]).map_err(write_error)?;
            at += read as u64;
            progress.set(at);
        }
        if at < size_bytes {
            let error = format!("the connection ended after {at} of {size_bytes} bytes");
            return Err(AttemptError::Connection(io::Error::other(error)));
        }
        Ok(())
    }

    fn check_capacity(&self, file: &HubFile, needed: u64) -> anyhow::Result<()> {
        let Ok(free) = self.repository.available_bytes() else { return Ok(()) };
        let path = &file.path;
        anyhow::ensure!(
            needed <= free,
            "{needed} bytes of {path} remain to be fetched, but the disk has {free} free"
        );
        Ok(())
    }
}

/// Renames a part to its blob if it is intact, and removes it otherwise.
fn verify(file: &HubFile, part: Part<'_>) -> anyhow::Result<()> {
    let path = &file.path;
    if is_intact(part.file(), file).with_context(|| cache_context(file))? {
        return part.finish().with_context(|| cache_context(file));
    }
    part.remove().with_context(|| format!("{path} is damaged and cannot be removed"))?;
    anyhow::bail!("{path} was damaged in transit and removed; run the same command again")
}

fn cache_context(file: &HubFile) -> String {
    format!("{} in the cache", file.path)
}

fn size_mismatch_error(file: &HubFile, size_bytes: u64) -> anyhow::Error {
    let path = &file.path;
    anyhow::anyhow!(
        "the hub sent {path} with a size other than {size_bytes} bytes; it was not fetched"
    )
}

/// Progress of all files together.
pub(super) struct FetchProgress {
    bar: ByteProgressBar,
    total_bytes: u64,
    /// Total size of the files before the current one.
    before_bytes: u64,
}

impl FetchProgress {
    pub(super) fn new(total_bytes: u64, quiet: bool) -> FetchProgress {
        FetchProgress { bar: ByteProgressBar::new("fetching", quiet), total_bytes, before_bytes: 0 }
    }

    /// Sets the number of fetched bytes of the current file.
    fn set(&mut self, file_bytes: u64) {
        let done_bytes = self.before_bytes.saturating_add(file_bytes);
        self.bar.update(done_bytes, self.total_bytes.max(done_bytes));
    }

    fn end_file(&mut self, file: &HubFile) {
        self.before_bytes = self.before_bytes.saturating_add(file.size_bytes.unwrap_or(0));
    }

    pub(super) fn finish(&self) {
        self.bar.finish();
    }
}
