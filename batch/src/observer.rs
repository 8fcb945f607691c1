//! Observer of a running job: counts tokens, looks for stop strings and collects finished answers.

use std::ops::ControlFlow;

use engine_api::batch::{GenerationOutput, Observer};
use engine_api::codec::{CodecError, TextCodec};
use grammar::Grammar;
use openai::answer_options::AnswerOptions;
use openai::echo::{EchoedPrompt, PromptOutput};
use openai::input_line::CompletionRequest;
use openai::output_validator::OutputValidator;
use openai::stop::{StopWatcher, finish};

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

/// Follows the sequences: counts tokens, looks for stop strings and collects finished answers.
pub(super) struct JobObserver<'f, 'j> {
    codec: Option<&'f dyn TextCodec>,
    pending: &'f [PendingAnswer<'f>],
    watchers: Vec<Option<StopWatcher<'f>>>,
    progress: &'f mut dyn JobProgress,
    answers: &'f mut AnswerBuffer<'j>,
    finished: usize,
    validator: OutputValidator,
    /// Error with which the job ends, once there is one.
    error: Option<JobError>,
}

impl<'f, 'j> JobObserver<'f, 'j> {
    pub(super) fn new(
        codec: Option<&'f dyn TextCodec>,
        pending: &'f [PendingAnswer<'f>],
        progress: &'f mut dyn JobProgress,
        answers: &'f mut AnswerBuffer<'j>,
    ) -> JobObserver<'f, 'j> {
        let watchers = pending.iter().map(|PendingAnswer { id, request }| {
            let codec = codec.filter(|_| !request.stop.is_empty())?;
            let context = AnswerOptions::text_context(request, id.choice);
            Some(StopWatcher::new(codec, &context, &request.stop, request.sampling.min_tokens))
        });
        let watchers = watchers.collect();
        JobObserver {
            codec,
            pending,
            watchers,
            progress,
            answers,
            finished: 0,
            validator: OutputValidator::default(),
            error: None,
        }
    }

    /// Returns the number of finished sequences.
    ///
    /// # Errors
    /// Returns the error for which the job was stopped.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.error.map_or(Ok(self.finished), Err)
    }
}

impl JobObserver<'_, '_> {
    /// Ends the job at an answer that has tokens but no text; a later run computes it again.
    fn fail(&mut self, sentence: String) -> ControlFlow<()> {
        self.error.get_or_insert(JobError::Tokenizer(sentence));
        ControlFlow::Break(())
    }
}

impl Observer for JobObserver<'_, '_> {
    fn on_prefill_progress(&mut self, computed: u64, tokens: u64) {
        self.progress.prefilled(computed, tokens);
    }

    fn on_token(&mut self, sequence: usize, token: u32) -> ControlFlow<()> {
        self.progress.token(sequence);
        if self.error.is_none() {
            self.error = self.answers.write_if_due().err();
        }
        if self.error.is_some() {
            return ControlFlow::Break(());
        }
        let watcher = self.watchers.get_mut(sequence).and_then(Option::as_mut);
        if watcher.is_some_and(|watcher| watcher.push(token)) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn on_finished(&mut self, sequence: usize, mut generated: GenerationOutput) -> ControlFlow<()> {
        let PendingAnswer { id, request } = self.pending[sequence];
        let prompt_logprobs = std::mem::take(&mut generated.prompt_logprobs);
        let options = AnswerOptions::new(request, id.choice, false);
        let mut answer = finish(generated, &options, self.codec);
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
        self.progress.finished(sequence, answer.generated);
        let echoed = echoed.as_ref();
        let prompt_output =
            PromptOutput { request, echoed, logprobs: &prompt_logprobs, codec: self.codec };
        self.answers.add(id.item, id.choice, answer, prompt_output);
        match self.error {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}
