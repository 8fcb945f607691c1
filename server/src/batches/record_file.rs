//! Records on disk: small JSON files that are replaced atomically and durably.

use std::io::{self, Read};

use atomic_fs::{Directory, PRIVATE_MODE};
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Extension of a record.
pub const RECORD_EXTENSION: &str = ".json";

/// Maximum size of a record, in bytes; larger files are not records of this program.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Returns the file name of the record of an object.
pub fn record_name(id: &str) -> String {
    format!("{id}{RECORD_EXTENSION}")
}

/// Writes the record of an object, which is durable on return.
///
/// # Errors
/// The file cannot be written; an earlier record is then unchanged.
pub fn write_record(directory: &Directory, id: &str, record: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(record).map_err(io::Error::other)?;
    directory.replace(record_name(id), &bytes, PRIVATE_MODE)?;
    directory.sync()
}

/// Reads the record of an object; `None` if it is damaged.
///
/// # Errors
/// The file cannot be read.
pub fn read_record<T: DeserializeOwned>(directory: &Directory, id: &str) -> io::Result<Option<T>> {
    let file = directory.open_file(record_name(id), OFlags::RDONLY, 0)?;
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}
