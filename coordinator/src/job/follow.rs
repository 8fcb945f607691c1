//! Observer of a running job: counts tokens, looks for stop strings and collects finished answers.

use std::ops::ControlFlow;

use grammar::Grammar;

use super::answers::Answers;
use super::error::JobError;
use super::progress::Progress;
use crate::boundary::codec::{CodecError, TextCodec};
use crate::boundary::engine::{Generated, Observer, Verdict};
use crate::openai::echo::{EchoedPrompt, OfPrompt};
use crate::openai::following::Following;
use crate::openai::forms::Forms;
use crate::openai::item::Request;
use crate::openai::stop::{StopWatcher, finish};

/// One answer of a pending request, by the indices of its item and choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) item: usize,
    pub(super) choice: usize,
}

/// A sequence that the engine runs, with its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending<'a> {
    pub(super) ticket: Ticket,
    pub(super) request: &'a Request,
}

impl<'a> Pending<'a> {
    pub(super) fn new(ticket: Ticket, request: &'a Request) -> Pending<'a> {
        Pending { ticket, request }
    }
}

/// Follows the sequences: counts tokens, looks for stop strings and collects finished answers.
pub(super) struct Follower<'f, 'j> {
    codec: Option<&'f dyn TextCodec>,
    pending: &'f [Pending<'f>],
    watchers: Vec<Option<StopWatcher<'f>>>,
    progress: &'f mut dyn Progress,
    answers: &'f mut Answers<'j>,
    finished: usize,
    forms: Forms,
    /// Error with which the job ends, once there is one.
    failed: Option<JobError>,
}

impl<'f, 'j> Follower<'f, 'j> {
    pub(super) fn new(
        codec: Option<&'f dyn TextCodec>,
        pending: &'f [Pending<'f>],
        progress: &'f mut dyn Progress,
        answers: &'f mut Answers<'j>,
    ) -> Follower<'f, 'j> {
        let watchers = pending.iter().map(|Pending { ticket, request }| {
            let codec = codec.filter(|_| !request.stop.is_empty())?;
            let context = Following::context(request, ticket.choice);
            Some(StopWatcher::new(codec, &context, &request.stop, request.sampling.min_tokens))
        });
        let watchers = watchers.collect();
        Follower {
            codec,
            pending,
            watchers,
            progress,
            answers,
            finished: 0,
            forms: Forms::default(),
            failed: None,
        }
    }

    /// Returns the number of finished sequences.
    ///
    /// # Errors
    /// Returns the error for which the job was stopped.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.failed.map_or(Ok(self.finished), Err)
    }
}

impl Follower<'_, '_> {
    /// Ends the job at an answer that has tokens but no text; a later run computes it again.
    fn fail(&mut self, sentence: String) -> ControlFlow<()> {
        self.failed.get_or_insert(JobError::Tokenizer(sentence));
        ControlFlow::Break(())
    }
}

impl Observer for Follower<'_, '_> {
    fn prefilled(&mut self, computed: u64, tokens: u64) {
        self.progress.prefilled(computed, tokens);
    }

    fn token(&mut self, sequence: usize, token: u32) -> Verdict {
        self.progress.token(sequence);
        if self.failed.is_none() {
            self.failed = self.answers.write_in_time().err();
        }
        if self.failed.is_some() {
            return Verdict::Stop;
        }
        let watcher = self.watchers.get_mut(sequence).and_then(Option::as_mut);
        if watcher.is_some_and(|watcher| watcher.push(token)) {
            Verdict::Stop
        } else {
            Verdict::Continue
        }
    }

    fn finished(&mut self, sequence: usize, mut generated: Generated) -> ControlFlow<()> {
        let Pending { ticket, request } = self.pending[sequence];
        let prompt_logprobs = std::mem::take(&mut generated.prompt_logprobs);
        let following = Following::new(request, ticket.choice, false);
        let mut answer = finish(generated, &following, self.codec);
        if let Some(sentence) = answer.error.take_if(|_| answer.is_lost) {
            return self.fail(sentence);
        }
        let prompt = request.prompt_of(ticket.choice);
        if prompt.max_new == 0 {
            answer = answer.emptied();
        }
        if answer.error.is_none() {
            let wrong = |grammar: &Grammar| self.forms.wrong(grammar, &answer, self.codec);
            answer.error = request.grammar.as_deref().and_then(wrong);
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
        let of_prompt = OfPrompt { request, echoed, found: &prompt_logprobs, codec: self.codec };
        self.answers.add(ticket.item, ticket.choice, answer, of_prompt);
        match self.failed {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}
