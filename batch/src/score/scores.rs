//! The kind of job that scores continuations.

use std::cell::Cell;

use engine_api::batch::EngineError;
use engine_api::event::{FinishCause, Logprob};
use engine_api::request::GenerationRequest;
use openai::input_line::LineError;

use super::output::{Score, ScoreLine, error_line, not_finite_line, score_line};
use super::question::{ScoreDetails, ScoreQuestion};
use super::summary::{ScoreSummary, ScoreTotals};
use super::windows::WindowSizes;
use crate::error::JobError;
use crate::eta::PlannedSequence;
use crate::kind::{
    EndedJob, JobKind, JobRequest, RecordedContent, RecordedLine, RecordedResults, RunningSequence,
};
use crate::run::Job;

/// A job that scores continuations.
pub type ScoreJob = Job<Scores>;

/// Scores of continuations.
#[derive(Debug)]
pub struct Scores {
    details: ScoreDetails,
    /// Window sizes, if the input is a text; its windows are then the questions.
    windows: Option<WindowSizes>,
    system_fingerprint: String,
    /// Rows of the continuations that were scored.
    rows: Cell<RowCounts>,
}

/// Numbers of rows of prompts and continuations.
#[derive(Debug, Clone, Copy, Default)]
struct RowCounts {
    computed: u64,
    cached: u64,
}

impl Scores {
    pub(super) fn new(
        details: ScoreDetails,
        windows: Option<WindowSizes>,
        system_fingerprint: String,
    ) -> Scores {
        Scores { details, windows, system_fingerprint, rows: Cell::default() }
    }
}

impl JobRequest for ScoreQuestion {
    fn line(&self) -> usize {
        self.line
    }

    fn custom_id(&self) -> &str {
        &self.custom_id
    }

    fn set_custom_id(&mut self, custom_id: String) {
        self.custom_id = custom_id;
    }

    fn sequence_count(&self) -> usize {
        self.continuations.len()
    }
}

impl JobKind for Scores {
    type Request = ScoreQuestion;
    /// `None` if the logits are not finite.
    type Part = Option<Score>;
    type Answer = Vec<Score>;
    type Outcome = ScoreTotals;
    type Sequence<'s> = RunningContinuation<'s>;
    type Summary = ScoreSummary;

    const LINES_NOUN: &'static str = "lines";

    fn system_fingerprint(&self) -> &str {
        &self.system_fingerprint
    }

    fn request_id(&self, question: &ScoreQuestion) -> String {
        question.request_id(self.details)
    }

    fn planned(&self, question: &ScoreQuestion, continuation: usize) -> PlannedSequence {
        let prompt_tokens = question.prompt.len() + question.continuations[continuation].len();
        PlannedSequence { prompt_tokens: prompt_tokens as u32, max_new: 0 }
    }

    fn generation_request(
        &self,
        question: &ScoreQuestion,
        continuation: usize,
    ) -> GenerationRequest {
        let tokens = [&question.prompt[..], &question.continuations[continuation]].concat();
        GenerationRequest {
            any_logits: false,
            prompt_logprobs: self.details.logprobs(),
            prompt_logprobs_from: question.prompt.len() as u32,
            ..GenerationRequest::greedy(tokens, 0)
        }
    }

    fn begin<'s>(
        &'s self,
        question: &'s ScoreQuestion,
        continuation: usize,
    ) -> RunningContinuation<'s> {
        RunningContinuation { kind: self, question, continuation, found: None }
    }

    fn complete_line(
        &self,
        question: &ScoreQuestion,
        scores: Vec<Option<Score>>,
    ) -> (Vec<u8>, ScoreTotals) {
        if let Some(continuation) = scores.iter().position(Option::is_none) {
            return (not_finite_line(question, continuation), ScoreTotals::default());
        }
        let scores: Vec<Score> = scores.into_iter().flatten().collect();
        let totals = ScoreTotals::from_scores(&scores);
        (score_line(question, scores, self.details, &self.system_fingerprint), totals)
    }

    fn error_line(error: &LineError) -> Vec<u8> {
        error_line(error)
    }

    fn parse_output_line(line: &[u8]) -> Option<RecordedLine<Scores>> {
        let ScoreLine { custom_id, scores, error, request_id, system_fingerprint } =
            serde_json::from_slice(line).ok()?;
        let content = match scores {
            None => RecordedContent::Error { line: error.map_or(0, |error| error.line) },
            Some(scores) => RecordedContent::Results {
                system_fingerprint: system_fingerprint?,
                request_id: request_id?,
                results: RecordedResults::Complete(scores),
            },
        };
        Some(RecordedLine { custom_id, content })
    }

    fn recorded_outcome(&self, _: &ScoreQuestion, scores: &Vec<Score>) -> (ScoreTotals, bool) {
        (ScoreTotals::from_scores(scores), true)
    }

    fn summary(&self, ended: EndedJob<'_, Scores>) -> ScoreSummary {
        let EndedJob { lines, outcomes, interrupted, resumable, elapsed, .. } = ended;
        let RowCounts { computed, cached } = self.rows.get();
        let has_failed = |totals: &ScoreTotals| totals.continuations == 0;
        let written = lines.iter().zip(outcomes).filter(|(line, _)| line.is_some());
        ScoreSummary {
            failed: written.filter(|(_, totals)| has_failed(totals)).count(),
            not_run: lines.iter().filter(|line| line.is_none()).count(),
            computed_tokens: computed,
            cached_tokens: cached,
            seconds: elapsed.as_secs_f64(),
            interrupted,
            resumable,
            ..ScoreSummary::from_totals(outcomes, self.windows)
        }
    }
}

/// A continuation that is being scored.
#[derive(Debug)]
pub struct RunningContinuation<'s> {
    kind: &'s Scores,
    question: &'s ScoreQuestion,
    continuation: usize,
    /// Number of tokens found in caches, and log-probabilities.
    found: Option<(u32, Vec<Logprob>)>,
}

impl RunningSequence for RunningContinuation<'_> {
    type Part = Option<Score>;

    fn on_prompt(&mut self, cached_tokens: u32, logprobs: Vec<Logprob>) {
        self.found = Some((cached_tokens, logprobs));
    }

    fn finish(self, _cause: FinishCause) -> Result<(Option<Score>, u32), JobError> {
        let RunningContinuation { kind, question, continuation, found } = self;
        let (cached, logprobs) = found.ok_or_else(|| {
            let sentence = "The engine finished a sequence without log-probabilities.";
            JobError::Engine(EngineError::Failed(sentence.to_owned()))
        })?;
        // The last token is scored, but not computed.
        let all = question.prompt.len() + question.continuations[continuation].len() - 1;
        let RowCounts { computed, cached: known } = kind.rows.get();
        let cached = u64::from(cached);
        kind.rows.set(RowCounts {
            computed: computed + (all as u64).saturating_sub(cached),
            cached: known + cached,
        });
        Ok((Score::new(&logprobs, kind.details), 0))
    }
}
