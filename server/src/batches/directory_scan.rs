//! Contents of a storage directory when it is opened: records, and leftovers of a killed server.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use atomic_fs::Directory;

use super::batch_record::BatchRecord;
use super::file_record::FileRecord;
use super::ids::{BATCH_PREFIX, FILE_PREFIX, is_id};
use super::record_file::{RECORD_EXTENSION, read_record};

/// Extension of the content of a file.
pub const CONTENT_EXTENSION: &str = ".jsonl";
/// Extension of the working file of a batch.
pub const WORK_EXTENSION: &str = ".work.jsonl";
/// Beginning of the name of a file that is being uploaded or written.
pub const UPLOAD_PREFIX: &str = ".upload-";

/// Beginning of the name of a record that is being replaced.
const REPLACE_PREFIX: &str = ".tmp-";
/// Extension of a working file that is being sorted, a hidden file.
const SORT_EXTENSION: &str = ".work.jsonl.settling";

/// Contents of a storage directory.
#[derive(Debug, Default)]
pub struct DirectoryContents {
    pub files: Vec<FileRecord>,
    pub batches: Vec<BatchRecord>,
    /// Ids of contents.
    contents: HashSet<String>,
    /// Ids of batches with a working file.
    work_files: Vec<String>,
    /// Names of files that were being written.
    temporaries: Vec<String>,
}

impl DirectoryContents {
    /// Reads the records of a directory. Files with other names are left alone, and so are damaged
    /// records.
    ///
    /// # Errors
    /// The directory or a record cannot be read.
    pub fn read(path: &Path, directory: &Directory) -> io::Result<DirectoryContents> {
        let mut contents = DirectoryContents::default();
        for entry in std::fs::read_dir(path)? {
            let name = entry?.file_name();
            if let Some(name) = name.to_str() {
                contents.add(name, directory)?;
            }
        }
        Ok(contents)
    }

    fn add(&mut self, name: &str, directory: &Directory) -> io::Result<()> {
        let is_hidden_batch =
            |name: &str| name.strip_prefix('.').is_some_and(|id| is_id(id, BATCH_PREFIX));
        let is_temporary = [UPLOAD_PREFIX, REPLACE_PREFIX].iter().any(|prefix| {
            let digits = name.strip_prefix(prefix);
            digits.is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok())
        });
        if is_temporary || name.strip_suffix(SORT_EXTENSION).is_some_and(is_hidden_batch) {
            self.temporaries.push(name.to_owned());
        } else if let Some(id) = name.strip_suffix(WORK_EXTENSION) {
            if is_id(id, BATCH_PREFIX) {
                self.work_files.push(id.to_owned());
            }
        } else if let Some(id) = name.strip_suffix(CONTENT_EXTENSION) {
            if is_id(id, FILE_PREFIX) {
                self.contents.insert(id.to_owned());
            }
        } else if let Some(id) = name.strip_suffix(RECORD_EXTENSION) {
            if is_id(id, FILE_PREFIX) {
                let record = read_record::<FileRecord>(directory, id)?;
                self.files.extend(record.filter(|record| record.id == id));
            } else if is_id(id, BATCH_PREFIX) {
                let record = read_record::<BatchRecord>(directory, id)?;
                self.batches.extend(record.filter(|record| is_whole(record, id)));
            }
        }
        Ok(())
    }

    /// Removes what a killed server left: files that were being written, contents without a record,
    /// and working files of batches that have ended. Forgets records without content.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_leftovers(&mut self, directory: &Directory) -> io::Result<()> {
        let DirectoryContents { files, batches, contents, work_files, temporaries } = self;
        // What stays in `contents` has no record.
        files.retain(|file| contents.remove(&file.id));
        let is_open =
            |id: &String| batches.iter().any(|batch| batch.id == *id && !batch.status.is_final());
        work_files.retain(|id| !is_open(id));
        let contents = contents.iter().map(|id| format!("{id}{CONTENT_EXTENSION}"));
        let work_files = work_files.iter().map(|id| format!("{id}{WORK_EXTENSION}"));
        contents
            .chain(work_files)
            .chain(temporaries.drain(..))
            .try_for_each(|name| directory.remove_file(name))
    }
}

/// Returns true if a record belongs to the batch with this id and names valid files.
fn is_whole(record: &BatchRecord, id: &str) -> bool {
    let files = [&record.input_file_id, &record.output_file_id, &record.error_file_id];
    record.id == id && files.iter().all(|file| is_id(file, FILE_PREFIX))
}
