//! Tests of whole jobs with a deterministic engine.

mod eta;
pub(crate) mod fake;
mod fields;
mod grammars;
mod input;
mod notices;
mod process;
mod prompts;
mod resume;
mod run;
pub(crate) mod schema;
mod sink;
mod stop;
mod texts;
mod unfinished;
