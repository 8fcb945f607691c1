//! What an existing output already answers.

use std::collections::HashMap;
use std::ops::Range;

use super::error::JobError;
use super::fingerprint::{hash_and_kernels, request_id};
use super::item::Item;
use super::output::{OutputLine, error_line};

/// Which items need nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// Bytes of whole lines; what lies behind is a torn line.
    pub whole_bytes: u64,
    /// For each item, where its line lies in the file.
    pub kept: Vec<Option<Range<u64>>>,
}

impl Resume {
    /// Nothing is answered yet.
    pub fn nothing(items: &[Item]) -> Resume {
        Resume { whole_bytes: 0, kept: vec![None; items.len()] }
    }

    /// Matches the lines of `existing` with the input's items. An answer is kept when its request
    /// is still asked in the same way; an error line only when the same line still gives the same
    /// error, so that every other error is tried again. The last of several lines for one item
    /// counts.
    ///
    /// # Errors
    /// A line that is no answer of this program, was answered by another system, or answers what
    /// the input does not ask: then the file belongs to another job.
    pub fn read(
        existing: &[u8],
        path: &str,
        items: &[Item],
        system_fingerprint: &str,
    ) -> Result<Resume, JobError> {
        let whole = existing.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let index = Index::new(items);
        let mut kept = vec![None; items.len()];
        let mut start = 0;
        for (number, bytes) in existing[..whole].split_inclusive(|byte| *byte == b'\n').enumerate()
        {
            let range = start as u64..(start + bytes.len()) as u64;
            start += bytes.len();
            let line = number + 1;
            let foreign = || JobError::ResumeForeign { path: path.to_owned(), line };
            let told: OutputLine = serde_json::from_slice(bytes).map_err(|_| foreign())?;
            match (&told.response, &told.error) {
                (Some(response), None) => {
                    let found = &response.body.system_fingerprint;
                    if found != system_fingerprint {
                        return Err(other_system(path, line, found, system_fingerprint));
                    }
                    let Some(item) = index.by_id.get(told.custom_id.as_str()) else {
                        return Err(JobError::ResumeUnasked {
                            path: path.to_owned(),
                            line,
                            custom_id: told.custom_id,
                        });
                    };
                    if let Item::Request(request) = &items[*item]
                        && request_id(request) == response.request_id
                    {
                        kept[*item] = Some(range);
                    }
                }
                (None, Some(error)) => {
                    if let Some(item) = index.by_line.get(&error.line)
                        && let Item::Error(now) = &items[*item]
                        && error_line(now) == bytes
                    {
                        kept[*item] = Some(range);
                    }
                }
                _ => return Err(foreign()),
            }
        }
        Ok(Resume { whole_bytes: whole as u64, kept })
    }
}

/// Why an answer of the system `found` cannot stand beside those of `expected`.
fn other_system(path: &str, line: usize, found: &str, expected: &str) -> JobError {
    let path = path.to_owned();
    let [(hash, kernels), (wanted, ours)] = [found, expected].map(hash_and_kernels);
    if hash == wanted && !kernels.is_empty() {
        let (found, expected) = (kernels.to_owned(), ours.to_owned());
        return JobError::ResumeKernels { path, line, found, expected };
    }
    JobError::ResumeFingerprint {
        path,
        line,
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

/// Items by what a line of the output says of its request.
struct Index<'a> {
    by_id: HashMap<&'a str, usize>,
    by_line: HashMap<usize, usize>,
}

impl<'a> Index<'a> {
    fn new(items: &'a [Item]) -> Index<'a> {
        let mut by_id = HashMap::new();
        let mut by_line = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            by_line.insert(item.line(), index);
            match item {
                Item::Request(request) => {
                    by_id.insert(request.custom_id.as_str(), index);
                }
                // An id that is now an error was still asked; a request of that id goes first.
                Item::Error(error) => {
                    by_id.entry(error.custom_id.as_str()).or_insert(index);
                }
            }
        }
        Index { by_id, by_line }
    }
}
