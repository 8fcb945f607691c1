//! Scoring without a model.

mod fake;
mod lines;
mod run;
mod windows;
