//! Conversion between text and tokens, in separate processes.
//!
//! A tokenizer and a chat template are parts of a model that are executed, and they can misbehave:
//! a regular expression that backtracks forever, a template that doubles a text, a file that makes
//! a library panic. Here they run with bounds on memory and time, so that they can at worst fail
//! the request that triggers it.

pub mod codec;
pub mod message;
pub mod model;
pub mod pool;
pub mod process;
pub mod serve;
