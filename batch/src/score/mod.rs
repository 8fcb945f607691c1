//! Scoring of texts: log-probabilities of continuations, and the perplexity of a text.
//!
//! A line of the input is a [`ScoreQuestion`](question::ScoreQuestion): a prompt and its possible
//! continuations. A text is split into such questions, one for each of its windows.
//! [`ScoreJob::run`](run::ScoreJob::run) submits their sequences to a serving engine, which
//! computes common prefixes once; lines are written as they are finished, and resumed like those of
//! a batch job.
//!
//! Invariants: the score of a continuation depends on it and its prompt alone; a line of the output
//! is written as a whole or not at all.

pub mod job;
pub mod line;
mod line_buffer;
pub mod output;
pub mod prepare;
pub mod question;
mod resume;
pub mod run;
pub mod summary;
pub mod tokens;
pub mod windows;

#[cfg(test)]
mod tests;
