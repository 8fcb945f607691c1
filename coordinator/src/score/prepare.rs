//! Preparation of a scoring job: reads and parses the input, then, once the way of computation is
//! decided, finds out what the output already contains.

use std::ops::ControlFlow;

use super::item::{Item, Shown};
use super::job::Job;
use super::line::{LineOptions, read_line};
use super::resume::Resume;
use super::windows::Windows;
use crate::boundary::codec::CodecError;
use crate::job::error::JobError;
use crate::job::input::Format;
use crate::job::read::{BOM, Ids, check_read, lines_of, read_lines};
use crate::job::reading::Reading;
use crate::job::sink::{OutputMode, Place, Sink};
use crate::job::source::Source;
use crate::openai::item::LineError;

/// Options of the user.
#[derive(Debug, Clone)]
pub struct ScoreOptions {
    /// Input: a `.txt` file is a single text, anything else holds questions.
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Window sizes for a text.
    pub windows: Windows,
    pub shown: Shown,
}

/// A job whose input is read and whose output is locked. Nothing is written yet.
#[derive(Debug)]
pub struct ReadJob<'o> {
    options: &'o ScoreOptions,
    items: Vec<Item>,
    sink: Sink,
    existing: Vec<u8>,
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
    Short(usize),
}

impl<'o> ReadJob<'o> {
    /// Locks the output and reads the input.
    ///
    /// # Errors
    /// Returns an error if reading is interrupted, if the input cannot be read, or if the output
    /// must not or cannot be written.
    pub fn read(
        options: &'o ScoreOptions,
        of_lines: &LineOptions<'_>,
        reading: &mut Reading,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<ReadJob<'o>, ScoreError> {
        // First, so that an output that cannot be written is reported before anything that takes
        // long.
        let (sink, existing) =
            Sink::open(&options.output, options.mode, options.input.metadata()?.as_ref())?;
        let input = Source::read(&options.input, interrupted)?;
        let items = match Format::of(&options.input) {
            Format::Text => windows(&input.bytes, options.windows, of_lines)?,
            Format::JsonLines => lines(&input.bytes, of_lines, reading, interrupted)?,
        };
        Ok(ReadJob { options, items, sink, existing })
    }

    /// Returns the length of the longest sequence of the input, in tokens; `None` if it has no
    /// valid question.
    pub fn longest(&self) -> Option<usize> {
        let questions = self.items.iter().filter_map(|item| match item {
            Item::Question(question) => Some(question.longest()),
            Item::Error(_) => None,
        });
        questions.max()
    }

    /// Finds out what is left to do for a system with this fingerprint.
    ///
    /// # Errors
    /// Returns an error if the output holds scores of another job.
    pub fn open(self, system_fingerprint: String) -> Result<Job, JobError> {
        let ReadJob { options, items, mut sink, existing } = self;
        let resume = match &options.output {
            Place::File(path) if options.mode.resumes() => Resume::read(
                &existing,
                &path.display().to_string(),
                (&items, options.shown),
                &system_fingerprint,
                options.mode == OutputMode::ResumeReplacing,
            )?,
            _ => Resume::nothing(&items),
        };
        sink.keep(resume.whole_bytes);
        let is_text = Format::of(&options.input) == Format::Text;
        let windows = is_text.then_some(options.windows);
        let Resume { kept: lines, tallies, replaced, .. } = resume;
        let shown = options.shown;
        Ok(Job { items, lines, tallies, replaced, sink, shown, windows, system_fingerprint })
    }
}

/// Reads the questions of a JSON Lines file.
fn lines(
    bytes: &[u8],
    options: &LineOptions<'_>,
    reading: &mut Reading,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<Item>, JobError> {
    let lines = lines_of(bytes);
    let read = read_lines(&lines, &|raw, line| read_line(raw, line, options), &mut |done, all| {
        reading.update(done, all);
        if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    reading.end();
    let mut ids = Ids::default();
    let read = lines.iter().zip(read.ok_or(JobError::Interrupted)?);
    let items = read.map(|((line, raw), read)| {
        let custom_id = match ids.take(read.custom_id, read.is_question, raw, *line) {
            Ok(custom_id) => custom_id,
            Err(error) => return Item::Error(error),
        };
        match read.result {
            Ok(mut question) => {
                question.custom_id = custom_id;
                Item::Question(question)
            }
            Err(rejection) => Item::Error(LineError { line: *line, custom_id, rejection }),
        }
    });
    let items: Vec<Item> = items.collect();
    check_read(items.iter().filter_map(|item| match item {
        Item::Error(error) => Some(error),
        Item::Question(_) => None,
    }))?;
    Ok(items)
}

/// Splits a text into windows.
fn windows(
    bytes: &[u8],
    windows: Windows,
    options: &LineOptions<'_>,
) -> Result<Vec<Item>, ScoreError> {
    let codec = options.codec.ok_or_else(|| {
        let consequence = "; specify lines with token ids instead of a text";
        ScoreError::NoTokenizer(options.limits.no_tokenizer(consequence))
    })?;
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ScoreError::Utf8 { byte: error.valid_up_to() + 1 })?;
    let tokens = codec.encode(text, usize::MAX).map_err(ScoreError::Tokenizer)?;
    let questions = windows.of(&tokens);
    if questions.is_empty() {
        return Err(ScoreError::Short(tokens.len()));
    }
    Ok(questions.into_iter().map(Item::Question).collect())
}
