//! Preparation of a job: reads and parses the input, then, once the way of computation is decided,
//! finds out what the output already answers.

use std::time::{SystemTime, UNIX_EPOCH};

use engine_api::codec::TextCodec;
use openai::body::defaults::Defaults;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::{ChatOptions, ChatRules};
use openai::embeddings::model::EmbeddingModel;
use openai::input_line::{BatchEndpoint, CompletionRequest, InputLine, summarize_warnings};
use openai::output::Provenance;
use openai::prompt::ModelLimits;

use super::completions::{BatchJob, Completions};
use super::embeddings::line::{EmbeddingLineOptions, requests_embeddings};
use super::embeddings::prepare::PreparedEmbeddings;
use super::error::JobError;
use super::input::{InputFormat, InputOptions};
use super::input_data::InputData;
use super::line_bounds::LineBounds;
use super::progress_counter::ProgressCounter;
use super::provenance::RecordedProvenance;
use super::read::{parse_input, read_items};
use super::run::{Job, JobFiles};
use super::sink::{IoTarget, OutputMode, OutputSink};
use super::workload::JobWorkload;

/// Options of the user.
#[derive(Debug, Clone)]
pub struct JobOptions {
    pub input: IoTarget,
    pub output: IoTarget,
    pub mode: OutputMode,
    /// Turns each raw prompt into one user message.
    pub chat: bool,
    pub chat_options: ChatOptions,
    /// Limit of requests without one, at least 1; `None` for the default of their endpoint.
    pub max_tokens: Option<u32>,
    /// Seed of requests without one.
    pub seed: u64,
    /// Defaults for raw prompts and short lines.
    pub defaults: Defaults,
    /// Ignores fields that are not implemented instead of refusing them.
    pub ignore_unknown_fields: bool,
    /// Bounds on every line; `None` for an input of the user.
    pub bounds: Option<LineBounds>,
}

/// Properties of the model that a job depends on.
pub struct ModelInfo<'a> {
    pub name: String,
    /// Other names that requests may use for the model.
    pub aliases: Vec<String>,
    pub limits: ModelLimits,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
}

impl std::fmt::Debug for ModelInfo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ModelInfo<'_> {
    fn unknown_fields(&self, options: &JobOptions) -> UnknownFieldPolicy {
        let names = std::iter::once(&self.name).chain(&self.aliases).cloned().collect();
        UnknownFieldPolicy::new(options.ignore_unknown_fields).with_model_names(names)
    }
}

/// The bytes of an input, and the locked output of its job.
struct OpenedFiles {
    sink: OutputSink,
    /// Content of the output.
    existing: Vec<u8>,
    input: InputData,
}

impl OpenedFiles {
    fn open(options: &JobOptions, interrupted: &dyn Fn() -> bool) -> Result<OpenedFiles, JobError> {
        // First, so that an output that cannot be written is reported before anything that takes
        // long.
        let (sink, existing) =
            OutputSink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let input = InputData::read(&options.input, interrupted)?;
        Ok(OpenedFiles { sink, existing, input })
    }
}

/// A job of either kind whose input is read and whose output is locked.
#[derive(Debug)]
pub enum PreparedInput<'a> {
    Completions(PreparedJob<'a>),
    Embeddings(PreparedEmbeddings),
}

impl<'a> PreparedInput<'a> {
    /// Locks the output and reads the input, whose endpoint decides the kind of the job: that of
    /// the bounds or, without bounds, that of its first line.
    ///
    /// # Errors
    /// Returns an error like [`PreparedJob::prepare`].
    pub fn prepare(
        options: &'a JobOptions,
        model: ModelInfo<'a>,
        embeddings: &EmbeddingModel,
        reading: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PreparedInput<'a>, JobError> {
        let files = OpenedFiles::open(options, interrupted)?;
        let is_json = InputFormat::from_target(&options.input) == InputFormat::JsonLines;
        let has_embeddings = match &options.bounds {
            Some(bounds) => bounds.endpoint == BatchEndpoint::Embeddings,
            None => is_json && requests_embeddings(&files.input.bytes),
        };
        if !has_embeddings {
            let job = PreparedJob::parse(files, options, model, reading, interrupted)?;
            return Ok(PreparedInput::Completions(job));
        }
        let OpenedFiles { sink, existing, input } = files;
        let unknown_fields = model.unknown_fields(options);
        let line_options = EmbeddingLineOptions {
            model: embeddings,
            limits: model.limits,
            unknown_fields: &unknown_fields,
            codec: model.codec,
            bounds: options.bounds.as_ref(),
        };
        let items = PreparedEmbeddings::parse(&input.bytes, &line_options, reading, interrupted)?;
        let notes = unknown_fields.notes();
        let files = JobFiles { items, notes, sink, existing, mode: options.mode };
        Ok(PreparedInput::Embeddings(PreparedEmbeddings { files, model: model.name }))
    }
}

