//! Execution of a job, from the parsed input to the last line of the output.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::request::{AnswerGrammar, GenerationRequest};
use grammar::Grammar;
use openai::input_line::{InputLine, summarize_errors};

use super::answer_buffer::AnswerBuffer;
use super::error::JobError;
use super::eta::PlannedSequence;
use super::job_sink::{JobSink, PendingSequence};
use super::kind::{EndedJob, JobKind, JobRequest, SequenceId};
use super::progress::JobProgress;
use super::resume::ResumeState;
use super::sink::{OutputMode, OutputSink};
use super::unfinished::UnfinishedAnswers;

/// Size of a group before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub sequences: usize,
    /// Tokens of all its prompts.
    pub prompt_tokens: u64,
    /// Maximum number of new tokens of its longest answer.
    pub max_new: u32,
}

/// An input that is read, and the output of its job, which is locked. Nothing is written yet.
#[derive(Debug)]
pub(super) struct JobFiles<R> {
    pub(super) items: Vec<InputLine<R>>,
    /// Notes about ignored fields and other warnings.
    pub(super) notes: Vec<String>,
    pub(super) sink: OutputSink,
    /// Content of the output.
    pub(super) existing: Vec<u8>,
    pub(super) mode: OutputMode,
}

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct Job<K: JobKind> {
    kind: K,
    items: Vec<InputLine<K::Request>>,
    /// Position of each item's line in the output; `None` if it is still to be made.
    lines: Vec<Option<Range<u64>>>,
    /// Facts about each item's answers.
    outcomes: Vec<K::Outcome>,
    /// Answers made so far for each request without a line.
    unfinished: Vec<UnfinishedAnswers<K::Part>>,
    /// Number of answers in the output that the input no longer requests.
    replaced: usize,
    notes: Vec<String>,
    sink: OutputSink,
}

impl<K: JobKind> Job<K> {
    /// Finds out what the output already answers.
    ///
    /// # Errors
    /// Returns an error if the output holds answers of another job.
    pub(super) fn resume(kind: K, files: JobFiles<K::Request>) -> Result<Job<K>, JobError> {
        let JobFiles { items, notes, mut sink, existing, mode } = files;
        let replaces_others = mode == OutputMode::ResumeReplacing;
        let resume =
            ResumeState::from_output(&kind, &existing, sink.name(), &items, replaces_others)?;
        sink.keep_prefix(resume.complete_bytes);
        let ResumeState { kept_lines: lines, outcomes, unfinished, replaced, .. } = resume;
        Ok(Job { kind, items, lines, outcomes, unfinished, replaced, notes, sink })
    }

    /// Returns the notes about the input, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns a one-line summary of a resumed output; `None` if it holds no answer.
    pub fn resume_summary(&self) -> Option<String> {
        let lines = self.items.iter().zip(&self.lines);
        let kept = lines.filter(|(item, line)| item.request().is_some() && line.is_some());
        let (kept, remaining) = (kept.count(), self.pending_requests().count());
        let noun = K::LINES_NOUN;
        match (kept, self.replaced) {
            (0, 0) => None,
            (_, 0) => Some(format!("{kept} {noun} kept, {remaining} remaining")),
            (_, replaced) => Some(format!(
                "{kept} {noun} kept, {replaced} replaced or dropped, {remaining} remaining"
            )),
        }
    }

    /// Returns true if requests are left for an engine.
    pub fn needs_engine(&self) -> bool {
        self.pending_requests().next().is_some()
    }

    /// Returns the distinct grammars of the answers that are still to be made.
    pub fn grammars(&self) -> Vec<Grammar> {
        let mut seen = HashSet::new();
        let grammars = self.pending_requests().filter_map(|(_, request)| K::grammar(request));
        grammars.filter(|grammar| seen.insert(*grammar)).cloned().collect()
    }

    /// Returns the number of lines with errors and the first message, if there are any.
    pub fn error_summary(&self) -> Option<String> {
        summarize_errors(self.items.iter().filter_map(InputLine::error), self.items.len())
    }

    pub(super) fn pending_requests(&self) -> impl Iterator<Item = (usize, &K::Request)> {
        let pending = self.items.iter().zip(&self.lines).enumerate();
        pending
            .filter(|(_, (_, line))| line.is_none())
            .filter_map(|(index, (item, _))| Some((index, item.request()?)))
    }

    /// Returns the sizes of the groups that an engine of this capacity would run if no sequence
    /// took over the slot of another.
    pub fn groups(&self, capacity: usize) -> Vec<GroupSize> {
        let size = |ids: &[SequenceId]| {
            let planned = || ids.iter().map(|id| self.planned(*id));
            GroupSize {
                sequences: ids.len(),
                prompt_tokens: planned().map(|planned| u64::from(planned.prompt_tokens)).sum(),
                max_new: planned().map(|planned| planned.max_new).max().unwrap_or(0),
            }
        };
        self.pending_sequences().chunks(capacity.max(1)).map(size).collect()
    }

