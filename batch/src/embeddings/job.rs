//! The kind of job that computes embeddings.

use engine_api::batch::EngineError;
use engine_api::event::{FinishCause, Logprob};
use engine_api::request::GenerationRequest;
use openai::embeddings::line::{EmbeddingLine, embedding_line, not_finite_line};
use openai::embeddings::request::EmbeddingRequest;
use openai::embeddings::response::EmbeddingList;
use openai::embeddings::vector::embedding;
use openai::input_line::LineError;
use openai::output::error_line;

use crate::completions::summarize;
use crate::error::JobError;
use crate::eta::PlannedSequence;
use crate::kind::{
    EndedJob, JobKind, JobRequest, RecordedContent, RecordedLine, RecordedResults, RunningSequence,
};
use crate::run::Job;
use crate::summary::JobSummary;

/// A job that computes embeddings.
pub type EmbeddingJob = Job<Embeddings>;

/// Embeddings by one model.
#[derive(Debug)]
pub struct Embeddings {
    /// Name of the model in answers.
    pub model: String,
    pub system_fingerprint: String,
}

/// Facts about a request that has an output line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbeddingOutcome {
    pub(crate) has_failed: bool,
}

impl JobRequest for EmbeddingRequest {
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
        self.inputs.len()
    }
}

impl JobKind for Embeddings {
    type Request = EmbeddingRequest;
    /// `None` if the hidden states are not finite.
    type Part = Option<Vec<f32>>;
    type Answer = EmbeddingList;
    type Outcome = EmbeddingOutcome;
    type Sequence<'s> = RunningEmbedding<'s>;
    type Summary = JobSummary;

    const LINES_NOUN: &'static str = "lines";

    fn system_fingerprint(&self) -> &str {
        &self.system_fingerprint
    }

    fn request_id(&self, request: &EmbeddingRequest) -> String {
        request.request_id()
    }

    fn planned(&self, request: &EmbeddingRequest, input: usize) -> PlannedSequence {
        PlannedSequence { prompt_tokens: request.inputs[input].len() as u32, max_new: 1 }
    }

    fn generation_request(&self, request: &EmbeddingRequest, input: usize) -> GenerationRequest {
        request.generation_request(input)
    }

    fn begin<'s>(&'s self, request: &'s EmbeddingRequest, _input: usize) -> RunningEmbedding<'s> {
        RunningEmbedding { request, hidden: None }
    }

    fn complete_line(
        &self,
        request: &EmbeddingRequest,
        parts: Vec<Option<Vec<f32>>>,
    ) -> (Vec<u8>, EmbeddingOutcome) {
        if let Some(input) = parts.iter().position(Option::is_none) {
            return (not_finite_line(request, input), EmbeddingOutcome { has_failed: true });
        }
        let list = EmbeddingList {
            system_fingerprint: Some(self.system_fingerprint.clone()),
            ..EmbeddingList::new(request, parts.into_iter().flatten().collect(), &self.model)
        };
        (embedding_line(request, list), EmbeddingOutcome { has_failed: false })
    }

    fn error_line(error: &LineError) -> Vec<u8> {
        error_line(error)
    }

    fn parse_output_line(line: &[u8]) -> Option<RecordedLine<Embeddings>> {
        let EmbeddingLine { custom_id, response, error, .. } = serde_json::from_slice(line).ok()?;
        let content = match (response, error) {
            (Some(response), None) => RecordedContent::Results {
                system_fingerprint: response.body.system_fingerprint.clone()?,
                request_id: response.request_id,
                results: RecordedResults::Complete(response.body),
            },
            (None, Some(error)) => RecordedContent::Error { line: error.line },
            _ => return None,
        };
        Some(RecordedLine { custom_id, content })
    }

    fn recorded_outcome(
        &self,
        _: &EmbeddingRequest,
        _: &EmbeddingList,
    ) -> (EmbeddingOutcome, bool) {
        (EmbeddingOutcome { has_failed: false }, true)
    }

    fn summary(&self, ended: EndedJob<'_, Embeddings>) -> JobSummary {
        summarize(&ended, |outcome| outcome.has_failed, |_| 1)
    }
}

/// An input whose embedding is being computed.
#[derive(Debug)]
pub struct RunningEmbedding<'s> {
    request: &'s EmbeddingRequest,
    hidden: Option<Vec<f32>>,
}

impl RunningSequence for RunningEmbedding<'_> {
    type Part = Option<Vec<f32>>;

    fn on_prompt(&mut self, _cached_tokens: u32, _logprobs: Vec<Logprob>) {}

    fn on_pooled(&mut self, hidden: Vec<f32>) {
        self.hidden = Some(hidden);
    }

    fn finish(self, cause: FinishCause) -> Result<(Option<Vec<f32>>, u32), JobError> {
        if cause == FinishCause::NotFinite {
            return Ok((None, 0));
        }
        let hidden = self.hidden.ok_or_else(|| {
            let sentence = "The engine finished a sequence without its hidden states.";
            JobError::Engine(EngineError::Failed(sentence.to_owned()))
        })?;
        Ok((embedding(&hidden, self.request.dimensions), 1))
    }
}
