//! Following a job: what it has done, stop strings, and what is finished.

use std::ops::ControlFlow;

use grammar::{Checker, Grammar};

use super::answers::Answers;
use super::codec::TextCodec;
use super::engine::{Generated, Observer, Sequence, Verdict};
use super::error::JobError;
use super::item::Request;
use super::progress::{Amount, Progress};
use super::stop::{Answer, StopWatcher, finish};

/// One answer of a pending request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) item: usize,
    pub(super) choice: usize,
}

/// Tokens generated, against tokens there can be.
pub(super) struct Counter<'p> {
    pub(super) done: Amount,
    pub(super) total: Amount,
    pub(super) progress: &'p mut dyn Progress,
}

impl Counter<'_> {
    fn token(&mut self) {
        self.done.tokens += 1;
        self.progress.update(self.done, self.total);
    }

    fn end_sequence(&mut self, most_tokens: u64, made_tokens: u64) {
        self.done.sequences += 1;
        self.total.tokens -= most_tokens.saturating_sub(made_tokens);
        self.progress.update(self.done, self.total);
    }
}

/// A sequence, as the job knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) ticket: Ticket,
    pub(super) stop: &'a [String],
    pub(super) grammar: Option<&'a Grammar>,
}

impl<'a> Asked<'a> {
    /// One of a request's answers.
    pub(super) fn new(ticket: Ticket, request: &'a Request) -> Asked<'a> {
        Asked { ticket, stop: &request.stop, grammar: request.grammar.as_deref() }
    }
}

/// Follows the sequences: counts tokens, looks for stop strings and takes what is finished.
pub(super) struct Follower<'f, 'p, 'j> {
    codec: Option<&'f dyn TextCodec>,
    asked: &'f [Asked<'f>],
    sequences: &'f [Sequence<'f>],
    watchers: Vec<Option<StopWatcher<'f>>>,
    counter: &'f mut Counter<'p>,
    answers: &'f mut Answers<'j>,
    finished: usize,
    /// `None` until an answer must have a form.
    checker: Option<Checker>,
    /// Why answers cannot be written.
    failed: Option<JobError>,
}

impl<'f, 'p, 'j> Follower<'f, 'p, 'j> {
    pub(super) fn new(
        codec: Option<&'f dyn TextCodec>,
        asked: &'f [Asked<'f>],
        sequences: &'f [Sequence<'f>],
        counter: &'f mut Counter<'p>,
        answers: &'f mut Answers<'j>,
    ) -> Follower<'f, 'p, 'j> {
        let watchers = asked.iter().map(|asked| {
            let codec = codec.filter(|_| !asked.stop.is_empty())?;
            Some(StopWatcher::new(codec, asked.stop))
        });
        let watchers = watchers.collect();
        Follower {
            codec,
            asked,
            sequences,
            watchers,
            counter,
            answers,
            finished: 0,
            checker: None,
            failed: None,
        }
    }

    /// How many sequences were finished.
    ///
    /// # Errors
    /// Why their answers cannot be written.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.failed.map_or(Ok(self.finished), Err)
    }

    /// Why an answer that ended by itself has not the form that it must have.
    fn wrong(&mut self, grammar: &Grammar, answer: &Answer) -> Option<String> {
        let codec = self.codec.filter(|_| answer.ends_by_itself)?;
        let text: Vec<u8> = answer.token_ids.iter().flat_map(|token| codec.bytes(*token)).collect();
        let checked = match &mut self.checker {
            Some(checker) => checker.check_text(grammar, &text),
            None => Checker::new()
                .and_then(|checker| self.checker.insert(checker).check_text(grammar, &text)),
        };
        let error = checked.err()?;
        Some(format!(
            "The answer has not the form that was asked for: {error}. A simpler form, or a prompt \
             that asks for it, may help."
        ))
    }
}

impl Observer for Follower<'_, '_, '_> {
    fn token(&mut self, sequence: usize, token: u32) -> Verdict {
        self.counter.token();
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

    fn finished(&mut self, sequence: usize, generated: Generated) -> ControlFlow<()> {
        let Asked { ticket, stop, grammar } = self.asked[sequence];
        let most = u64::from(self.sequences[sequence].max_new);
        self.counter.end_sequence(most, generated.tokens.len() as u64);
        self.finished += 1;
        let width = usize::from(self.sequences[sequence].logprobs);
        let mut answer = finish(generated, stop, width, self.codec);
        answer.error = grammar.and_then(|grammar| self.wrong(grammar, &answer));
        self.answers.add(ticket.item, ticket.choice, answer);
        match self.failed {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}
