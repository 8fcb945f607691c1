//! The job from input file to last line.

use std::ops::Range;

use super::codec::TextCodec;
use super::engine::{Engine, EngineError, Observer, Sequence, Verdict};
use super::error::JobError;
use super::fingerprint::id_hash;
use super::input::{InputOptions, read_items};
use super::item::{Item, Request};
use super::output::{Provenance, answer_line, error_line};
use super::progress::{Amount, Progress};
use super::prompt::Limits;
use super::resume::Resume;
use super::sink::{OutputMode, Place, Sink};
use super::source::{Source, format_of};
use super::stop::{Answer, StopWatcher, finish};
use super::summary::Summary;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Raw prompts become one user message each.
    pub chat: bool,
    /// For requests that do not say; at least 1.
    pub max_tokens: u32,
    /// For requests that do not say.
    pub seed: u64,
}

/// Says the fingerprint of answers to requests of this demand (`None`: there is no request).
pub type Fingerprinter<'a> = Box<dyn Fn(Option<Demand>) -> String + 'a>;

/// What the job must know of the model.
pub struct ModelFacts<'a> {
    pub name: String,
    /// See [`super::fingerprint::system_fingerprint`]. In which form weights are kept may depend on what
    /// all requests together need, so it is asked once they are known.
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
    /// Largest number of new tokens.
    pub max_new: u32,
    /// Longest prompt + new tokens of one sequence.
    pub max_context: usize,
}

impl Demand {
    /// Of some requests; `None` when there are none.
    fn of<'r>(requests: impl Iterator<Item = &'r Request>) -> Option<Demand> {
        requests.flat_map(|request| &request.prompts).fold(None, |demand, prompt| {
            let (tokens, max_new) = (prompt.tokens.len(), prompt.max_new);
            let old = demand.unwrap_or(Demand {
                sequences: 0,
                max_prompt: 0,
                max_new: 0,
                max_context: 0,
            });
            Some(Demand {
                sequences: old.sequences + 1,
                max_prompt: old.max_prompt.max(tokens),
                max_new: old.max_new.max(max_new),
                max_context: old.max_context.max(tokens + max_new as usize),
            })
        })
    }
}

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct Job<'a> {
    items: Vec<Item>,
    /// Where each item's line lies in the output; `None`: still to do.
    lines: Vec<Option<Range<u64>>>,
    sink: Sink,
    provenance: Provenance,
    codec: Option<&'a dyn TextCodec>,
}

