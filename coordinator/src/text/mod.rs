//! Text to tokens and back, in processes of their own.
//!
//! A tokenizer and a chat template come with a model and are executed: a regular expression that
//! backtracks for ever, a template that doubles a text, a file that makes a library panic. Here
//! each of them runs with bounds on its memory and its time, so that the worst it can do is to fail
//! the request that met it.

pub mod codec;
pub mod message;
pub mod model;
pub mod pool;
pub mod process;
pub mod serve;
