//! The bytes of the input, and its modification time.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::UNIX_EPOCH;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::detect_format::check_format;
use super::error::JobError;
use super::input::InputFormat;
use super::sink::IoTarget;

/// Interval between checks for an interruption.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// An input that is read as a whole: a batch file is small compared with the model that answers it.
#[derive(Debug)]
pub struct InputData {
    pub bytes: Vec<u8>,
    /// `None` for stdin.
    pub(super) metadata: Option<std::fs::Metadata>,
}

impl InputData {
    /// Reads a file, or stdin to its end.
    ///
    /// # Errors
    /// Returns an error if the input cannot be read or is in an unsupported format.
    pub fn read(target: &IoTarget, interrupted: &dyn Fn() -> bool) -> Result<InputData, JobError> {
        let mut bytes = Vec::new();
        let (path, read) = match target {
            IoTarget::Standard => {
                let read = read_to_end(std::io::stdin().lock(), &mut bytes, interrupted);
                ("-".to_owned(), read.map(|()| None))
            }
            IoTarget::File(path) => {
                let read = File::open(path).and_then(|mut file| {
                    read_to_end(&mut file, &mut bytes, interrupted)?;
                    file.metadata().map(Some)
                });
                (path.display().to_string(), read)
            }
        };
        if interrupted() {
            return Err(JobError::Interrupted);
        }
        match read {
            Ok(metadata) => {
                check_format(path, &bytes, InputFormat::from_target(target))?;
                Ok(InputData { bytes, metadata })
            }
            Err(source) => Err(JobError::Input { path, source }),
        }
    }

    /// Returns the modification time of a regular input file, in seconds since 1970, otherwise 0.
    pub(super) fn modified_s(&self) -> u64 {
        let metadata = self.metadata.as_ref().filter(|metadata| metadata.is_file());
        let modified = metadata.and_then(|metadata| metadata.modified().ok());
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        since.map_or(0, |since| since.as_secs())
    }
}

/// Reads to the end, or until it is interrupted: a pipe may have no data for hours.
fn read_to_end(
    mut from: impl Read + AsFd,
    bytes: &mut Vec<u8>,
    interrupted: &dyn Fn() -> bool,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while !interrupted() {
        let mut polled = [PollFd::new(&from, PollFlags::IN)];
        match poll(&mut polled, Some(&TICK)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(())
}