    /// Runs what is left to do. `engine` may be `None` only if [`Job::needs_engine`] returns false.
    /// `interrupted` is checked before anything runs; from then on the engine checks it.
    ///
    /// # Errors
    /// Returns an error if the engine fails or the output cannot be written. In both cases finished
    /// answers are in the output.
    pub fn run(
        mut self,
        engine: Option<&mut dyn BatchEngine>,
        progress: &mut dyn JobProgress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<K::Summary, JobError> {
        let started = Instant::now();
        let outcome = self.run_sequences(engine, progress, interrupted);
        progress.end();
        // After a failed write the output cannot be sorted; it stays a log, which can still be
        // resumed.
        if !matches!(outcome, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines = self.lines.iter().zip(&self.unfinished);
            let lines: Vec<Range<u64>> =
                lines.flat_map(|(line, some)| line.iter().chain(&some.lines).cloned()).collect();
            self.sink.finalize(&lines, matches!(outcome, Ok(false)))?;
        }
        Ok(self.kind.summary(EndedJob {
            items: &self.items,
            lines: &self.lines,
            outcomes: &self.outcomes,
            interrupted: outcome?,
            resumable: self.sink.is_log(),
            elapsed: started.elapsed(),
        }))
    }

    /// Runs all sequences; returns true if the run was interrupted.
    fn run_sequences(
        &mut self,
        engine: Option<&mut dyn BatchEngine>,
        progress: &mut dyn JobProgress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<bool, JobError> {
        let ids = self.pending_sequences();
        let planned: Vec<PlannedSequence> = ids.iter().map(|id| self.planned(*id)).collect();
        let grammars = self.grammars();
        let Job { kind, items, lines, outcomes, unfinished, sink, .. } = self;
        let (kind, items) = (&*kind, items.as_slice());
        let mut answers = AnswerBuffer::new(kind, items, lines, outcomes, unfinished, sink);
        let Some(engine) = engine else {
            assert!(ids.is_empty(), "a job with requests left was run without an engine");
            answers.write()?;
            progress.lines_written(answers.counts());
            return Ok(false);
        };
        if !ids.is_empty() {
            progress.begin(planned);
        }
        // Lines with errors are written before anything runs.
        answers.write()?;
        progress.lines_written(answers.counts());
        if ids.is_empty() || interrupted() {
            return Ok(!ids.is_empty());
        }
        let pending: Vec<PendingSequence<'_, K::Request>> = ids
            .iter()
            .map(|id| PendingSequence { id: *id, request: request_at(items, *id) })
            .collect();
        let grammars = grammars.iter().zip(1..).collect();
        let requests = PendingRequests { kind, pending: &pending, grammars };
        let mut sink = JobSink::new(kind, &pending, progress, &mut answers);
        let engine_result = engine.run(&requests, &mut sink);
        let sink_result = sink.end();
        if matches!(sink_result, Ok(_) | Err(JobError::Tokenizer(_) | JobError::Engine(_))) {
            // Finished answers are kept, whatever happened to the others.
            answers.write()?;
            progress.lines_written(answers.counts());
            answers.merge_unfinished()?;
        }
        let finished = sink_result?;
        match engine_result {
            Ok(()) if finished == pending.len() => Ok(false),
            Ok(()) => Err(JobError::Engine(EngineError::Failed(format!(
                "The engine returned {finished} results for {} sequences.",
                pending.len()
            )))),
            Err(EngineError::Interrupted) => Ok(true),
            Err(failed) => Err(JobError::Engine(failed)),
        }
    }

    /// Returns all sequences that are still to be computed, in the order in which they begin: the
    /// longest first, so that none of them runs alone at the end, and in input order among equally
    /// long ones.
    fn pending_sequences(&self) -> Vec<SequenceId> {
        let pending = self.pending_requests().flat_map(|(item, request)| {
            let is_open = move |index: &usize| self.unfinished[item].parts[*index].is_none();
            (0..request.sequence_count())
                .filter(is_open)
                .map(move |index| SequenceId { item, index })
        });
        let mut ids: Vec<SequenceId> = pending.collect();
        ids.sort_by_key(|id| Reverse(self.planned(*id).max_new));
        ids
    }

    fn planned(&self, id: SequenceId) -> PlannedSequence {
        self.kind.planned(request_at(&self.items, id), id.index)
    }
}

fn request_at<R>(items: &[InputLine<R>], id: SequenceId) -> &R {
    items[id.item].request().expect("sequences belong to requests")
}

/// The requests to an engine for pending sequences.
struct PendingRequests<'f, K: JobKind> {
    kind: &'f K,
    pending: &'f [PendingSequence<'f, K::Request>],
    /// Numbers of the grammars.
    grammars: HashMap<&'f Grammar, u32>,
}

impl<K: JobKind> BatchRequests for PendingRequests<'_, K> {
    fn count(&self) -> usize {
        self.pending.len()
    }

    fn request(&self, index: usize) -> GenerationRequest {
        let PendingSequence { id, request } = &self.pending[index];
        let number = |grammar: &Grammar| AnswerGrammar::Number(self.grammars[grammar]);
        let grammar = K::grammar(request).map_or(AnswerGrammar::None, number);
        GenerationRequest { grammar, ..self.kind.generation_request(request, id.index) }
    }
}
