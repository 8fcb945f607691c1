//! Execution of a job, from the parsed input to the last line of the output.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use engine_api::batch::{BatchEngine, EngineError};
use engine_api::codec::TextCodec;
use engine_api::request::{AnswerGrammar, GenerationRequest};
use grammar::Grammar;
use openai::generation::generation_request;
use openai::input_line::{CompletionRequest, InputLine, Prompt, summarize_errors};
use openai::output::{Completion, Provenance};

use super::answer_buffer::AnswerBuffer;
use super::error::JobError;
use super::eta::PlannedSequence;
use super::job_sink::{AnswerId, JobSink, PendingAnswer};
use super::progress::JobProgress;
use super::sink::OutputSink;
use super::summary::JobSummary;
use super::unfinished::UnfinishedAnswers;
use super::workload::JobWorkload;

/// Size of a group before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub sequences: usize,
    /// Tokens of all its prompts.
    pub prompt_tokens: u64,
    /// Maximum number of new tokens of its longest answer.
    pub max_new: u32,
}

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct BatchJob<'a> {
    pub(super) items: Vec<InputLine>,
    /// Position of each item's line in the output; `None` if it is still to be made.
    pub(super) lines: Vec<Option<Range<u64>>>,
    /// Outcome of each item's answers.
    pub(super) completions: Vec<Completion>,
    /// Answers made so far for each request without a line.
    pub(super) unfinished: Vec<UnfinishedAnswers>,
    /// Number of answers in the output that the input no longer requests.
    pub(super) replaced: usize,
    /// Notes about ignored fields and other warnings.
    pub(super) notes: Vec<String>,
    pub(super) sink: OutputSink,
    pub(super) provenance: Provenance,
    pub(super) codec: Option<&'a dyn TextCodec>,
}

impl<'a> BatchJob<'a> {
    /// Returns the notes about the input, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns a one-line summary of a resumed output; `None` if it holds no answer.
    pub fn resume_summary(&self) -> Option<String> {
        let lines = self.items.iter().zip(&self.lines);
        let kept =
            lines.filter(|(item, line)| matches!(item, InputLine::Request(_)) && line.is_some());
        let (kept, remaining) = (kept.count(), self.pending_requests().count());
        match (kept, self.replaced) {
            (0, 0) => None,
            (_, 0) => Some(format!("{kept} answers kept, {remaining} remaining")),
            (_, replaced) => Some(format!(
                "{kept} answers kept, {replaced} replaced or dropped, {remaining} remaining"
            )),
        }
    }

    /// Returns what the engine must support; `None` if every request is answered or an error, so
    /// that no engine is needed.
    pub fn workload(&self) -> Option<JobWorkload> {
        JobWorkload::from_requests(self.pending_requests().map(|(_, request)| request))
    }

    /// Returns the distinct grammars of the answers that are still to be made.
    pub fn grammars(&self) -> Vec<Grammar> {
        let mut seen = HashSet::new();
        let grammars =
            self.pending_requests().filter_map(|(_, request)| request.grammar.as_deref());
        grammars.filter(|grammar| seen.insert(*grammar)).cloned().collect()
    }

    /// Returns the number of lines with errors and the first message, if there are any.
    pub fn error_summary(&self) -> Option<String> {
        let errors = self.items.iter().filter_map(|item| match item {
            InputLine::Error(error) => Some(error),
            InputLine::Request(_) => None,
        });
        summarize_errors(errors, self.items.len())
    }

