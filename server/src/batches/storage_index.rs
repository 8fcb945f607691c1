//! Index of the stored files and batches, in the order of their creation.

use super::batch_record::BatchRecord;
use super::file_record::FileRecord;

/// A record of the index.
pub trait StoredRecord {
    /// Returns the number that orders records by creation.
    fn number(&self) -> u64;
    fn id(&self) -> &str;
}

impl StoredRecord for FileRecord {
    fn number(&self) -> u64 {
        self.number
    }

    fn id(&self) -> &str {
        &self.id
    }
}

impl StoredRecord for BatchRecord {
    fn number(&self) -> u64 {
        self.number
    }

    fn id(&self) -> &str {
        &self.id
    }
}

/// Records in the order of their creation.
#[derive(Debug)]
pub struct RecordList<T>(Vec<T>);

impl<T: StoredRecord> RecordList<T> {
    /// Creates a list of records in any order.
    pub fn new(mut records: Vec<T>) -> RecordList<T> {
        records.sort_by_key(T::number);
        RecordList(records)
    }

    /// Returns all records, the oldest first.
    pub fn records(&self) -> &[T] {
        &self.0
    }

    /// Returns the record with the given id.
    pub fn find(&self, id: &str) -> Option<&T> {
        self.0.iter().find(|record| record.id() == id)
    }

    /// Replaces the record with the same id, or adds a new one.
    pub fn put(&mut self, record: T) {
        match self.0.iter_mut().find(|known| known.id() == record.id()) {
            Some(known) => *known = record,
            None => {
                let place = self.0.partition_point(|known| known.number() < record.number());
                self.0.insert(place, record);
            }
        }
    }

    /// Removes and returns the record with the given id.
    pub fn remove(&mut self, id: &str) -> Option<T> {
        let place = self.0.iter().position(|record| record.id() == id)?;
        Some(self.0.remove(place))
    }
}

/// All stored files and batches.
#[derive(Debug)]
pub struct StorageIndex {
    pub files: RecordList<FileRecord>,
    pub batches: RecordList<BatchRecord>,
    /// Number of the next record.
    pub next_number: u64,
}

impl StorageIndex {
    /// Creates an index of these records.
    pub fn new(files: Vec<FileRecord>, batches: Vec<BatchRecord>) -> StorageIndex {
        let (files, batches) = (RecordList::new(files), RecordList::new(batches));
        let last_file = files.records().last().map(FileRecord::number);
        let last_batch = batches.records().last().map(BatchRecord::number);
        let next_number = last_file.max(last_batch).map_or(0, |last| last.saturating_add(1));
        StorageIndex { files, batches, next_number }
    }

    /// Returns the number of a new record.
    pub fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        number
    }
}
