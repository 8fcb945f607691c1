//! The whole job against a deterministic engine.

pub(crate) mod fake;
mod fields;
mod forms;
mod input;
mod process;
mod prompts;
mod remaining;
mod resume;
mod run;
mod sink;
mod stop;
mod texts;
mod unfinished;
