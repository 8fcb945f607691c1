//! Following a job: what it has done, stop strings, and what is finished.

use std::ops::ControlFlow;

use super::answers::Answers;
use super::codec::TextCodec;
use super::engine::{Generated, Observer, Sequence, Verdict};
use super::error::JobError;
use super::progress::{Amount, Progress};
use super::stop::{StopWatcher, finish};

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
        let (finished, failed) = (0, None);
        Follower { codec, asked, sequences, watchers, counter, answers, finished, failed }
    }

    /// How many sequences were finished.
    ///
    /// # Errors
    /// Why their answers cannot be written.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.failed.map_or(Ok(self.finished), Err)
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
        let Asked { ticket, stop } = self.asked[sequence];
        let most = u64::from(self.sequences[sequence].max_new);
        self.counter.end_sequence(most, generated.tokens.len() as u64);
        self.finished += 1;
        let width = usize::from(self.sequences[sequence].logprobs);
        let answer = finish(generated, stop, width, self.codec);
        self.answers.add(ticket.item, ticket.choice, answer);
        match self.failed {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    }
}
