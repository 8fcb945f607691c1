//! The job from input file to last line.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};
use std::time::{SystemTime, UNIX_EPOCH};

use grammar::Grammar;
use workers::share::common;

use super::answers::Answers;
use super::error::JobError;
use super::follow::{Follower, Pending, Ticket};
use super::input::{Format, InputOptions};
use super::progress::Progress;
use super::read::read_items;
use super::reading::Reading;
use super::remaining::Planned;
use super::resume::{Recorded, Resume};
use super::sink::{OutputMode, Place, Sink};
use super::source::Source;
use super::summary::Summary;
use super::unfinished::Unfinished;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::{Engine, EngineError, Sequence};
use crate::openai::body::defaults::Defaults;
use crate::openai::body::unread::Unread;
use crate::openai::fingerprint::sampling_id;
use crate::openai::item::{Item, LineError, Prompt, Request};
use crate::openai::output::{Completion, Provenance};
use crate::openai::prompt::Limits;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Raw prompts become one user message each.
    pub chat: bool,
    /// For requests that do not say, at least 1; without it a default.
    pub max_tokens: Option<u32>,
    /// For requests that do not say.
    pub seed: u64,
    /// For raw prompts and short lines that do not say.
    pub defaults: Defaults,
    /// Fields that are not implemented are left out instead of refused.
    pub ignore_unknown_fields: bool,
}

/// Says the fingerprint of answers to requests of this demand (`None`: there is no request), for an
/// output that holds answers of the second fingerprint, if any.
pub type Fingerprinter<'a> = Box<dyn Fn(Option<Demand>, Option<&str>) -> String + 'a>;

/// What the job must know of the model.
pub struct ModelFacts<'a> {
    pub name: String,
    /// See [`crate::openai::fingerprint::system_fingerprint`]. In which form weights are kept may
    /// depend on what all requests together need, so it is asked once they are known.
    pub system_fingerprint: Fingerprinter<'a>,
    pub limits: Limits,
    /// `None` when the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
}

impl std::fmt::Debug for ModelFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFacts").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Maxima over sequences that are to run, for the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub sequences: usize,
    /// Longest prompt, tokens.
    pub max_prompt: usize,
    /// Tokens with which all prompts begin.
    pub shared_prompt: usize,
    /// Largest number of new tokens.
    pub max_new: u32,
    /// Longest prompt + new tokens of one sequence.
    pub max_context: usize,
    /// Log-probabilities of a token.
    pub logprobs: u16,
    /// Whether an answer must have a form.
    pub forms: bool,
}

impl Demand {
    /// Of some requests; `None` when there are none.
    fn of<'r>(requests: impl Iterator<Item = &'r Request>) -> Option<Demand> {
        let mut first: Option<&[u32]> = None;
        let prompts =
            requests.flat_map(|request| request.prompts.iter().map(move |p| (request, p)));
        prompts.fold(None, |demand, (request, prompt)| {
            let (tokens, max_new) = (prompt.tokens.len(), prompt.max_new);
            let old = demand.unwrap_or(Demand {
                sequences: 0,
                max_prompt: 0,
                shared_prompt: tokens,
                max_new: 0,
                max_context: 0,
                logprobs: 0,
                forms: false,
            });
            let first = *first.get_or_insert(&prompt.tokens);
            Some(Demand {
                sequences: old.sequences + request.n,
                max_prompt: old.max_prompt.max(tokens),
                shared_prompt: common(&first[..old.shared_prompt], &prompt.tokens),
                max_new: old.max_new.max(max_new),
                max_context: old.max_context.max(tokens + max_new as usize),
                logprobs: old.logprobs.max(request.logprobs_of_token()),
                forms: old.forms || request.grammar.is_some(),
            })
        })
    }
}

/// What is known of a group before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize {
    pub sequences: usize,
    /// Of all its prompts.
    pub prompt_tokens: u64,
    /// Of its longest answer.
    pub max_new: u32,
}

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct Job<'a> {
    items: Vec<Item>,
    /// Where each item's line lies in the output; `None`: still to do.
    lines: Vec<Option<Range<u64>>>,
    /// What is to be told of each item's answers.
    ended: Vec<Completion>,
    /// For each request without a line, what is there of its answers.
    unfinished: Vec<Unfinished>,
    /// Answers in the output that the input no longer asks for.
    replaced: usize,
    /// What was done with fields that nothing reads.
    notes: Vec<String>,
    sink: Sink,
    provenance: Provenance,
    codec: Option<&'a dyn TextCodec>,
}

