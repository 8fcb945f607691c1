//! Comparison of an existing output with the input: which items are already scored.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use openai::output::ErrorBody;

use super::output::{ScoreLine, error_line};
use super::question::{ScoreDetails, ScoreInputLine};
use super::summary::ScoreTotals;
use crate::error::JobError;
use crate::resume::{check_fingerprint, complete_lines};

/// Items that an existing output already contains.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScoreResumeState {
    /// Length of all complete lines, in bytes; a torn line may follow.
    pub(super) complete_bytes: u64,
    /// Position of each item's line in the file; `None` if it has none.
    pub(super) kept_lines: Vec<Option<Range<u64>>>,
    /// Totals of the scores in these lines, for each item.
    pub(super) totals: Vec<ScoreTotals>,
    /// Number of scores that the input no longer requests.
    pub(super) replaced: usize,
}

impl ScoreResumeState {
    /// Returns the state in which no item is scored.
    pub(super) fn empty(items: &[ScoreInputLine]) -> ScoreResumeState {
        ScoreResumeState {
            complete_bytes: 0,
            kept_lines: vec![None; items.len()],
            totals: vec![ScoreTotals::default(); items.len()],
            replaced: 0,
        }
    }

    /// Matches the lines of `existing` with the input's items, like those of a batch job: scores
    /// are kept if the question is unchanged, an error if the same line still gives it. Other
    /// scores are left out with `replaces_others`, and are an error without it.
    ///
    /// # Errors
    /// Returns an error if a line was not written by this program, was scored by another system, or
    /// answers something that the input does not request.
    pub(super) fn from_output(
        existing: &[u8],
        path: &str,
        items: &[ScoreInputLine],
        shown: ScoreDetails,
        system_fingerprint: &str,
        replaces_others: bool,
    ) -> Result<ScoreResumeState, JobError> {
        // Among items with equal IDs the first one is valid, and the others are errors.
        let by_id: HashMap<&str, usize> =
            items.iter().enumerate().rev().map(|(index, item)| (item.custom_id(), index)).collect();
        let whole = complete_lines(existing);
        let mut resume = ScoreResumeState::empty(items);
        resume.complete_bytes = whole.len() as u64;
        let (mut unmatched, mut start) = (BTreeMap::new(), 0);
        for (bytes, line) in whole.split_inclusive(|byte| *byte == b'\n').zip(1..) {
            let range = start..start + bytes.len() as u64;
            start = range.end;
            let foreign = || JobError::ResumeForeign { path: path.to_owned(), line };
            let found: ScoreLine = serde_json::from_slice(bytes).map_err(|_| foreign())?;
            let item = by_id.get(found.custom_id.as_str()).copied();
            let Some(scores) = &found.scores else {
                let same = |item: &usize| match &items[*item] {
                    ScoreInputLine::Error(error) => error_line(error) == bytes,
                    ScoreInputLine::Question(_) => false,
                };
                let of_line = |error: &ErrorBody| {
                    items.binary_search_by_key(&error.line, ScoreInputLine::line).ok()
                };
                if let Some(item) = found.error.as_ref().and_then(of_line).filter(same) {
                    resume.kept_lines[item] = Some(range);
                }
                continue;
            };
            let system = found.system_fingerprint.as_deref().ok_or_else(foreign)?;
            check_fingerprint(path, line, system, system_fingerprint)?;
            let same = |item: &usize| match &items[*item] {
                ScoreInputLine::Question(question) => {
                    found.request_id == Some(question.request_id(shown))
                }
                ScoreInputLine::Error(_) => false,
            };
            match item.filter(same) {
                Some(item) => {
                    resume.totals[item] = ScoreTotals::from_scores(scores);
                    resume.kept_lines[item] = Some(range);
                }
                None => drop(unmatched.entry(found.custom_id.clone()).or_insert((line, item))),
            }
        }
        unmatched
            .retain(|_, (_, item)| !item.is_some_and(|item| resume.kept_lines[item].is_some()));
        resume.replaced = unmatched.len();
        let first = unmatched.iter().min_by_key(|(_, (line, _))| *line);
        if let (Some((custom_id, (line, _))), false) = (first, replaces_others) {
            let unasked = unmatched.values().filter(|(_, item)| item.is_none()).count();
            return Err(JobError::ResumeOther {
                path: path.to_owned(),
                kept: resume.kept_lines.iter().flatten().count(),
                changed: unmatched.len() - unasked,
                unasked,
                line: *line,
                custom_id: custom_id.clone(),
            });
        }
        Ok(resume)
    }
}
