//! A job before it can run: what its input asks for, then, once it is decided how that is computed,
//! what its output already answers.

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
use crate::openai::item::Item;
use crate::openai::output::Provenance;
use crate::openai::prompt::Limits;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Raw prompts become one user message each.
    pub chat: bool,
    pub chats: ChatOptions,
    /// For requests that do not say, at least 1; without it a default.
    pub max_tokens: Option<u32>,
    /// For requests that do not say.
    pub seed: u64,
    /// For raw prompts and short lines that do not say.
    pub defaults: Defaults,
    /// Fields that are not implemented are left out instead of refused.
    pub ignore_unknown_fields: bool,
}

/// What the job must know of the model.
pub struct ModelFacts<'a> {
    pub name: String,
    pub limits: Limits,
    /// `None` when the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
}

impl std::fmt::Debug for ModelFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFacts").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A job whose input is read; its output is locked, and nothing is written.
#[derive(Debug)]
pub struct ReadJob<'a> {
    options: &'a JobOptions,
    items: Vec<Item>,
    notes: Vec<String>,
    sink: Sink,
    /// What the output holds.
    existing: Vec<u8>,
    recorded: Option<Recorded>,
    created: u64,
    model: ModelFacts<'a>,
}

impl<'a> ReadJob<'a> {
    /// Locks the output and reads the input.
    ///
    /// # Errors
    /// An interruption while the input is read, an input that cannot be read, or an output that
    /// must not or cannot be written.
    pub fn read(
        options: &'a JobOptions,
        model: ModelFacts<'a>,
        reading: &mut Reading,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<ReadJob<'a>, JobError> {
        // Before anything that takes long: an output that cannot be written is told at once.
        let (sink, existing) =
            Sink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let recorded = Recorded::read(&existing);
        let input = Source::read(&options.input, interrupted)?;
        // A file that was touched is still the same job.
        let created = recorded.as_ref().map_or_else(|| input.created(), |known| known.created);
        let unread = Unread::new(options.ignore_unknown_fields);
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
        let notes = unread.notes();
        Ok(ReadJob { options, items, notes, sink, existing, recorded, created, model })
    }

    /// Maxima over all requests of the input; `None` when it has none.
    pub fn demand(&self) -> Option<Demand> {
        Demand::of(self.items.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request),
            Item::Error(_) => None,
        }))
    }

    /// The system fingerprint of the answers that the output holds.
    pub fn recorded_fingerprint(&self) -> Option<&str> {
        self.recorded.as_ref().map(|recorded| recorded.system_fingerprint.as_str())
    }

    /// Finds out what is left to do for a system of this fingerprint
    /// ([`crate::openai::fingerprint::system_fingerprint`]).
    ///
    /// # Errors
    /// An output with other answers than these.
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

/// Since 1970.
fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