impl<'a> Job<'a> {
    /// Reads the input, opens the output and finds out what is left to do. Nothing is written.
    ///
    /// # Errors
    /// An input that cannot be read, or an output that must not or cannot be written.
    pub fn prepare(options: &JobOptions, model: ModelFacts<'a>) -> Result<Job<'a>, JobError> {
        let input = Source::read(&options.input)?;
        let items = read_items(
            &input.bytes,
            &InputOptions {
                format: format_of(&options.input),
                chat: options.chat,
                max_tokens: options.max_tokens,
                seed: options.seed,
                codec: model.codec,
                limits: model.limits,
            },
        );
        let requests = items.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request),
            Item::Error(_) => None,
        });
        let system_fingerprint = (model.system_fingerprint)(Demand::of(requests));
        let (mut sink, existing) =
            Sink::open(&options.output, options.mode, input.metadata.as_ref())?;
        let resume = match &options.output {
            Place::File(path) if options.mode == OutputMode::Resume => {
                Resume::read(&existing, &path.display().to_string(), &items, &system_fingerprint)?
            }
            _ => Resume::nothing(&items),
        };
        sink.keep(resume.whole_bytes);
        Ok(Job {
            items,
            lines: resume.kept,
            sink,
            provenance: Provenance {
                created: input.created(),
                model: model.name,
                system_fingerprint,
            },
            codec: model.codec,
        })
    }

    /// What an engine must be able to run; `None` when every request is answered or an error, so
    /// that no engine is needed.
    pub fn demand(&self) -> Option<Demand> {
        Demand::of(self.pending_requests().map(|(_, request)| request))
    }

    /// The sentence of the first error line there will be, so that a user need not open the output to
    /// learn why nothing was answered.
    pub fn first_error(&self) -> Option<String> {
        self.items.iter().find_map(|item| match item {
            Item::Error(error) => Some(format!("line {}: {}", error.line, error.rejection.message)),
            Item::Request(_) => None,
        })
    }

    fn pending_requests(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            Item::Request(request) if self.lines[index].is_none() => Some((index, request)),
            _ => None,
        })
    }

    /// Runs what is left to do. `engine` may be `None` only when [`Job::demand`] is. `interrupted`
    /// is asked between groups; the engine asks it inside them.
    ///
    /// # Errors
    /// An engine that failed or an output that cannot be written. Finished groups are in the output
    /// either way.
    pub fn run(
        mut self,
        engine: Option<&mut dyn Engine>,
        progress: &mut dyn Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Summary, JobError> {
        let ran = self.run_groups(engine, progress, interrupted);
        progress.end();
        // A broken output cannot be put in order; the log it is can still be resumed.
        if !matches!(ran, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines: Vec<Range<u64>> = self.lines.iter().flatten().cloned().collect();
            self.sink.settle(&lines, matches!(ran, Ok(false)))?;
        }
        Ok(self.summary(ran?))
    }

    /// Whether it was interrupted.
    fn run_groups(
        &mut self,
        engine: Option<&mut dyn Engine>,
        progress: &mut dyn Progress,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<bool, JobError> {
        let tickets: Vec<Ticket> = self
            .pending_requests()
            .flat_map(|(item, request)| {
                (0..request.prompts.len()).map(move |prompt| Ticket { item, prompt })
            })
            .collect();
        let mut answers: Vec<Vec<Answer>> = vec![Vec::new(); self.items.len()];
        let Some(engine) = engine else {
            assert!(tickets.is_empty(), "a job with requests left was run without an engine");
            return self.write_finished(&mut answers).map(|()| false);
        };
        let capacity = engine.group_capacity().max(1);
        let max_tokens = tickets.iter().map(|t| u64::from(self.sequence(*t).max_new)).sum();
        let mut counter = Counter {
            done: Amount::default(),
            total: Amount {
                groups: tickets.len().div_ceil(capacity),
                sequences: tickets.len(),
                tokens: max_tokens,
            },
            progress,
        };
        if !tickets.is_empty() {
            counter.progress.begin(counter.total);
        }
        self.write_finished(&mut answers)?;
        for group in tickets.chunks(capacity) {
            if interrupted() {
                return Ok(true);
            }
            match self.run_group(group, engine, &mut counter) {
                Ok(group_answers) => {
                    for (ticket, answer) in group.iter().zip(group_answers) {
                        answers[ticket.item].push(answer);
                    }
                }
                Err(EngineError::Interrupted) => return Ok(true),
                Err(EngineError::Failed(message)) => return Err(JobError::Engine(message)),
            }
            self.write_finished(&mut answers)?;
        }
        Ok(false)
    }

    fn request(&self, item: usize) -> &Request {
        match &self.items[item] {
            Item::Request(request) => request,
            Item::Error(_) => unreachable!("tickets are made of requests"),
        }
    }

    fn sequence(&self, ticket: Ticket) -> Sequence {
        let request = self.request(ticket.item);
        let prompt = &request.prompts[ticket.prompt];
        Sequence {
            prompt: prompt.tokens.clone(),
            max_new: prompt.max_new,
            temperature: request.temperature,
            top_p: request.top_p,
            seed: request.seed,
            id_hash: id_hash(&request.custom_id, ticket.prompt),
            ignore_eos: request.ignore_eos,
        }
    }

    fn run_group(
        &self,
        group: &[Ticket],
        engine: &mut dyn Engine,
        counter: &mut Counter<'_>,
    ) -> Result<Vec<Answer>, EngineError> {
        let sequences: Vec<Sequence> = group.iter().map(|ticket| self.sequence(*ticket)).collect();
        let watchers = group.iter().map(|ticket| {
            let stop = &self.request(ticket.item).stop;
            let codec = self.codec.filter(|_| !stop.is_empty())?;
            Some(StopWatcher::new(codec, stop))
        });
        let mut follower = Follower { watchers: watchers.collect(), counter };
        let generated = engine.run_group(&sequences, &mut follower)?;
        if generated.len() != group.len() {
            return Err(EngineError::Failed(format!(
                "The engine returned {} results for a group of {} sequences.",
                generated.len(),
                group.len()
            )));
        }
        let most: u64 = sequences.iter().map(|sequence| u64::from(sequence.max_new)).sum();
        let made: u64 = generated.iter().map(|result| result.tokens.len() as u64).sum();
        counter.end_group(group.len(), most, made);
        let results = group.iter().zip(generated);
        Ok(results
            .map(|(ticket, result)| finish(result, &self.request(ticket.item).stop, self.codec))
            .collect())
    }

    /// Writes, in input order, every line that is known, up to the first request that is not
    /// completely answered.
    fn write_finished(&mut self, answers: &mut [Vec<Answer>]) -> Result<(), JobError> {
        let mut text = Vec::new();
        let mut written = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            if self.lines[index].is_some() {
                continue;
            }
            let line = match item {
                Item::Error(error) => error_line(error),
                Item::Request(request) if answers[index].len() == request.prompts.len() => {
                    answer_line(request, std::mem::take(&mut answers[index]), &self.provenance)
                }
                Item::Request(_) => break,
            };
            let start = text.len() as u64;
            text.extend(line);
            written.push((index, start..text.len() as u64));
        }
        let whole = self.sink.append(&text)?;
        for (index, range) in written {
            self.lines[index] = Some(whole.start + range.start..whole.start + range.end);
        }
        Ok(())
    }

    fn summary(&self, interrupted: bool) -> Summary {
        let mut summary =
            Summary { answered: 0, failed_lines: Vec::new(), not_run: 0, interrupted };
        for (item, line) in self.items.iter().zip(&self.lines) {
            match (item, line) {
                (_, None) => summary.not_run += 1,
                (Item::Request(_), Some(_)) => summary.answered += 1,
                (Item::Error(error), Some(_)) => summary.failed_lines.push(error.line),
            }
        }
        summary
    }
}

