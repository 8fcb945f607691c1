//! The whole job against a deterministic engine.

mod fake;
mod input;
mod resume;
mod run;
mod sink;
mod stop;
