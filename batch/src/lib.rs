//! The batch job: requests in, answers out, restartable. The [`kind`] of its requests decides what
//! the lines of both files are: [`completions`], [`embeddings`], or [`score`]s of texts.
//!
//! [`prepare`] reads and checks everything before an engine exists, so that invalid input costs no
//! model load; [`run`](run::Job::run) passes all sequences to a
//! [`BatchEngine`](engine_api::batch::BatchEngine), those with the longest answers first, and
//! writes answers as they are finished.
//!
//! Invariants: a job that ends leaves the output in input order; an answer depends on its request
//! alone, never on the group it ran in; lines that were written survive any later failure.

mod answer_buffer;
mod answer_size;
pub mod completions;
mod detect_format;
pub mod embeddings;
pub mod error;
pub mod eta;
pub mod input;
pub mod input_data;
mod job_sink;
pub mod kind;
pub mod line_bounds;
pub mod outcome;
mod output_file;
pub mod prepare;
pub mod progress;
pub mod progress_counter;
mod provenance;
pub mod read;
mod resume;
pub mod run;
pub mod score;
pub mod serving_adapter;
pub mod sink;
pub mod summary;
mod unfinished;
pub mod workload;

#[cfg(test)]
mod tests;
