//! Execution of a job, from the parsed input to the last line of the output.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use grammar::Grammar;

use super::answers::Answers;
use super::demand::Demand;
use super::error::JobError;
use super::follow::{Follower, Pending, Ticket};
use super::progress::Progress;
use super::remaining::Planned;
use super::sink::Sink;
use super::summary::Summary;
use super::unfinished::Unfinished;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::{Engine, EngineError, Sequence};
use crate::openai::fingerprint::sampling_id;
use crate::openai::item::{Item, Prompt, Request, errors_of};
use crate::openai::output::{Completion, Provenance};

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
pub struct Job<'a> {
    pub(super) items: Vec<Item>,
    /// Position of each item's line in the output; `None` if it is still to be made.
    pub(super) lines: Vec<Option<Range<u64>>>,
    /// Outcome of each item's answers.
    pub(super) ended: Vec<Completion>,
    /// Answers made so far for each request without a line.
    pub(super) unfinished: Vec<Unfinished>,
    /// Number of answers in the output that the input no longer requests.
    pub(super) replaced: usize,
    /// Notes about ignored fields and other warnings.
    pub(super) notes: Vec<String>,
    pub(super) sink: Sink,
    pub(super) provenance: Provenance,
    pub(super) codec: Option<&'a dyn TextCodec>,
}

impl<'a> Job<'a> {
    /// Returns the notes about the input, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns a one-line summary of a resumed output; `None` if it holds no answer.
    pub fn resumed(&self) -> Option<String> {
        let lines = self.items.iter().zip(&self.lines);
        let kept = lines.filter(|(item, line)| matches!(item, Item::Request(_)) && line.is_some());
        let (kept, left) = (kept.count(), self.pending_requests().count());
        match (kept, self.replaced) {
            (0, 0) => None,
            (_, 0) => Some(format!("{kept} answers kept, {left} remaining")),
            (_, replaced) => Some(format!(
                "{kept} answers kept, {replaced} replaced or dropped, {left} remaining"
            )),
        }
    }

    /// Returns what the engine must support; `None` if every request is answered or an error, so
    /// that no engine is needed.
    pub fn demand(&self) -> Option<Demand> {
        Demand::of(self.pending_requests().map(|(_, request)| request))
    }

    /// Returns the distinct grammars of the answers that are still to be made.
    pub fn grammars(&self) -> Vec<Grammar> {
        let mut seen = HashSet::new();
        let grammars =
            self.pending_requests().filter_map(|(_, request)| request.grammar.as_deref());
        grammars.filter(|grammar| seen.insert(*grammar)).cloned().collect()
    }

    /// Returns the number of lines with errors and the first message, if there are any.
    pub fn errors(&self) -> Option<String> {
        let errors = self.items.iter().filter_map(|item| match item {
            Item::Error(error) => Some(error),
            Item::Request(_) => None,
        });
        errors_of(errors, self.items.len())
    }

