//! Tests of whole jobs with a deterministic engine.

mod eta;
mod fake;
mod fields;
mod grammars;
mod input;
mod notices;
mod process;
mod prompts;
mod responses;
mod resume;
mod run;
mod serving;
mod sink;
mod stop;
mod texts;
mod unfinished;
