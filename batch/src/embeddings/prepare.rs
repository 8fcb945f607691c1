//! An input of embedding requests that is read, before the way of computation is decided.

use openai::embeddings::request::EmbeddingRequest;
use openai::input_line::InputLine;

use super::job::{EmbeddingJob, Embeddings};
use super::line::{EmbeddingLineOptions, parse_embedding_line};
use crate::error::JobError;
use crate::progress_counter::ProgressCounter;
use crate::read::{parse_items, read_items};
use crate::run::{Job, JobFiles};

/// A job whose input is read and whose output is locked. Nothing is written yet.
#[derive(Debug)]
pub struct PreparedEmbeddings {
    pub(crate) files: JobFiles<EmbeddingRequest>,
    /// Name of the model in answers.
    pub(crate) model: String,
}

impl PreparedEmbeddings {
    /// Parses the lines of an input.
    ///
    /// # Errors
    /// Returns an error if reading is interrupted, or if the tokenizer keeps failing.
    pub(crate) fn parse(
        bytes: &[u8],
        options: &EmbeddingLineOptions<'_>,
        reading: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<InputLine<EmbeddingRequest>>, JobError> {
        let max_threads = options.bounds.map_or(usize::MAX, |bounds| bounds.max_threads);
        let parse = |raw: &[u8], line| parse_embedding_line(raw, line, options);
        read_items(reading, interrupted, |on_progress| {
            parse_items(bytes, max_threads, &parse, &Ok, on_progress)
        })
    }

    /// Returns the number of lines that are not blank.
    pub fn line_count(&self) -> usize {
        self.files.items.len()
    }

    /// Returns the number of vectors of all requests.
    pub fn vector_count(&self) -> usize {
        self.requests().map(|request| request.inputs.len()).sum()
    }

    /// Returns the length of the longest input, in tokens; `None` if there is no valid request.
    pub fn max_input_len(&self) -> Option<usize> {
        self.requests().flat_map(|request| request.inputs.iter().map(|input| input.len())).max()
    }

    fn requests(&self) -> impl Iterator<Item = &EmbeddingRequest> {
        self.files.items.iter().filter_map(InputLine::request)
    }

    /// Finds out what is left to do for a system with this fingerprint.
    ///
    /// # Errors
    /// Returns an error if the output holds answers of another job.
    pub fn resume(self, system_fingerprint: String) -> Result<EmbeddingJob, JobError> {
        let PreparedEmbeddings { files, model } = self;
        Job::resume(Embeddings { model, system_fingerprint }, files)
    }
}
