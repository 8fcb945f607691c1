//! The kind of job that answers completion and chat requests.

use std::cell::RefCell;
use std::ops::ControlFlow;

use engine_api::codec::{CodecError, TextCodec};
use engine_api::event::{FinishCause, Logprob};
use engine_api::request::{AnswerGrammar, GenerationRequest};
use grammar::Grammar;
use openai::answer_accumulator::AnswerAccumulator;
use openai::answer_options::AnswerOptions;
use openai::echo::{EchoedPrompt, PromptOutput};
use openai::fingerprint::request_id;
use openai::generation::generation_request;
use openai::input_line::{CompletionRequest, InputLine, LineError};
use openai::output::{
    Choice, Completion, ErrorBody, FinishReason, FinishedChoice, OutputLine, Provenance,
    answer_line, error_line, finish_choice, unfinished_line,
};
use openai::output_validator::OutputValidator;
use openai::responses::line::{RecordedResponse, response_line};
use openai::responses::response::ResponseStatus;

use super::error::JobError;
use super::eta::PlannedSequence;
use super::kind::{
    EndedJob, JobKind, JobRequest, RecordedContent, RecordedLine, RecordedResults, RunningSequence,
    line_number,
};
use super::run::Job;
use super::summary::{JobSummary, UnansweredRequest};
use super::workload::JobWorkload;

/// A job that answers completion and chat requests.
pub type BatchJob<'a> = Job<Completions<'a>>;

impl BatchJob<'_> {
    /// Returns what the engine must support; `None` if every request is answered or an error, so
    /// that no engine is needed.
    pub fn workload(&self) -> Option<JobWorkload> {
        JobWorkload::from_requests(self.pending_requests().map(|(_, request)| request))
    }
}

/// Answers to completion and chat requests.
#[derive(Debug)]
pub struct Completions<'a> {
    provenance: Provenance,
    /// `None` if the model has no tokenizer.
    codec: Option<&'a dyn TextCodec>,
    validator: RefCell<OutputValidator>,
}

impl<'a> Completions<'a> {
    pub(super) fn new(provenance: Provenance, codec: Option<&'a dyn TextCodec>) -> Completions<'a> {
        Completions { provenance, codec, validator: RefCell::default() }
    }
}

/// An answer in an output that was written earlier.
#[derive(Debug)]
pub enum RecordedAnswer {
    Choices(Vec<Choice>),
    /// Status of an answer of the Responses API.
    Response(ResponseStatus),
}

/// Parses a line with an answer of the Responses API.
fn parse_response_line<'a>(line: &[u8]) -> Option<RecordedLine<Completions<'a>>> {
    let recorded = RecordedResponse::parse(line)?;
    let results = RecordedResults::Complete(RecordedAnswer::Response(recorded.status));
    let RecordedResponse { custom_id, request_id, system_fingerprint, .. } = recorded;
    let content = RecordedContent::Results { system_fingerprint, request_id, results };
    Some(RecordedLine { custom_id, content })
}

impl JobRequest for CompletionRequest {
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
        self.choice_count()
    }
}

impl<'a> JobKind for Completions<'a> {
    type Request = CompletionRequest;
    type Part = FinishedChoice;
    type Answer = RecordedAnswer;
    type Outcome = Completion;
    type Sequence<'s>
        = RunningAnswer<'s>
    where
        Self: 's;
    type Summary = JobSummary;

    const LINES_NOUN: &'static str = "answers";

    fn system_fingerprint(&self) -> &str {
        &self.provenance.system_fingerprint
    }

    fn request_id(&self, request: &CompletionRequest) -> String {
        request_id(request)
    }

    fn planned(&self, request: &CompletionRequest, choice: usize) -> PlannedSequence {
        let prompt = request.prompt_of(choice);
        PlannedSequence { prompt_tokens: prompt.tokens.len() as u32, max_new: prompt.max_new }
    }

    fn generation_request(&self, request: &CompletionRequest, choice: usize) -> GenerationRequest {
        generation_request(request, choice, AnswerGrammar::None)
    }

    fn grammar(request: &CompletionRequest) -> Option<&Grammar> {
        request.grammar.as_deref()
    }

    fn begin<'s>(&'s self, request: &'s CompletionRequest, choice: usize) -> RunningAnswer<'s> {
        let options = AnswerOptions::new(request, choice, false);
        let accumulator = AnswerAccumulator::new(self.codec, options);
        RunningAnswer { kind: self, request, choice, accumulator, prompt_logprobs: Vec::new() }
    }

    fn complete_line(
        &self,
        request: &CompletionRequest,
        mut parts: Vec<FinishedChoice>,
    ) -> (Vec<u8>, Completion) {
        match (&request.response, parts.pop()) {
            (Some(settings), Some(answer)) => {
                response_line(request, settings, answer, &self.provenance)
            }
            (_, last) => {
                parts.extend(last);
                answer_line(request, parts, &self.provenance)
            }
        }
    }

    fn partial_line(
        &self,
        request: &CompletionRequest,
        parts: Vec<FinishedChoice>,
    ) -> Option<Vec<u8>> {
        Some(unfinished_line(request, parts, &self.provenance))
    }

    fn error_line(error: &LineError) -> Vec<u8> {
        error_line(error)
    }