/// One prompt of a pending request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket {
    item: usize,
    prompt: usize,
}

/// Tokens generated, against tokens there can be.
struct Counter<'p> {
    done: Amount,
    total: Amount,
    progress: &'p mut dyn Progress,
}

impl Counter<'_> {
    fn token(&mut self) {
        self.done.tokens += 1;
        self.progress.update(self.done, self.total, false);
    }

    fn end_group(&mut self, sequences: usize, most_tokens: u64, made_tokens: u64) {
        self.done.groups += 1;
        self.done.sequences += sequences;
        self.total.tokens -= most_tokens.saturating_sub(made_tokens);
        self.progress.update(self.done, self.total, true);
    }
}

/// Follows a group: counts tokens and looks for stop strings.
struct Follower<'f, 'p, 'w> {
    watchers: Vec<Option<StopWatcher<'w>>>,
    counter: &'f mut Counter<'p>,
}

impl Observer for Follower<'_, '_, '_> {
    fn token(&mut self, sequence: usize, token: u32) -> Verdict {
        self.counter.token();
        let watcher = self.watchers.get_mut(sequence).and_then(Option::as_mut);
        if watcher.is_some_and(|watcher| watcher.push(token)) {
            Verdict::Stop
        } else {
            Verdict::Continue
        }
    }
}