impl<'a> Job<'a> {
    /// Opens the output, reads the input and finds out what is left to do. Nothing is written.
    ///
    /// # Errors
    /// An interruption while the input is read, an input that cannot be read, or an output that
    /// must not or cannot be written.
    pub fn prepare(
        options: &JobOptions,
        model: ModelFacts<'a>,
        reading: &mut Reading,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Job<'a>, JobError> {
        // Before anything that takes long: an output that cannot be written is told at once.
        let (mut sink, existing) =
            Sink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let recorded = Recorded::read(&existing);
        let input = Source::read(&options.input, interrupted)?;
        // A file that was touched or a model that was moved is still the same job.
        let (created, model_name) = match &recorded {
            Some(recorded) => (recorded.created, recorded.model.clone()),
            None => (input.created(), model.name),
        };
        let unread = Unread::new(options.ignore_unknown_fields);
        let input_options = InputOptions {
            format: Format::of(&options.input),
            chat: options.chat,
            max_tokens: options.max_tokens,
            seed: options.seed,
            now_s: if created == 0 { seconds_now() } else { created },
            defaults: &options.defaults,
            unread: &unread,
            codec: model.codec,
            limits: model.limits,
        };
        let read = read_items(&input.bytes, &input_options, &mut |done, total| {
            reading.update(done, total);
            if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        reading.end();
        let items = read.ok_or(JobError::Interrupted)?;
        let requests = items.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request),
            Item::Error(_) => None,
        });
        let known = recorded.as_ref().map(|recorded| recorded.system_fingerprint.as_str());
        let system_fingerprint = (model.system_fingerprint)(Demand::of(requests), known);
        let resume = match &options.output {
            Place::File(path) if options.mode.resumes() => Resume::read(
                &existing,
                &path.display().to_string(),
                &items,
                &system_fingerprint,
                options.mode == OutputMode::ResumeReplacing,
            )?,
            _ => Resume::nothing(&items),
        };
        sink.keep(resume.whole_bytes);
        Ok(Job {
            items,
            lines: resume.kept,
            ended: resume.ended,
            unfinished: resume.unfinished,
            replaced: resume.replaced,
            notes: unread.notes(),
            sink,
            provenance: Provenance { created, model: model_name, system_fingerprint },
            codec: model.codec,
        })
    }

    /// What to say of the input, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What a resumed output holds, in a line; `None` where it holds no answer.
    pub fn resumed(&self) -> Option<String> {
        let lines = self.items.iter().zip(&self.lines);
        let kept = lines.filter(|(item, line)| matches!(item, Item::Request(_)) && line.is_some());
        let (kept, left) = (kept.count(), self.pending_requests().count());
        match (kept, self.replaced) {
            (0, 0) => None,
            (_, 0) => Some(format!("{kept} answers kept, {left} to be made")),
            (_, replaced) => Some(format!(
                "{kept} answers kept, {replaced} replaced or dropped, {left} to be made"
            )),
        }
    }

    /// What an engine must be able to run; `None` when every request is answered or an error, so
    /// that no engine is needed.
    pub fn demand(&self) -> Option<Demand> {
        Demand::of(self.pending_requests().map(|(_, request)| request))
    }

    /// The forms that answers still to be made must have.
    pub fn grammars(&self) -> Vec<Grammar> {
        let mut seen = HashSet::new();
        let grammars =
            self.pending_requests().filter_map(|(_, request)| request.grammar.as_deref());
        grammars.filter(|grammar| seen.insert(*grammar)).cloned().collect()
    }

    /// How many lines have errors, and the first of their sentences, so that a user need not open
    /// the output to learn why something is not answered. `None` where there are none.
    pub fn errors(&self) -> Option<String> {
        let errors: Vec<&LineError> = self
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Error(error) => Some(error),
                Item::Request(_) => None,
            })
            .collect();
        let first = errors.first()?;
        let sentence = format!("line {}: {}", first.line, first.rejection.message);
        let lines = self.items.len();
        Some(match errors.len() {
            1 => sentence,
            count => format!("{count} of {lines} lines have errors; the first, {sentence}"),
        })
    }

    fn pending_requests(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            Item::Request(request) if self.lines[index].is_none() => Some((index, request)),
            _ => None,
        })
    }

    /// Sizes of the groups in which an engine of this capacity would run them if none took the slot
    /// of another.
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

    /// Runs what is left to do. `engine` may be `None` only when [`Job::demand`] is. `interrupted`
    /// is asked before anything runs; the engine asks it meanwhile.
    ///
    /// # Errors
    /// An engine that failed or an output that cannot be written. Finished answers are in the
    /// output either way.
    pub fn run(
        mut self,
        engine: Option<&mut dyn Engine>,
        progress: &mut dyn Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Summary, JobError> {
        let ran = self.run_sequences(engine, progress, interrupted);
        progress.end();
        // A broken output cannot be put in order; the log it is can still be resumed.
        if !matches!(ran, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines = self.lines.iter().zip(&self.unfinished);
            let lines: Vec<Range<u64>> =
                lines.flat_map(|(line, some)| line.iter().chain(&some.lines).cloned()).collect();
            self.sink.settle(&lines, matches!(ran, Ok(false)))?;
        }
        Ok(self.summary(ran?))
    }

    /// Whether it was interrupted.
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
        // What cannot be answered is told at once.
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
        let mut follower = Follower::new(*codec, &pending, &sequences, progress, &mut answers);
        let ran = engine.run(&sequences, &mut follower);
        let finished = follower.end()?;
        // Whatever happened to the others.
        answers.write()?;
        answers.join_unfinished()?;
        match ran {
            Ok(()) if finished == sequences.len() => Ok(false),
            Ok(()) => Err(JobError::Engine(format!(
                "The engine told {finished} results of {} sequences.",
                sequences.len()
            ))),
            Err(EngineError::Interrupted) => Ok(true),
            Err(EngineError::Failed(message)) => Err(JobError::Engine(message)),
        }
    }

    /// Every answer that is still to be made, in the order in which they begin: the longest first,
    /// so that none of them is left running alone at the end; otherwise as their prompts stand in
    /// the input.
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
                (Item::Request(_), Some(_)) => summary.answered += 1,
                (Item::Error(error), Some(_)) => summary.failed_lines.push(error.line),
            }
        }
        summary
    }
}

/// Since 1970.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
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
        max_new: prompt.max_new,
        sampling: request.sampling,
        seed: request.seed,
        id_hash: sampling_id(request, ticket.choice),
        ignore_eos: request.ignore_eos,
        logprobs: request.logprobs_of_token(),
        grammar: request.grammar.as_deref().map_or(0, |grammar| grammars[grammar]),
    }
}
