//! Kinds of jobs: what the lines of an input request, and what the lines of the output hold.

use std::fmt::Debug;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use engine_api::event::{FinishCause, Logprob};
use engine_api::request::GenerationRequest;
use grammar::Grammar;
use openai::input_line::{InputLine, LineError};

use super::error::JobError;
use super::eta::PlannedSequence;

/// A request of a job, for which an engine computes at least one sequence.
pub trait JobRequest: Debug {
    /// Returns the line of the input, or the number of the window of a text, from 1.
    fn line(&self) -> usize;

    /// Returns the identifier, which is unique among the requests of a job.
    fn custom_id(&self) -> &str;

    fn set_custom_id(&mut self, custom_id: String);

    /// Returns the number of sequences.
    fn sequence_count(&self) -> usize;
}

/// Returns the line of the input that an item was read from, from 1.
pub(crate) fn line_number<R: JobRequest>(item: &InputLine<R>) -> usize {
    match item {
        InputLine::Request(request) => request.line(),
        InputLine::Error(error) => error.line,
    }
}

/// A kind of job, with the parameters that all of its requests share.
pub trait JobKind: Debug + Sized {
    type Request: JobRequest;
    /// Result of a sequence.
    type Part: Debug + Clone;
    /// Content of the output line of a request without errors.
    type Answer: Debug;
    /// Facts about a request that has an output line.
    type Outcome: Debug + Clone + Default;
    /// A sequence that is being computed.
    type Sequence<'s>: RunningSequence<Part = Self::Part>
    where
        Self: 's;
    type Summary;

    /// Name of output lines in messages, in the plural.
    const LINES_NOUN: &'static str;

    /// Returns the fingerprint of the system that computes this job.
    fn system_fingerprint(&self) -> &str;

    /// Returns a hash of a request as the model sees it.
    fn request_id(&self, request: &Self::Request) -> String;

    /// Returns the lengths of a sequence.
    fn planned(&self, request: &Self::Request, sequence: usize) -> PlannedSequence;

    /// Returns what an engine has to compute for a sequence, without its grammar.
    fn generation_request(&self, request: &Self::Request, sequence: usize) -> GenerationRequest;

    /// Returns the grammar of a request's answers.
    fn grammar(_request: &Self::Request) -> Option<&Grammar> {
        None
    }

    /// Begins to follow a sequence.
    fn begin<'s>(&'s self, request: &'s Self::Request, sequence: usize) -> Self::Sequence<'s>;

    /// Returns the output line of a request, newline included, and the facts about it.
    fn complete_line(
        &self,
        request: &Self::Request,
        parts: Vec<Self::Part>,
    ) -> (Vec<u8>, Self::Outcome);

    /// Returns the output line of a request with some of its results, newline included; `None` if
    /// results are stored only when all of them are available.
    fn partial_line(&self, _request: &Self::Request, _parts: Vec<Self::Part>) -> Option<Vec<u8>> {
        None
    }

    /// Returns the output line of an invalid request, newline included.
    fn error_line(error: &LineError) -> Vec<u8>;

    /// Parses a line of an output; returns `None` if it was not written by this program.
    fn parse_output_line(line: &[u8]) -> Option<RecordedLine<Self>>;

    /// Returns the facts about a request with an answer from an output, and true if the answer is
    /// kept instead of being computed again.
    fn recorded_outcome(
        &self,
        request: &Self::Request,
        answer: &Self::Answer,
    ) -> (Self::Outcome, bool);

    /// Summarises a job that ended.
    fn summary(&self, ended: EndedJob<'_, Self>) -> Self::Summary;
}

/// One sequence of a request of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SequenceId {
    /// Index of the item.
    pub(crate) item: usize,
    /// Index within the request.
    pub(crate) index: usize,
}

/// A job that ended.
#[derive(Debug)]
pub struct EndedJob<'j, K: JobKind> {
    pub items: &'j [InputLine<K::Request>],
    /// Position of each item's line in the output; `None` if it has none.
    pub lines: &'j [Option<Range<u64>>],
    /// Facts about each item's answers.
    pub outcomes: &'j [K::Outcome],
    pub interrupted: bool,
    /// True if the lines are in a file, which another run can continue.
    pub resumable: bool,
    /// Duration of this run, without loading.
    pub elapsed: Duration,
}

/// Follows the events of a sequence.
pub trait RunningSequence {
    type Part;

    /// Reports that the prompt is computed, with the log-probabilities that were requested;
    /// `cached_tokens` of its tokens were found in caches.
    fn on_prompt(&mut self, cached_tokens: u32, logprobs: Vec<Logprob>);

    /// Reports the pooled hidden states of the prompt, if they were requested.
    fn on_pooled(&mut self, _hidden: Vec<f32>) {}

    /// Reports a token. `Break` if it completes the sequence.
    fn on_token(&mut self, _token: u32, _logprobs: &[Logprob]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Ends the sequence; returns its result and the number of its new tokens.
    ///
    /// # Errors
    /// Returns the error with which the job ends; a later run computes the sequence again.
    fn finish(self, cause: FinishCause) -> Result<(Self::Part, u32), JobError>;
}

/// A line of an output.
#[derive(Debug)]
pub struct RecordedLine<K: JobKind> {
    pub custom_id: String,
    pub content: RecordedContent<K>,
}

/// Content of a line of an output.
#[derive(Debug)]
pub enum RecordedContent<K: JobKind> {
    /// Error of the line of the input with this number.
    Error {
        line: usize,
    },
    Results {
        system_fingerprint: String,
        request_id: String,
        results: RecordedResults<K>,
    },
}

/// Results in a line of an output.
#[derive(Debug)]
pub enum RecordedResults<K: JobKind> {
    Complete(K::Answer),
    /// Results of some sequences, by their indices.
    Partial(Vec<(usize, K::Part)>),
}
