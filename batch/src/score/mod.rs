//! Scoring of texts: log-probabilities of continuations, and the perplexity of a text.
//!
//! A line of the input is a [`ScoreQuestion`](question::ScoreQuestion): a prompt and its possible
//! continuations. A text is split into such questions, one for each of its windows.
//! [`Scores`](scores::Scores) makes them a kind of [`Job`](crate::run::Job). It needs a serving
//! engine, which reports log-probabilities of prompts and computes common prefixes once.
//!
//! Invariants: the score of a continuation depends on it and its prompt alone; a line of the output
//! is written as a whole or not at all.

pub mod line;
pub mod output;
pub mod prepare;
pub mod question;
pub mod scores;
pub mod summary;
pub mod tokens;
pub mod windows;

#[cfg(test)]
mod tests;
