//! The bytes of the input, and when they were made.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::error::JobError;
use super::input::Format;
use super::sink::Place;

/// How a gzip file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Whether the whole input is an array of objects, as other tools write them.
fn is_array(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"[")
        && serde_json::from_slice::<Vec<serde_json::Map<String, serde_json::Value>>>(bytes).is_ok()
}

/// An input, read whole: a batch file is small beside the model that answers it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    /// `None` for stdin.
    pub(super) metadata: Option<std::fs::Metadata>,
}

impl Source {
    /// Reads a file, or stdin to its end.
    ///
    /// # Errors
    /// One that cannot be read, or holds the requests in a way that is not ours.
    pub(super) fn read(place: &Place) -> Result<Source, JobError> {
        let mut bytes = Vec::new();
        let (path, read) = match place {
            Place::Standard => {
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                ("-".to_owned(), read.map(|_| None))
            }
            Place::File(path) => {
                let read = File::open(path).and_then(|mut file| {
                    file.read_to_end(&mut bytes)?;
                    file.metadata().map(Some)
                });
                (path.display().to_string(), read)
            }
        };
        match read {
            Ok(_) if bytes.starts_with(&GZIP) => Err(JobError::CompressedInput { path }),
            Ok(_) if format_of(place) == Format::JsonLines && is_array(&bytes) => {
                Err(JobError::ArrayInput { path })
            }
            Ok(metadata) => Ok(Source { bytes, metadata }),
            Err(source) => Err(JobError::Input { path, source }),
        }
    }

    /// Seconds since 1970 at which a regular input was changed, else 0.
    pub(super) fn created(&self) -> u64 {
        let metadata = self.metadata.as_ref().filter(|metadata| metadata.is_file());
        let modified = metadata.and_then(|metadata| metadata.modified().ok());
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        since.map_or(0, |since| since.as_secs())
    }
}

/// `.txt` holds raw prompts; anything else, stdin too, JSON Lines.
pub(super) fn format_of(place: &Place) -> Format {
    let is_text = |path: &Path| path.extension().is_some_and(|extension| extension == "txt");
    match place {
        Place::File(path) if is_text(path) => Format::Text,
        _ => Format::JsonLines,
    }
}
