//! What a model makes of texts: log-probabilities of continuations, and the perplexity of a text.
//!
//! A line of the input is a [`Question`](item::Question): a prompt, and what may follow it. A text
//! becomes such questions too, one for each of its windows. [`Job::run`](run::Job::run) gives their
//! sequences to an engine that serves, which computes what they begin with alike once; lines are
//! written as they are finished, and resumed as those of a batch job are.
//!
//! Invariants: what is said of a continuation depends on it and its prompt alone; a line of the
//! output is whole or not there.

pub mod item;
pub mod job;
pub mod line;
mod lines;
pub mod output;
pub mod prepare;
mod resume;
pub mod run;
pub mod summary;
pub mod tokens;
pub mod windows;

#[cfg(test)]
mod tests;
