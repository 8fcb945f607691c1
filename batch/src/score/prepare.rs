//! Preparation of a scoring job: reads and parses the input, then, once the way of computation is
//! decided, finds out what the output already contains.

use engine_api::codec::CodecError;
use openai::input_line::InputLine;

use super::line::{LineOptions, parse_line};
use super::question::{ScoreDetails, ScoreQuestion};
use super::scores::{ScoreJob, Scores};
use super::windows::WindowSizes;
use crate::error::JobError;
use crate::input::InputFormat;
use crate::input_data::InputData;
use crate::progress_counter::ProgressCounter;
use crate::read::{BOM, parse_items, read_items};
use crate::run::{Job, JobFiles};
use crate::sink::{IoTarget, OutputMode, OutputSink};

/// Options of the user.
#[derive(Debug, Clone)]
pub struct ScoreJobOptions {
    /// Input: a `.txt` file is a single text, anything else holds questions.
    pub input: IoTarget,
    pub output: IoTarget,
    pub mode: OutputMode,
    /// Window sizes for a text.
    pub windows: WindowSizes,
    pub details: ScoreDetails,
}

/// A job whose input is read and whose output is locked. Nothing is written yet.
#[derive(Debug)]
pub struct PreparedScoreJob<'o> {
    options: &'o ScoreJobOptions,
    files: JobFiles<ScoreQuestion>,
}

/// Reason for which nothing can be scored. Every message is a sentence that a user can act on.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{0}")]
    NoTokenizer(String),
    #[error("the text is not valid UTF-8 (byte {byte}). Save the file as UTF-8.")]
    Utf8 { byte: usize },
    #[error("the text cannot be tokenised: {0}")]
    Tokenizer(CodecError),
    #[error("the text has {0} tokens; at least two are required")]
    TooShort(usize),
}

impl<'o> PreparedScoreJob<'o> {
    /// Locks the output and reads the input.
    ///
    /// # Errors
    /// Returns an error if reading is interrupted, if the input cannot be read, or if the output
    /// must not or cannot be written.
    pub fn prepare(
        options: &'o ScoreJobOptions,
        line_options: &LineOptions<'_>,
        reading: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<PreparedScoreJob<'o>, ScoreError> {
        // First, so that an output that cannot be written is reported before anything that takes
        // long.
        let (sink, existing) =
            OutputSink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let input = InputData::read(&options.input, interrupted)?;
        let items = match InputFormat::from_target(&options.input) {
            InputFormat::Text => split_windows(&input.bytes, options.windows, line_options)?,
            InputFormat::JsonLines => read_items(reading, interrupted, |on_progress| {
                let parse = |raw: &[u8], line| parse_line(raw, line, line_options);
                parse_items(&input.bytes, usize::MAX, &parse, &Ok, on_progress)
            })?,
        };
        let files = JobFiles { items, notes: Vec::new(), sink, existing, mode: options.mode };
        Ok(PreparedScoreJob { options, files })
    }

    /// Returns the length of the longest sequence of the input, in tokens; `None` if it has no
    /// valid question.
    pub fn max_sequence_len(&self) -> Option<usize> {
        let questions = self.files.items.iter().filter_map(InputLine::request);
        questions.map(ScoreQuestion::max_sequence_len).max()
    }

    /// Finds out what is left to do for a system with this fingerprint.
    ///
    /// # Errors
    /// Returns an error if the output holds scores of another job.
    pub fn resume(self, system_fingerprint: String) -> Result<ScoreJob, JobError> {
        let PreparedScoreJob { options, files } = self;
        let is_text = InputFormat::from_target(&options.input) == InputFormat::Text;
        let windows = is_text.then_some(options.windows);
        Job::resume(Scores::new(options.details, windows, system_fingerprint), files)
    }
}

/// Splits a text into windows.
fn split_windows(
    bytes: &[u8],
    windows: WindowSizes,
    options: &LineOptions<'_>,
) -> Result<Vec<InputLine<ScoreQuestion>>, ScoreError> {
    let codec = options.codec.ok_or_else(|| {
        let consequence = "; specify lines with token ids instead of a text";
        ScoreError::NoTokenizer(options.limits.missing_tokenizer_message(consequence))
    })?;
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ScoreError::Utf8 { byte: error.valid_up_to() + 1 })?;
    let tokens = codec.encode(text, usize::MAX).map_err(ScoreError::Tokenizer)?;
    let questions = windows.split(&tokens);
    if questions.is_empty() {
        return Err(ScoreError::TooShort(tokens.len()));
    }
    Ok(questions.into_iter().map(InputLine::Request).collect())
}