    fn parse_output_line(line: &[u8]) -> Option<RecordedLine<Completions<'a>>> {
        let Ok(OutputLine { custom_id, response, error, .. }) =
            serde_json::from_slice::<OutputLine>(line)
        else {
            return parse_response_line(line);
        };
        let content = match (response, error) {
            (Some(response), None) => RecordedContent::Results {
                system_fingerprint: response.body.system_fingerprint,
                request_id: response.request_id,
                results: RecordedResults::Complete(RecordedAnswer::Choices(response.body.choices)),
            },
            (None, Some(ErrorBody { made: Some(partial), .. })) => {
                let is_good =
                    |done: &FinishedChoice| done.choice.finish_reason() != FinishReason::Error;
                let choices = partial.choices.into_iter().filter(is_good);
                RecordedContent::Results {
                    system_fingerprint: partial.system_fingerprint,
                    request_id: partial.request_id,
                    results: RecordedResults::Partial(
                        choices.map(|done| (done.choice.index(), done)).collect(),
                    ),
                }
            }
            (None, Some(ErrorBody { line, .. })) => RecordedContent::Error { line },
            _ => return None,
        };
        Some(RecordedLine { custom_id, content })
    }

    /// An answer is kept only if each of its choices follows the required grammar.
    fn recorded_outcome(
        &self,
        request: &CompletionRequest,
        answer: &RecordedAnswer,
    ) -> (Completion, bool) {
        let completion = match answer {
            RecordedAnswer::Choices(choices) => Completion::from_choices(request, choices),
            RecordedAnswer::Response(status) => RecordedResponse::completion(*status, request),
        };
        (completion, !completion.has_failed)
    }

    fn summary(&self, ended: EndedJob<'_, Completions<'a>>) -> JobSummary {
        let mut summary =
            summarize(&ended, |outcome| outcome.has_failed, CompletionRequest::choice_count);
        let EndedJob { items, lines, outcomes, .. } = ended;
        for ((item, line), ended) in items.iter().zip(lines).zip(outcomes) {
            if ended.is_truncated && line.is_some() {
                summary.truncated_lines.push(line_number(item));
            }
        }
        summary
    }
}

/// Summarises a job that ended. `has_failed` tells if the answers to a request are errors, and
/// `answers` returns their number.
pub(super) fn summarize<K: JobKind>(
    ended: &EndedJob<'_, K>,
    has_failed: impl Fn(&K::Outcome) -> bool,
    answers: impl Fn(&K::Request) -> usize,
) -> JobSummary {
    let EndedJob { items, lines, outcomes, interrupted, resumable, .. } = *ended;
    let mut summary = JobSummary {
        answered: 0,
        answers: 0,
        failed_lines: Vec::new(),
        truncated_lines: Vec::new(),
        not_run: Vec::new(),
        interrupted,
        resumable,
    };
    for ((item, line), outcome) in items.iter().zip(lines).zip(outcomes) {
        match (item, line) {
            (InputLine::Request(request), None) => {
                let (line, custom_id) = (request.line(), request.custom_id().to_owned());
                summary.not_run.push(UnansweredRequest { line, custom_id });
            }
            (InputLine::Error(error), None) => {
                let (line, custom_id) = (error.line, error.custom_id.clone());
                summary.not_run.push(UnansweredRequest { line, custom_id });
            }
            (InputLine::Request(request), Some(_)) if !has_failed(outcome) => {
                summary.answered += 1;
                summary.answers += answers(request);
            }
            (_, Some(_)) => summary.failed_lines.push(line_number(item)),
        }
    }
    summary
}

/// An answer of which tokens may still come.
#[derive(Debug)]
pub struct RunningAnswer<'s> {
    kind: &'s Completions<'s>,
    request: &'s CompletionRequest,
    choice: usize,
    accumulator: AnswerAccumulator<'s>,
    prompt_logprobs: Vec<Logprob>,
}

impl RunningSequence for RunningAnswer<'_> {
    type Part = FinishedChoice;

    fn on_prompt(&mut self, _cached_tokens: u32, logprobs: Vec<Logprob>) {
        self.prompt_logprobs = logprobs;
    }

    fn on_token(&mut self, token: u32, logprobs: &[Logprob]) -> ControlFlow<()> {
        if self.accumulator.push(token, logprobs) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn finish(self, cause: FinishCause) -> Result<(FinishedChoice, u32), JobError> {
        let RunningAnswer { kind, request, choice, accumulator, prompt_logprobs } = self;
        let codec = kind.codec;
        let mut answer = accumulator.end(cause).into_answer(codec);
        if let Some(sentence) = answer.error.take_if(|_| answer.is_retryable) {
            return Err(JobError::Tokenizer(sentence));
        }
        let prompt = request.prompt_of(choice);
        if prompt.max_new == 0 {
            answer = answer.without_tokens();
        }
        if answer.error.is_none() {
            let mut validator = kind.validator.borrow_mut();
            let grammar = request.grammar.as_deref();
            answer.error =
                grammar.and_then(|grammar| validator.find_violation(grammar, &answer, codec));
        }
        let echoed = match (request.echo, codec) {
            (true, Some(codec)) => EchoedPrompt::new(&prompt.tokens, codec).map(Some),
            _ => Ok(None),
        };
        let echoed = match echoed {
            Ok(echoed) => echoed,
            Err(error) => {
                let sentence = format!("The prompt could not be decoded: {error}.");
                if matches!(error, CodecError::Unavailable(_)) {
                    return Err(JobError::Tokenizer(sentence));
                }
                answer.error = Some(sentence);
                None
            }
        };
        let generated = answer.generated;
        let mut finished = finish_choice(request, choice, answer);
        let (echoed, logprobs) = (echoed.as_ref(), prompt_logprobs.as_slice());
        PromptOutput { request, echoed, logprobs, codec }.add_to(&mut finished);
        Ok((finished, generated))
    }
}
