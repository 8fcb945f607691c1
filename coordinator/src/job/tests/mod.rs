//! Tests of whole jobs with a deterministic engine.

pub(crate) mod fake;
mod fields;
mod forms;
mod input;
mod notices;
mod process;
mod prompts;
mod remaining;
mod resume;
mod run;
pub(crate) mod schema;
mod sink;
mod stop;
mod texts;
mod unfinished;
