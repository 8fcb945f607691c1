//! Comparison of an existing output with the input: which items are already answered.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use openai::fingerprint::{hash_and_kernels, request_id};
use openai::input_line::InputLine;
use openai::output::{
    Completion, ErrorBody, FinishReason, FinishedChoice, OutputLine, PartialResponse, ResponseBody,
    error_line,
};

use super::error::JobError;
use super::unfinished::UnfinishedAnswers;

/// Properties of the job that wrote an output, taken from its first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProvenance {
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

impl RecordedProvenance {
    /// Returns `None` if there is no answer. Foreign lines are ignored here;
    /// [`ResumeState::from_output`] reports them.
    pub fn from_output(existing: &[u8]) -> Option<RecordedProvenance> {
        let lines = complete_lines(existing).split_inclusive(|byte| *byte == b'\n');
        lines.filter_map(|bytes| serde_json::from_slice::<OutputLine>(bytes).ok()).find_map(
            |line| {
                if let Some(response) = line.response {
                    let ResponseBody { created, model, system_fingerprint, .. } = response.body;
                    return Some(RecordedProvenance { created, model, system_fingerprint });
                }
                let PartialResponse { created, model, system_fingerprint, .. } =
                    *line.error?.made?;
                Some(RecordedProvenance { created, model, system_fingerprint })
            },
        )
    }
}

/// Items that an existing output answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumeState {
    /// Length of all complete lines, in bytes; a torn line may follow.
    pub complete_bytes: u64,
    /// Position of each item's line in the file; `None` if it has none.
    pub kept_lines: Vec<Option<Range<u64>>>,
    /// Outcome of each item's kept answer.
    pub completions: Vec<Completion>,
    /// Answers made so far for each item without a line.
    pub unfinished: Vec<UnfinishedAnswers>,
    /// Number of answers that the input no longer requests.
    pub replaced: usize,
}

impl ResumeState {
    /// Returns the state in which no item is answered.
    pub fn empty(items: &[InputLine]) -> ResumeState {
        ResumeState {
            complete_bytes: 0,
            kept_lines: vec![None; items.len()],
            completions: vec![Completion::default(); items.len()],
            unfinished: items.iter().map(UnfinishedAnswers::empty).collect(),
            replaced: 0,
        }
    }

    /// Matches the lines of `existing` with the input's items. An answer is kept if its request is
    /// unchanged and each of its choices follows the required grammar; an error line only if the
    /// same line still gives the same error, so that every other error is tried again. The last of
    /// several lines for one item counts. Answers to anything else are left out with
    /// `replaces_others`, and are an error without it.
    ///
    /// # Errors
    /// Returns an error if a line was not written by this program, was answered by another system,
    /// or answers something that the input does not request: the file then belongs to another job.
    pub fn from_output(
        existing: &[u8],
        path: &str,
        items: &[InputLine],
        system_fingerprint: &str,
        replaces_others: bool,
    ) -> Result<ResumeState, JobError> {
        let complete = complete_lines(existing);
        let index = InputIndex::new(items);
        let ResumeState { mut kept_lines, mut completions, mut unfinished, .. } =
            ResumeState::empty(items);
        let mut unmatched = BTreeMap::new();
        let mut start = 0;
        for (number, bytes) in complete.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let range = start as u64..(start + bytes.len()) as u64;
            start += bytes.len();
            let line = number + 1;
            let check = |found: &str| check_fingerprint(path, line, found, system_fingerprint);
            let foreign = || JobError::ResumeForeign { path: path.to_owned(), line };
            let answer: OutputLine = serde_json::from_slice(bytes).map_err(|_| foreign())?;
            let item = index.by_id.get(answer.custom_id.as_str()).copied();
            match (&answer.response, &answer.error) {
                (Some(response), None) => {
                    check(&response.body.system_fingerprint)?;
                    match item.map(|item| (item, &items[item])) {
                        Some((item, InputLine::Request(request)))
                            if request_id(request) == response.request_id =>
                        {
                            completions[item] =
                                Completion::from_choices(request, &response.body.choices);
                            kept_lines[item] = (!completions[item].has_failed).then_some(range);
                        }
                        _ => {
                            unmatched.entry(answer.custom_id).or_insert((line, item));
                        }
                    }
                }
                (None, Some(ErrorBody { made: Some(found), .. })) => {
                    check(&found.system_fingerprint)?;
                    match item.map(|item| (item, &items[item])) {
                        Some((item, InputLine::Request(request)))
                            if request_id(request) == found.request_id =>
                        {
                            let is_good = |done: &&FinishedChoice| {
                                done.choice.finish_reason() != FinishReason::Error
                            };
                            for done in found.choices.iter().filter(is_good) {
                                let place = unfinished[item].choices.get_mut(done.choice.index());
                                *place.ok_or_else(foreign)? = Some(done.clone());
                            }
                            unfinished[item].lines.push(range);
                        }
                        _ => {
                            unmatched.entry(answer.custom_id).or_insert((line, item));
                        }
                    }
                }
                (None, Some(error)) => {
                    if let Some(item) = index.by_line.get(&error.line)
                        && let InputLine::Error(now) = &items[*item]
                        && error_line(now) == bytes
                    {
                        kept_lines[*item] = Some(range);
                    }
                }
                _ => return Err(foreign()),
            }
        }
        for (item, _) in kept_lines.iter().enumerate().filter(|(_, kept)| kept.is_some()) {
            unfinished[item] = UnfinishedAnswers::default();
        }
        // A replaced answer may still precede the one that replaced it.
        let is_answered = |item: usize| {
            matches!(items[item], InputLine::Request(_)) && kept_lines[item].is_some()
        };
        unmatched.retain(|_, (_, item)| !item.is_some_and(is_answered));
        let replaced = unmatched.len();
        let first = unmatched.iter().min_by_key(|(_, (line, _))| *line);
        if let (Some((custom_id, (line, _))), false) = (first, replaces_others) {
            let unasked = unmatched.values().filter(|(_, item)| item.is_none()).count();
            let answers = items.iter().zip(&kept_lines);
            let kept = answers
                .filter(|(item, line)| matches!(item, InputLine::Request(_)) && line.is_some());
            return Err(JobError::ResumeOther {
                path: path.to_owned(),
                kept: kept.count(),
                changed: replaced - unasked,
                unasked,
                line: *line,
                custom_id: custom_id.clone(),
            });
        }
        let complete_bytes = complete.len() as u64;
        Ok(ResumeState { complete_bytes, kept_lines, completions, unfinished, replaced })
    }
}

/// Returns the complete lines, without a torn line at the end.
pub fn complete_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)]
}

/// Checks that an answer was given by the system `expected`.
///
/// # Errors
/// Returns an error if it was given by the system `found`, another one.
pub fn check_fingerprint(
    path: &str,
    line: usize,
    found: &str,
    expected: &str,
) -> Result<(), JobError> {
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
    fn new(items: &'a [InputLine]) -> InputIndex<'a> {
        let mut by_id = HashMap::new();
        let mut by_line = HashMap::new();
        for (index, item) in items.iter().enumerate() {
            by_line.insert(item.line(), index);
            match item {
                InputLine::Request(request) => {
                    by_id.insert(request.custom_id.as_str(), index);
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
