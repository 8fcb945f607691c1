//! Sink of a running job: follows the sequences and collects finished answers.

use std::collections::HashMap;
use std::ops::ControlFlow;

use engine_api::batch::EngineError;
use engine_api::event::{BatchSink, EngineEvent, FinishCause};

use super::answer_buffer::AnswerBuffer;
use super::error::JobError;
use super::kind::{JobKind, RunningSequence, SequenceId};
use super::progress::JobProgress;

/// A sequence that the engine runs, with its request.
#[derive(Debug)]
pub(super) struct PendingSequence<'a, R> {
    pub(super) id: SequenceId,
    pub(super) request: &'a R,
}

/// Follows the requests: counts tokens, and collects finished answers.
pub(super) struct JobSink<'f, 'j, K: JobKind> {
    kind: &'f K,
    pending: &'f [PendingSequence<'f, K::Request>],
    /// Sequences that have begun and not ended.
    running: HashMap<usize, K::Sequence<'f>>,
    progress: &'f mut dyn JobProgress,
    answers: &'f mut AnswerBuffer<'j, K>,
    finished: usize,
    /// Error with which the job ends, once there is one.
    error: Option<JobError>,
}

impl<'f, 'j, K: JobKind> JobSink<'f, 'j, K> {
    pub(super) fn new(
        kind: &'f K,
        pending: &'f [PendingSequence<'f, K::Request>],
        progress: &'f mut dyn JobProgress,
        answers: &'f mut AnswerBuffer<'j, K>,
    ) -> JobSink<'f, 'j, K> {
        let running = HashMap::new();
        JobSink { kind, pending, running, progress, answers, finished: 0, error: None }
    }

    /// Returns the number of finished answers.
    ///
    /// # Errors
    /// Returns the error for which the job was stopped.
    pub(super) fn end(self) -> Result<usize, JobError> {
        self.error.map_or(Ok(self.finished), Err)
    }

    fn running(&mut self, sequence: usize) -> &mut K::Sequence<'f> {
        let (PendingSequence { id, request }, kind) = (&self.pending[sequence], self.kind);
        self.running.entry(sequence).or_insert_with(|| kind.begin(request, id.index))
    }

    fn finish(&mut self, sequence: usize, cause: FinishCause) {
        self.running(sequence);
        let Some(running) = self.running.remove(&sequence) else { return };
        match running.finish(cause) {
            Ok((part, generated)) => {
                self.finished += 1;
                self.progress.finished(sequence, generated);
                self.answers.add(self.pending[sequence].id, part);
                self.write_if_due();
            }
            Err(error) => self.fail(error),
        }
    }

    fn write_if_due(&mut self) {
        match self.answers.write_if_due() {
            Ok(true) => self.progress.lines_written(self.answers.counts()),
            Ok(false) => {}
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: JobError) {
        self.error.get_or_insert(error);
    }
}

impl<K: JobKind> BatchSink for JobSink<'_, '_, K> {
    fn on_event(&mut self, sequence: usize, event: EngineEvent) -> ControlFlow<()> {
        match event {
            EngineEvent::Prompt { cached_tokens, logprobs, .. } => {
                self.running(sequence).on_prompt(cached_tokens, logprobs);
            }
            EngineEvent::Pooled(hidden) => self.running(sequence).on_pooled(hidden),
            EngineEvent::Token { token, logprobs } => {
                self.progress.token(sequence);
                self.write_if_due();
                if self.running(sequence).on_token(token, &logprobs).is_break() {
                    self.finish(sequence, FinishCause::Stop);
                    return ControlFlow::Break(());
                }
            }
            EngineEvent::Drafts(_) => {}
            EngineEvent::Finished(cause) => self.finish(sequence, cause),
            EngineEvent::Failed(sentence) => {
                self.fail(JobError::Engine(EngineError::Failed(sentence)));
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