    fn pending_requests(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            Item::Request(request) if self.lines[index].is_none() => Some((index, request)),
            _ => None,
        })
    }

    /// Returns the sizes of the groups that an engine of this capacity would run if no sequence
    /// took over the slot of another.
    pub fn groups(&self, capacity: usize) -> Vec<GroupSize> {
        let size = |tickets: &[Ticket]| {
            let prompts = || tickets.iter().map(|ticket| self.prompt(*ticket));
            GroupSize {
                sequences: tickets.len(),
                prompt_tokens: prompts().map(|prompt| prompt.tokens.len() as u64).sum(),
                max_new: prompts().map(|prompt| prompt.max_new).max().unwrap_or(0),
            }
        };
        self.tickets().chunks(capacity.max(1)).map(size).collect()
    }

    /// Runs what is left to do. `engine` may be `None` only if [`Job::demand`] is. `interrupted` is
    /// checked before anything runs; from then on the engine checks it.
    ///
    /// # Errors
    /// Returns an error if the engine fails or the output cannot be written. In both cases finished
    /// answers are in the output.
    pub fn run(
        mut self,
        engine: Option<&mut dyn Engine>,
        progress: &mut dyn Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Summary, JobError> {
        let ran = self.run_sequences(engine, progress, interrupted);
        progress.end();
        // After a failed write the output cannot be sorted; it stays a log, which can still be
        // resumed.
        if !matches!(ran, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines = self.lines.iter().zip(&self.unfinished);
            let lines: Vec<Range<u64>> =
                lines.flat_map(|(line, some)| line.iter().chain(&some.lines).cloned()).collect();
            self.sink.settle(&lines, matches!(ran, Ok(false)))?;
        }
        Ok(self.summary(ran?))
    }

    /// Runs all sequences; returns true if the run was interrupted.
    fn run_sequences(
        &mut self,
        engine: Option<&mut dyn Engine>,
        progress: &mut dyn Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<bool, JobError> {
        let tickets = self.tickets();
        let planned = |ticket: &Ticket| {
            let prompt = self.prompt(*ticket);
            Planned { prompt_tokens: prompt.tokens.len() as u32, max_new: prompt.max_new }
        };
        let planned: Vec<Planned> = tickets.iter().map(planned).collect();
        let grammars = self.grammars();
        let grammars: HashMap<&Grammar, u32> = grammars.iter().zip(1..).collect();
        let Job { items, lines, ended, unfinished, sink, provenance, codec, .. } = self;
        let mut answers = Answers::new(items, lines, ended, unfinished, sink, provenance);
        let Some(engine) = engine else {
            assert!(tickets.is_empty(), "a job with requests left was run without an engine");
            return answers.write().map(|()| false);
        };
        if !tickets.is_empty() {
            progress.begin(planned);
        }
        // Lines with errors are written before anything runs.
        answers.write()?;
        if tickets.is_empty() || interrupted() {
            return Ok(!tickets.is_empty());
        }
        let sequences: Vec<Sequence<'_>> =
            tickets.iter().map(|ticket| sequence(items, *ticket, &grammars)).collect();
        let pending: Vec<Pending<'_>> = tickets
            .iter()
            .map(|ticket| Pending::new(*ticket, request(items, ticket.item)))
            .collect();
        let mut follower = Follower::new(*codec, &pending, progress, &mut answers);
        let ran = engine.run(&sequences, &mut follower);
        let followed = follower.end();
        if matches!(followed, Ok(_) | Err(JobError::Tokenizer(_))) {
            // Finished answers are kept, whatever happened to the others.
            answers.write()?;
            answers.join_unfinished()?;
        }
        let finished = followed?;
        match ran {
            Ok(()) if finished == sequences.len() => Ok(false),
            Ok(()) => Err(JobError::Engine(EngineError::Failed(format!(
                "The engine returned {finished} results for {} sequences.",
                sequences.len()
            )))),
            Err(EngineError::Interrupted) => Ok(true),
            Err(failed) => Err(JobError::Engine(failed)),
        }
    }

    /// Returns all answers that are still to be made, in the order in which they begin: the longest
    /// first, so that none of them runs alone at the end, and in input order among equally long
    /// ones.
    fn tickets(&self) -> Vec<Ticket> {
        let pending = self.pending_requests().flat_map(|(item, request)| {
            let is_open = move |choice: &usize| self.unfinished[item].made[*choice].is_none();
            (0..request.choices()).filter(is_open).map(move |choice| Ticket { item, choice })
        });
        let mut tickets: Vec<Ticket> = pending.collect();
        tickets.sort_by_key(|ticket| Reverse(self.prompt(*ticket).max_new));
        tickets
    }

    fn prompt(&self, ticket: Ticket) -> &Prompt {
        request(&self.items, ticket.item).prompt_of(ticket.choice)
    }

    fn summary(&self, interrupted: bool) -> Summary {
        let mut summary = Summary {
            answered: 0,
            answers: 0,
            failed_lines: Vec::new(),
            cut_lines: Vec::new(),
            not_run: 0,
            interrupted,
            resumable: self.sink.is_log(),
        };
        for ((item, line), ended) in self.items.iter().zip(&self.lines).zip(&self.ended) {
            if ended.cut && line.is_some() {
                summary.cut_lines.push(item.line());
            }
            match (item, line) {
                (_, None) => summary.not_run += 1,
                (_, Some(_)) if ended.failed => summary.failed_lines.push(item.line()),
                (Item::Request(request), Some(_)) => {
                    summary.answered += 1;
                    summary.answers += request.choices();
                }
                (Item::Error(error), Some(_)) => summary.failed_lines.push(error.line),
            }
        }
        summary
    }
}

fn request(items: &[Item], item: usize) -> &Request {
    match &items[item] {
        Item::Request(request) => request,
        Item::Error(_) => unreachable!("tickets are made of requests"),
    }
}

fn sequence<'i>(
    items: &'i [Item],
    ticket: Ticket,
    grammars: &HashMap<&Grammar, u32>,
) -> Sequence<'i> {
    let request = request(items, ticket.item);
    let prompt = request.prompt_of(ticket.choice);
    Sequence {
        prompt: &prompt.tokens,
        max_new: prompt.drawn(),
        sampling: request.sampling,
        seed: request.seed,
        id_hash: sampling_id(request, ticket.choice),
        ignore_eos: request.ignore_eos,
        logprobs: request.logprobs_of_token(),
        prompt_logprobs: request.logprobs_of_prompt_token(),
        grammar: request.grammar.as_deref().map_or(0, |grammar| grammars[grammar]),
    }
}
