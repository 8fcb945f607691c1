//! Preparation of a job: reads and parses the input, then, once the way of computation is decided,
//! finds out what the output already answers.

use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use super::demand::Demand;
use super::error::JobError;
use super::input::{Format, InputOptions};
use super::read::{check_read, read_items};
use super::reading::Reading;
use super::resume::{Recorded, Resume};
use super::run::Job;
use super::sink::{OutputMode, Place, Sink};
use super::source::Source;
use crate::boundary::codec::TextCodec;
use crate::openai::body::defaults::Defaults;
use crate::openai::body::unread::Unread;
use crate::openai::chats::{ChatOptions, ChatRules};
use crate::openai::item::{Item, warnings_of};
use crate::openai::output::Provenance;
use crate::openai::prompt::Limits;

/// Options of the user.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Turns each raw prompt into one user message.
    pub chat: bool,
    pub chats: ChatOptions,
    /// Limit of requests without one, at least 1; `None` for the default of their endpoint.
    pub max_tokens: Option<u32>,
    /// Seed of requests without one.
    pub seed: u64,
    /// Defaults for raw prompts and short lines.
    pub defaults: Defaults,
    /// Ignores fields that are not implemented instead of refusing them.
    pub ignore_unknown_fields: bool,
}

/// Properties of the model that a job depends on.
pub struct ModelFacts<'a> {
    pub name: String,
    /// Other names that requests may use for the model.
    pub aliases: Vec<String>,
    pub limits: Limits,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
}

impl std::fmt::Debug for ModelFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFacts").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A job whose input is read and whose output is locked. Nothing is written yet.
#[derive(Debug)]
pub struct ReadJob<'a> {
    options: &'a JobOptions,
    items: Vec<Item>,
    notes: Vec<String>,
    sink: Sink,
    /// Content of the output.
    existing: Vec<u8>,
    recorded: Option<Recorded>,
    created: u64,
    model: ModelFacts<'a>,
}

impl<'a> ReadJob<'a> {
    /// Locks the output and reads the input.
    ///
    /// # Errors
    /// Returns an error if reading is interrupted, if the input cannot be read, or if the output
    /// must not or cannot be written.
    pub fn read(
        options: &'a JobOptions,
        model: ModelFacts<'a>,
        reading: &mut Reading,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<ReadJob<'a>, JobError> {
        // First, so that an output that cannot be written is reported before anything that takes
        // long.
        let (sink, existing) =
            Sink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let recorded = Recorded::read(&existing);
        let input = Source::read(&options.input, interrupted)?;
        // An input file that was touched still makes the same job.
        let created = recorded.as_ref().map_or_else(|| input.created(), |known| known.created);
        let names = std::iter::once(&model.name).chain(&model.aliases).cloned().collect();
        let unread = Unread::new(options.ignore_unknown_fields).with_model_names(names);
        let chats = ChatRules::new(&options.chats, model.codec).map_err(JobError::Chats)?;
        let input_options = InputOptions {
            format: Format::of(&options.input),
            chat: options.chat,
            chats: &chats,
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
        check_read(items.iter().filter_map(|item| match item {
            Item::Error(error) => Some(error),
            Item::Request(_) => None,
        }))?;
        let mut notes = unread.notes();
        notes.extend(warnings_of(&items));
        Ok(ReadJob { options, items, notes, sink, existing, recorded, created, model })
    }

    /// Returns the maxima over all requests of the input; `None` if it has none.
    pub fn demand(&self) -> Option<Demand> {
        Demand::of(self.items.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request),
            Item::Error(_) => None,
        }))
    }

    /// Returns the system fingerprint of the answers in the output.
    pub fn recorded_fingerprint(&self) -> Option<&str> {
        self.recorded.as_ref().map(|recorded| recorded.system_fingerprint.as_str())
    }

    /// Finds out what is left to do for a system with this fingerprint
    /// ([`crate::openai::fingerprint::system_fingerprint`]).
    ///
    /// # Errors
    /// Returns an error if the output holds answers of another job.
    pub fn open(self, system_fingerprint: String) -> Result<Job<'a>, JobError> {
        let ReadJob { options, items, notes, mut sink, existing, recorded, created, model } = self;
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
        // A model that was moved is still the same.
        let model_name = recorded.map_or(model.name, |recorded| recorded.model);
        let provenance = Provenance { created, model: model_name, system_fingerprint };
        let Resume { kept: lines, ended, unfinished, replaced, .. } = resume;
        let codec = model.codec;
        Ok(Job { items, lines, ended, unfinished, replaced, notes, sink, provenance, codec })
    }
}

/// Returns the current time in seconds since 1970.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
