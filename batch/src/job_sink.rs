//! Sink of a running job: counts tokens, looks for stop strings and collects finished answers.

use std::collections::HashMap;
use std::ops::ControlFlow;

use engine_api::batch::EngineError;
use engine_api::codec::{CodecError, TextCodec};
use engine_api::event::{BatchSink, EngineEvent, FinishCause, Logprob};
use grammar::Grammar;
use openai::answer_accumulator::AnswerAccumulator;
use openai::answer_options::AnswerOptions;
use openai::echo::{EchoedPrompt, PromptOutput};
use openai::input_line::CompletionRequest;
use openai::output_validator::OutputValidator;

use super::answer_buffer::AnswerBuffer;
use super::error::JobError;
use super::progress::JobProgress;

/// One answer of a pending request, by the indices of its item and choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerId {
    pub(super) item: usize,
    pub(super) choice: usize,
}

/// A sequence that the engine runs, with its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingAnswer<'a> {
    pub(super) id: AnswerId,
    pub(super) request: &'a CompletionRequest,
}

impl<'a> PendingAnswer<'a> {
    pub(super) fn new(id: AnswerId, request: &'a CompletionRequest) -> PendingAnswer<'a> {
        PendingAnswer { id, request }
    }
}

/// An answer of which tokens may still come.
struct OpenAnswer<'f> {
    accumulator: AnswerAccumulator<'f>,
    prompt_logprobs: Vec<Logprob>,
}

/// Follows the requests: counts tokens, looks for stop strings and collects finished answers.
pub(super) struct JobSink<'f, 'j> {
    codec: Option<&'f dyn TextCodec>,
    pending: &'f [PendingAnswer<'f>],
    /// Answers that have begun and not ended.
    open: HashMap<usize, OpenAnswer<'f>>,
    progress: &'f mut dyn JobProgress,
    answers: &'f mut AnswerBuffer<'j>,
    finished: usize,
    validator: OutputValidator,
    /// Error with which the job ends, once there is one.
    error: Option<JobError>,
}

impl<'f, 'j> JobSink<'f, 'j> {
    pub(super) fn new(
        codec: Option<&'f dyn TextCodec>,
        pending: &'f [PendingAnswer<'f>],
        progress: &'f mut dyn JobProgress,
        answers: &'f mut AnswerBuffer<'j>,
    ) -> JobSink<'f, 'j> {
        JobSink {
            codec,
            pending,
            open: HashMap::new(),
            progress,
            answers,
            finished: 0,
            validator: OutputValidator::default(),
            error: None,
        }
    }

    /// Returns the number of finished answers.
    ///
    /// # Errors
    /// Returns the error for which the job was stopped.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.error.map_or(Ok(self.finished), Err)
    }

    fn open_answer(&mut self, index: usize) -> &mut OpenAnswer<'f> {
        let (PendingAnswer { id, request }, codec) = (self.pending[index], self.codec);
        self.open.entry(index).or_insert_with(|| OpenAnswer {
            accumulator: AnswerAccumulator::new(
                codec,
                AnswerOptions::new(request, id.choice, false),
            ),
            prompt_logprobs: Vec::new(),
        })
    }

    /// Ends the job at an answer that has tokens but no text; a later run computes it again.
    fn fail(&mut self, sentence: String) {
        self.error.get_or_insert(JobError::Tokenizer(sentence));
    }

    /// Adds a token to an answer. Returns true if a stop string is complete.
    fn push_token(&mut self, index: usize, token: u32, logprobs: &[Logprob]) -> bool {
        self.progress.token(index);
        if let Err(error) = self.answers.write_if_due() {
            self.error.get_or_insert(error);
        }
        self.open_answer(index).accumulator.push(token, logprobs)
    }

    fn finish(&mut self, index: usize, cause: FinishCause) {
        self.open_answer(index);
        let Some(OpenAnswer { accumulator, prompt_logprobs }) = self.open.remove(&index) else {
            return;
        };
        let PendingAnswer { id, request } = self.pending[index];
        let mut answer = accumulator.end(cause).into_answer(self.codec);
        if let Some(sentence) = answer.error.take_if(|_| answer.is_retryable) {
            return self.fail(sentence);
        }
        let prompt = request.prompt_of(id.choice);
        if prompt.max_new == 0 {
            answer = answer.without_tokens();
        }
        if answer.error.is_none() {
            let find_violation =
                |grammar: &Grammar| self.validator.find_violation(grammar, &answer, self.codec);
            answer.error = request.grammar.as_deref().and_then(find_violation);
        }
        let echoed = match (request.echo, self.codec) {
            (true, Some(codec)) => EchoedPrompt::new(&prompt.tokens, codec).map(Some),
            _ => Ok(None),
        };
        let echoed = match echoed {
            Ok(echoed) => echoed,
            Err(error) => {
                let sentence = format!("The prompt could not be decoded: {error}.");
                if matches!(error, CodecError::Unavailable(_)) {
                    return self.fail(sentence);
                }
                answer.error = Some(sentence);
                None
            }
        };
        self.finished += 1;
        self.progress.finished(index, answer.generated);
        let echoed = echoed.as_ref();
        let prompt_output =
            PromptOutput { request, echoed, logprobs: &prompt_logprobs, codec: self.codec };
        self.answers.add(id.item, id.choice, answer, prompt_output);
    }
}

impl BatchSink for JobSink<'_, '_> {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        match event {
            EngineEvent::Prompt { logprobs, .. } => {
                self.open_answer(request).prompt_logprobs = logprobs;
            }
            EngineEvent::Token { token, logprobs } => {
                if self.push_token(request, token, &logprobs) {
                    self.finish(request, FinishCause::Stop);
                    return ControlFlow::Break(());
                }
            }
            EngineEvent::Finished(cause) => self.finish(request, cause),
            EngineEvent::Failed(sentence) => {
                self.error.get_or_insert(JobError::Engine(EngineError::Failed(sentence)));
            }
        }
        ControlFlow::Continue(())
    }

    fn on_prefill_progress(&mut self, computed: u64, tokens: u64) {
        self.progress.prefilled(computed, tokens);
    }

    fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}
