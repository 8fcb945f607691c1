//! Comparison of an existing output with the input: which items are already answered.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::error::JobError;
use super::unfinished::Unfinished;
use crate::openai::fingerprint::{hash_and_kernels, request_id};
use crate::openai::item::Item;
use crate::openai::output::{
    Completion, Done, ErrorBody, FinishReason, OutputLine, PartialAnswer, ResponseBody, error_line,
};

/// Properties of the job that wrote an output, taken from its first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

impl Recorded {
    /// Returns `None` if there is no answer. Foreign lines are ignored here; [`Resume::read`]
    /// reports them.
    pub fn read(existing: &[u8]) -> Option<Recorded> {
        let lines = whole_lines(existing).split_inclusive(|byte| *byte == b'\n');
        lines.filter_map(|bytes| serde_json::from_slice::<OutputLine>(bytes).ok()).find_map(
            |line| {
                if let Some(response) = line.response {
                    let ResponseBody { created, model, system_fingerprint, .. } = response.body;
                    return Some(Recorded { created, model, system_fingerprint });
                }
                let PartialAnswer { created, model, system_fingerprint, .. } = *line.error?.made?;
                Some(Recorded { created, model, system_fingerprint })
            },
        )
    }
}

/// Items that an existing output answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// Length of all complete lines, in bytes; a torn line may follow.
    pub whole_bytes: u64,
    /// Position of each item's line in the file; `None` if it has none.
    pub kept: Vec<Option<Range<u64>>>,
    /// Outcome of each item's kept answer.
    pub ended: Vec<Completion>,
    /// Answers made so far for each item without a line.
    pub unfinished: Vec<Unfinished>,
    /// Number of answers that the input no longer requests.
    pub replaced: usize,
}

impl Resume {
    /// Returns the state in which no item is answered.
    pub fn nothing(items: &[Item]) -> Resume {
        Resume {
            whole_bytes: 0,
            kept: vec![None; items.len()],
            ended: vec![Completion::default(); items.len()],
            unfinished: items.iter().map(Unfinished::nothing).collect(),
            replaced: 0,
        }
    }

    /// Matches the lines of `existing` with the input's items. An answer is kept if its request is
    /// unchanged and each of its choices follows the required grammar; an error line only if the
    /// same line still gives the same error, so that every other error is tried again. The last of
    /// several lines for one item counts. Answers to anything else are left out with `replaces`,
    /// and are an error without it.
    ///
    /// # Errors
    /// Returns an error if a line was not written by this program, was answered by another system,
    /// or answers something that the input does not request: the file then belongs to another job.
    pub fn read(
        existing: &[u8],
        path: &str,
        items: &[Item],
        system_fingerprint: &str,
        replaces: bool,
    ) -> Result<Resume, JobError> {
        let whole = whole_lines(existing);
        let index = Index::new(items);
        let Resume { mut kept, mut ended, mut unfinished, .. } = Resume::nothing(items);
        let mut others = BTreeMap::new();
        let mut start = 0;
        for (number, bytes) in whole.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let range = start as u64..(start + bytes.len()) as u64;
            start += bytes.len();
            let line = number + 1;
            let foreign = || JobError::ResumeForeign { path: path.to_owned(), line };
            let answer: OutputLine = serde_json::from_slice(bytes).map_err(|_| foreign())?;
            match (&answer.response, &answer.error) {
                (Some(response), None) => {
                    let found = &response.body.system_fingerprint;
                    if found != system_fingerprint {
                        return Err(other_system(path, line, found, system_fingerprint));
                    }
                    let item = index.by_id.get(answer.custom_id.as_str()).copied();
                    match item.map(|item| (item, &items[item])) {
                        Some((item, Item::Request(request)))
                            if request_id(request) == response.request_id =>
                        {
                            ended[item] = Completion::of(request, &response.body.choices);
                            kept[item] = (!ended[item].failed).then_some(range);
                        }
                        _ => {
                            others.entry(answer.custom_id).or_insert((line, item));
                        }
                    }
                }
                (None, Some(ErrorBody { made: Some(found), .. })) => {
                    let fingerprint = &found.system_fingerprint;
                    if fingerprint != system_fingerprint {
                        return Err(other_system(path, line, fingerprint, system_fingerprint));
                    }
                    let item = index.by_id.get(answer.custom_id.as_str()).copied();
                    match item.map(|item| (item, &items[item])) {
                        Some((item, Item::Request(request)))
                            if request_id(request) == found.request_id =>
                        {
                            let is_good =
                                |done: &&Done| done.choice.finish_reason() != FinishReason::Error;
                            for done in found.choices.iter().filter(is_good) {
                                let place = unfinished[item].made.get_mut(done.choice.index());
                                *place.ok_or_else(foreign)? = Some(done.clone());
                            }
                            unfinished[item].lines.push(range);
                        }
                        _ => {
                            others.entry(answer.custom_id).or_insert((line, item));
                        }
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
        for (item, _) in kept.iter().enumerate().filter(|(_, kept)| kept.is_some()) {
            unfinished[item] = Unfinished::default();
        }
        // A replaced answer may still precede the one that replaced it.
        let is_answered =
            |item: usize| matches!(items[item], Item::Request(_)) && kept[item].is_some();
        others.retain(|_, (_, item)| !item.is_some_and(is_answered));
        let replaced = others.len();
        let first = others.iter().min_by_key(|(_, (line, _))| *line);
        if let (Some((custom_id, (line, _))), false) = (first, replaces) {
            let unasked = others.values().filter(|(_, item)| item.is_none()).count();
            let answers = items.iter().zip(&kept);
            let kept =
                answers.filter(|(item, line)| matches!(item, Item::Request(_)) && line.is_some());
            return Err(JobError::ResumeOther {
                path: path.to_owned(),
                kept: kept.count(),
                changed: replaced - unasked,
                unasked,
                line: *line,
                custom_id: custom_id.clone(),
            });
        }
        let whole_bytes = whole.len() as u64;
        Ok(Resume { whole_bytes, kept, ended, unfinished, replaced })
    }
}

/// Returns the complete lines, without a torn line at the end.
pub fn whole_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)]
}

/// Returns the error for an answer of the system `found` in an output of the system `expected`.
pub fn other_system(path: &str, line: usize, found: &str, expected: &str) -> JobError {
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

/// Items by the ID and by the input line that an output line names.
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
                // An ID whose line is now an error was still requested; a valid request with this
                // ID takes precedence.
                Item::Error(error) => {
                    by_id.entry(error.custom_id.as_str()).or_insert(index);
                }
            }
        }
        Index { by_id, by_line }
    }
}
