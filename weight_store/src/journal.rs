//! Journal of a partial copy: the blobs that are durable on the drive.
//!
//! A line is the checksum of the rest of the line, a space, and JSON. A torn line and everything
//! after it are ignored.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atomic_fs::{Directory, PUBLIC_MODE};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::index::FORMAT;

/// File name of the journal.
pub(crate) const JOURNAL: &str = "journal";

/// The first line: identifies what is being staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub format: u64,
    /// Checksum of identity and list of blobs.
    pub plan: Checksum,
    /// Size of all blobs.
    pub total_bytes: u64,
}

/// Every other line: a blob whose bytes and checksums are durable on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FinishedBlob {
    pub blob: usize,
    pub size_bytes: u64,
    pub checksum: Checksum,
    /// Checksum of the blob's part of `blocks.bin`.
    pub blocks_checksum: Checksum,
}

/// Content of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    pub header: Header,
    pub finished: Vec<FinishedBlob>,
    /// Size of the intact lines.
    valid_bytes: u64,
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (checksum, json) = line.split_once(' ')?;
    let is_whole = checksum.parse() == Ok(Checksum::of_bytes(json.as_bytes()));
    serde_json::from_str(json).ok().filter(|_| is_whole)
}

impl JournalRecord {
    /// Parses a journal; `None` if it has no intact first line or another format.
    pub fn from_bytes(bytes: &[u8]) -> Option<JournalRecord> {
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let first = lines.next()?;
        let header: Header = parse(first).filter(|header: &Header| header.format == FORMAT)?;
        let mut record =
            JournalRecord { header, finished: Vec::new(), valid_bytes: first.len() as u64 };
        for line in lines {
            let Some(finished) = parse(line) else { break };
            record.finished.push(finished);
            record.valid_bytes += line.len() as u64;
        }
        Some(record)
    }

    /// Returns the total size of the finished blobs.
    pub fn done_bytes(&self) -> u64 {
        let bytes = self.finished.iter().map(|finished| finished.size_bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// A journal open for writing, locked by this process.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
}

/// Error of opening a journal.
pub(crate) enum JournalError {
    Locked,
    /// The folder has been renamed: another process has finished staging.
    Moved,
    Io(io::Error),
}

impl From<io::Error> for JournalError {
    fn from(error: io::Error) -> JournalError {
        JournalError::Io(error)
    }
}

impl Journal {
    /// Opens, locks and reads the journal of `directory`, whose path is `folder`.
    pub fn open(
        directory: &Directory,
        folder: &Path,
    ) -> Result<(Journal, Option<JournalRecord>), JournalError> {
        let path = folder.join(JOURNAL);
        let mut file = directory.open_file(JOURNAL, OFlags::RDWR | OFlags::CREATE, PUBLIC_MODE)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(JournalError::Locked),
            Err(error) => return Err(JournalError::Io(error.into())),
        }
        let locked = file.metadata()?;
        match std::fs::metadata(&path) {
            Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => {}
            Ok(_) => return Err(JournalError::Moved),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(JournalError::Moved);
            }
            Err(error) => return Err(JournalError::Io(error)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Journal { file }, JournalRecord::from_bytes(&bytes)))
    }

    /// Returns true if another process has locked the journal of a folder.
    pub fn is_locked(folder: &Path) -> bool {
        let Ok(file) = File::open(folder.join(JOURNAL)) else { return false };
        let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        matches!(lock, Err(Errno::WOULDBLOCK))
    }

    /// Keeps the lines of `record` and removes a torn end.
    pub fn resume(&mut self, record: &JournalRecord) -> io::Result<()> {
        self.file.set_len(record.valid_bytes)?;
        self.file.seek(SeekFrom::Start(record.valid_bytes))?;
        self.file.sync_all()
    }

    /// Empties the journal; durable when this returns.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.sync_all()
    }

    /// Appends the first line.
    pub fn begin(&mut self, header: &Header) -> io::Result<()> {
        self.append(header)
    }

    /// Appends a blob that is durable on the drive.
    pub fn finish(&mut self, finished: &FinishedBlob) -> io::Result<()> {
        self.append(finished)
    }

    fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_string(line)?;
        let line = format!("{} {json}\n", Checksum::of_bytes(json.as_bytes()));
        let end_bytes = self.file.stream_position()?;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // A torn line would hide the lines after it.
            self.file.set_len(end_bytes)?;
            self.file.seek(SeekFrom::Start(end_bytes))?;
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_torn_end_leaves_the_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let open = || Journal::open(&directory, folder.path());
        let Ok((mut journal, None)) = open() else { panic!("it is new") };
        let header = Header { format: FORMAT, plan: Checksum(7), total_bytes: 30 };
        journal.begin(&header).unwrap();
        let mut ends = vec![std::fs::metadata(folder.path().join(JOURNAL)).unwrap().len()];
        for blob in 0..3 {
            let checksum = Checksum(blob as u64);
            let finished =
                FinishedBlob { blob, size_bytes: 10, checksum, blocks_checksum: Checksum(9) };
            journal.finish(&finished).unwrap();
            ends.push(std::fs::metadata(folder.path().join(JOURNAL)).unwrap().len());
        }
        let bytes = std::fs::read(folder.path().join(JOURNAL)).unwrap();
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut as u64).count();
            let record = JournalRecord::from_bytes(&bytes[..cut]);
            assert_eq!(record.as_ref().map(|r| r.finished.len() + 1).unwrap_or(0), whole);
            if let Some(record) = record {
                assert_eq!(record.valid_bytes, ends[whole - 1]);
                assert_eq!(record.done_bytes(), 10 * (whole as u64 - 1));
            }
        }
        assert!(Journal::is_locked(folder.path()));
        assert!(matches!(open(), Err(JournalError::Locked)));
        drop(journal);
        assert!(!Journal::is_locked(folder.path()));
    }
}