    fn pending_requests(&self) -> impl Iterator<Item = (usize, &CompletionRequest)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            InputLine::Request(request) if self.lines[index].is_none() => Some((index, request)),
            _ => None,
        })
    }

    /// Returns the sizes of the groups that an engine of this capacity would run if no sequence
    /// took over the slot of another.
    pub fn groups(&self, capacity: usize) -> Vec<GroupSize> {
        let size = |tickets: &[AnswerId]| {
            let prompts = || tickets.iter().map(|ticket| self.prompt(*ticket));
            GroupSize {
                sequences: tickets.len(),
                prompt_tokens: prompts().map(|prompt| prompt.tokens.len() as u64).sum(),
                max_new: prompts().map(|prompt| prompt.max_new).max().unwrap_or(0),
            }
        };
        self.pending_answers().chunks(capacity.max(1)).map(size).collect()
    }

    /// Runs what is left to do. `engine` may be `None` only if [`BatchJob::workload`] is.
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
    ) -> Result<JobSummary, JobError> {
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
        Ok(self.summary(outcome?))
    }

    /// Runs all sequences; returns true if the run was interrupted.
    fn run_sequences(
        &mut self,
        engine: Option<&mut dyn BatchEngine>,
        progress: &mut dyn JobProgress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<bool, JobError> {
        let answer_ids = self.pending_answers();
        let planned = |ticket: &AnswerId| {
            let prompt = self.prompt(*ticket);
            PlannedSequence { prompt_tokens: prompt.tokens.len() as u32, max_new: prompt.max_new }
        };
        let planned: Vec<PlannedSequence> = answer_ids.iter().map(planned).collect();
        let grammars = self.grammars();
        let grammars: HashMap<&Grammar, u32> = grammars.iter().zip(1..).collect();
        let BatchJob { items, lines, completions, unfinished, sink, provenance, codec, .. } = self;
        let mut answers =
            AnswerBuffer::new(items, lines, completions, unfinished, sink, provenance);
        let Some(engine) = engine else {
            assert!(answer_ids.is_empty(), "a job with requests left was run without an engine");
            return answers.write().map(|()| false);
        };
        if !answer_ids.is_empty() {
            progress.begin(planned);
        }
        // Lines with errors are written before anything runs.
        answers.write()?;
        if answer_ids.is_empty() || interrupted() {
            return Ok(!answer_ids.is_empty());
        }
        let requests: Vec<GenerationRequest> = answer_ids
            .iter()
            .map(|ticket| to_generation_request(items, *ticket, &grammars))
            .collect();
        let pending: Vec<PendingAnswer<'_>> = answer_ids
            .iter()
            .map(|ticket| PendingAnswer::new(*ticket, request_at(items, ticket.item)))
            .collect();
        let mut sink = JobSink::new(*codec, &pending, progress, &mut answers);
        let engine_result = engine.run(&requests, &mut sink);
        let sink_result = sink.end();
        if matches!(sink_result, Ok(_) | Err(JobError::Tokenizer(_))) {
            // Finished answers are kept, whatever happened to the others.
            answers.write()?;
            answers.merge_unfinished()?;
        }
        let finished = sink_result?;
        match engine_result {
            Ok(()) if finished == requests.len() => Ok(false),
            Ok(()) => Err(JobError::Engine(EngineError::Failed(format!(
                "The engine returned {finished} results for {} sequences.",
                requests.len()
            )))),
            Err(EngineError::Interrupted) => Ok(true),
            Err(failed) => Err(JobError::Engine(failed)),
        }
    }

    /// Returns all answers that are still to be made, in the order in which they begin: the longest
    /// first, so that none of them runs alone at the end, and in input order among equally long
    /// ones.
    fn pending_answers(&self) -> Vec<AnswerId> {
        let pending = self.pending_requests().flat_map(|(item, request)| {
            let is_open = move |choice: &usize| self.unfinished[item].choices[*choice].is_none();
            (0..request.choice_count()).filter(is_open).map(move |choice| AnswerId { item, choice })
        });
        let mut tickets: Vec<AnswerId> = pending.collect();
        tickets.sort_by_key(|ticket| Reverse(self.prompt(*ticket).max_new));
        tickets
    }

    fn prompt(&self, id: AnswerId) -> &Prompt {
        request_at(&self.items, id.item).prompt_of(id.choice)
    }

    fn summary(&self, interrupted: bool) -> JobSummary {
        let mut summary = JobSummary {
            answered: 0,
            answers: 0,
            failed_lines: Vec::new(),
            truncated_lines: Vec::new(),
            not_run: 0,
            interrupted,
            resumable: self.sink.is_log(),
        };
        for ((item, line), ended) in self.items.iter().zip(&self.lines).zip(&self.completions) {
            if ended.is_truncated && line.is_some() {
                summary.truncated_lines.push(item.line());
            }
            match (item, line) {
                (_, None) => summary.not_run += 1,
                (_, Some(_)) if ended.has_failed => summary.failed_lines.push(item.line()),
                (InputLine::Request(request), Some(_)) => {
                    summary.answered += 1;
                    summary.answers += request.choice_count();
                }
                (InputLine::Error(error), Some(_)) => summary.failed_lines.push(error.line),
            }
        }
        summary
    }
}

fn request_at(items: &[InputLine], item: usize) -> &CompletionRequest {
    match &items[item] {
        InputLine::Request(request) => request,
        InputLine::Error(_) => unreachable!("tickets are made of requests"),
    }
}

fn to_generation_request(
    items: &[InputLine],
    id: AnswerId,
    grammars: &HashMap<&Grammar, u32>,
) -> GenerationRequest {
    let request = request_at(items, id.item);
    let number = |grammar: &Grammar| AnswerGrammar::Number(grammars[grammar]);
    let grammar = request.grammar.as_deref().map_or(AnswerGrammar::None, number);
    generation_request(request, id.choice, grammar)
}