/// A job whose input is read and whose output is locked. Nothing is written yet.
#[derive(Debug)]
pub struct PreparedJob<'a> {
    files: JobFiles<CompletionRequest>,
    recorded: Option<RecordedProvenance>,
    created: u64,
    model: ModelInfo<'a>,
}

impl<'a> PreparedJob<'a> {
    /// Locks the output and reads the input.
    ///
    /// # Errors
    /// Returns an error if reading is interrupted, if the input cannot be read, or if the output
    /// must not or cannot be written.
    pub fn prepare(
        options: &'a JobOptions,
        model: ModelInfo<'a>,
        reading: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PreparedJob<'a>, JobError> {
        let files = OpenedFiles::open(options, interrupted)?;
        PreparedJob::parse(files, options, model, reading, interrupted)
    }

    fn parse(
        files: OpenedFiles,
        options: &'a JobOptions,
        model: ModelInfo<'a>,
        reading: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PreparedJob<'a>, JobError> {
        let OpenedFiles { sink, existing, input } = files;
        let recorded = RecordedProvenance::from_output(&existing);
        // An input file that was touched still makes the same job.
        let created = recorded.as_ref().map_or_else(|| input.modified_s(), |known| known.created);
        let unknown_fields = model.unknown_fields(options);
        let chat_rules =
            ChatRules::new(&options.chat_options, model.codec).map_err(JobError::Chats)?;
        let input_options = InputOptions {
            format: InputFormat::from_target(&options.input),
            chat: options.chat,
            chat_rules: &chat_rules,
            max_tokens: options.max_tokens,
            seed: options.seed,
            now_s: if created == 0 { unix_time_s() } else { created },
            defaults: &options.defaults,
            unknown_fields: &unknown_fields,
            codec: model.codec,
            limits: model.limits,
            bounds: options.bounds.as_ref(),
        };
        let items = read_items(reading, interrupted, |on_progress| {
            parse_input(&input.bytes, &input_options, on_progress)
        })?;
        let mut notes = unknown_fields.notes();
        notes.extend(summarize_warnings(&items));
        let files = JobFiles { items, notes, sink, existing, mode: options.mode };
        Ok(PreparedJob { files, recorded, created, model })
    }

    /// Returns the maxima over all requests of the input; `None` if it has none.
    pub fn workload(&self) -> Option<JobWorkload> {
        JobWorkload::from_requests(self.files.items.iter().filter_map(InputLine::request))
    }

    /// Returns the number of lines that are not blank.
    pub fn line_count(&self) -> usize {
        self.files.items.len()
    }

    /// Returns the number of answers to all requests.
    pub fn answer_count(&self) -> usize {
        let requests = self.files.items.iter().filter_map(InputLine::request);
        requests.map(CompletionRequest::choice_count).sum()
    }

    /// Returns the system fingerprint of the answers in the output.
    pub fn recorded_fingerprint(&self) -> Option<&str> {
        self.recorded.as_ref().map(|recorded| recorded.system_fingerprint.as_str())
    }

    /// Finds out what is left to do for a system with this fingerprint
    /// ([`openai::fingerprint::system_fingerprint`]).
    ///
    /// # Errors
    /// Returns an error if the output holds answers of another job.
    pub fn resume(self, system_fingerprint: String) -> Result<BatchJob<'a>, JobError> {
        let PreparedJob { files, recorded, created, model } = self;
        // A model that was moved is still the same.
        let model_name = recorded.map_or(model.name, |recorded| recorded.model);
        let provenance = Provenance { created, model: model_name, system_fingerprint };
        Job::resume(Completions::new(provenance, model.codec), files)
    }
}

/// Returns the current time in seconds since 1970.
fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
