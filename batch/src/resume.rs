//! Comparison of an existing output with the input: which items are already answered.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use openai::fingerprint::hash_and_kernels;
use openai::input_line::InputLine;

use super::error::JobError;
use super::kind::{
    JobKind, JobRequest, RecordedContent, RecordedLine, RecordedResults, line_number,
};
use super::unfinished::UnfinishedAnswers;

/// Items that an existing output answers.
#[derive(Debug)]
pub(super) struct ResumeState<K: JobKind> {
    /// Length of all complete lines, in bytes; a torn line may follow.
    pub(super) complete_bytes: u64,
    /// Position of each item's line in the file; `None` if it has none.
    pub(super) kept_lines: Vec<Option<Range<u64>>>,
    /// Facts about each item's kept answer.
    pub(super) outcomes: Vec<K::Outcome>,
    /// Answers made so far for each item without a line.
    pub(super) unfinished: Vec<UnfinishedAnswers<K::Part>>,
    /// Number of answers that the input no longer requests.
    pub(super) replaced: usize,
}

/// Answers that the input does not request, by ID: the number of the first output line, and the
/// item with this ID, if any.
type UnmatchedAnswers = BTreeMap<String, (usize, Option<usize>)>;

impl<K: JobKind> ResumeState<K> {
    /// Matches the lines of `existing`, the output named `path`, with the input's items. An answer
    /// is kept if its request is unchanged and its kind finds no fault in it; an error line only if
    /// the same line still gives the same error, so that every other error is tried again. The last
    /// of several lines for one item counts. Answers to anything else are left out with
    /// `replaces_others`, and are an error without it.
    ///
    /// # Errors
    /// Returns an error if a line was not written by this program, was answered by another system,
    /// or answers something that the input does not request: the file then belongs to another job.
    pub(super) fn from_output(
        kind: &K,
        existing: &[u8],
        path: &str,
        items: &[InputLine<K::Request>],
        replaces_others: bool,
    ) -> Result<ResumeState<K>, JobError> {
        let complete = complete_lines(existing);
        let mut state = ResumeState {
            complete_bytes: complete.len() as u64,
            kept_lines: vec![None; items.len()],
            outcomes: vec![K::Outcome::default(); items.len()],
            unfinished: items.iter().map(UnfinishedAnswers::empty).collect(),
            replaced: 0,
        };
        let index = InputIndex::new(items);
        let mut unmatched = UnmatchedAnswers::new();
        let mut start = 0;
        for (bytes, line) in complete.split_inclusive(|byte| *byte == b'\n').zip(1..) {
            let range = start..start + bytes.len() as u64;
            start = range.end;
            let foreign = || JobError::ResumeForeign { path: path.to_owned(), line };
            let RecordedLine { custom_id, content } =
                K::parse_output_line(bytes).ok_or_else(foreign)?;
            let (system, request_id, results) = match content {
                RecordedContent::Results { system_fingerprint, request_id, results } => {
                    (system_fingerprint, request_id, results)
                }
                RecordedContent::Error { line } => {
                    let item = index.by_line.get(&line).copied();
                    let error = item.and_then(|item| items[item].error());
                    if let (Some(item), Some(error)) = (item, error)
                        && K::error_line(error) == bytes
                    {
                        state.kept_lines[item] = Some(range);
                    }
                    continue;
                }
            };
            check_fingerprint(path, line, &system, kind.system_fingerprint())?;
            let item = index.by_id.get(custom_id.as_str()).copied();
            let request = item.and_then(|item| Some((item, items[item].request()?)));
            match request.filter(|(_, request)| kind.request_id(request) == request_id) {
                Some((item, request)) => {
                    state.keep(kind, item, request, results, range).ok_or_else(foreign)?;
                }
                None => drop(unmatched.entry(custom_id).or_insert((line, item))),
            }
        }
        state.finish(path, items, unmatched, replaces_others)
    }

    /// Keeps the results of a line for an item. Returns `None` if there is a result of a sequence
    /// that the request does not have.
    fn keep(
        &mut self,
        kind: &K,
        item: usize,
        request: &K::Request,
        results: RecordedResults<K>,
        range: Range<u64>,
    ) -> Option<()> {
        match results {
            RecordedResults::Complete(answer) => {
                let (outcome, is_kept) = kind.recorded_outcome(request, &answer);
                self.outcomes[item] = outcome;
                self.kept_lines[item] = is_kept.then_some(range);
            }
            RecordedResults::Partial(parts) => {
                let unfinished = &mut self.unfinished[item];
                for (sequence, part) in parts {
                    *unfinished.parts.get_mut(sequence)? = Some(part);
                }
                unfinished.lines.push(range);
            }
        }
        Some(())
    }

    /// Counts the answers that the input does not request.
    fn finish(
        mut self,
        path: &str,
        items: &[InputLine<K::Request>],
        mut unmatched: UnmatchedAnswers,
        replaces_others: bool,
    ) -> Result<ResumeState<K>, JobError> {
        for (unfinished, kept) in self.unfinished.iter_mut().zip(&self.kept_lines) {
            if kept.is_some() {
                *unfinished = UnfinishedAnswers::default();
            }
        }
        // A replaced answer may still precede the one that replaced it.
        let is_answered =
            |item: usize| items[item].request().is_some() && self.kept_lines[item].is_some();
        unmatched.retain(|_, (_, item)| !item.is_some_and(is_answered));
        self.replaced = unmatched.len();
        let first = unmatched.iter().min_by_key(|(_, (line, _))| *line);
        if let (Some((custom_id, (line, _))), false) = (first, replaces_others) {
            let unasked = unmatched.values().filter(|(_, item)| item.is_none()).count();
            return Err(JobError::ResumeOther {
                path: path.to_owned(),
                kept: (0..items.len()).filter(|item| is_answered(*item)).count(),
                changed: unmatched.len() - unasked,
                unasked,
                line: *line,
                custom_id: custom_id.clone(),
            });
        }
        Ok(self)
    }
}

/// Returns the complete lines, without a torn line at the end.
pub(super) fn complete_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)]
}

/// Checks that an answer was given by the system `expected`.
///
/// # Errors
/// Returns an error if it was given by the system `found`, another one.
fn check_fingerprint(path: &str, line: usize, found: &str, expected: &str) -> Result<(), JobError> {
    if found == expected {
        return Ok(());
    }
    let path = path.to_owned();
    let [(hash, kernels), (wanted, ours)] = [found, expected].map(hash_and_kernels);
    let is_same_model = hash == wanted && !kernels.is_empty();
    let [found, expected] =
        if is_same_model { [kernels, ours] } else { [found, expected] }.map(str::to_owned);
    Err(match is_same_model {
        true => JobError::ResumeKernels { path, line, found, expected },
        false => JobError::ResumeFingerprint { path, line, found, expected },
    })
}

/// Items by the ID and by the input line that an output line names.
struct InputIndex<'a> {
    by_id: HashMap<&'a str, usize>,
    by_line: HashMap<usize, usize>,
}

impl<'a> InputIndex<'a> {
    fn new<R: JobRequest>(items: &'a [InputLine<R>]) -> InputIndex<'a> {
        let mut by_id = HashMap::new();
        let mut by_line = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            by_line.insert(line_number(item), index);
            match item {
                InputLine::Request(request) => {
                    by_id.insert(request.custom_id(), index);
                }
                // An ID whose line is now an error was still requested; a valid request with this
                // ID takes precedence.
                InputLine::Error(error) => {
                    by_id.entry(error.custom_id.as_str()).or_insert(index);
                }
            }
        }
        InputIndex { by_id, by_line }
    }
}
