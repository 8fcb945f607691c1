//! Embeddings of texts: a line of the input is a request of `/v1/embeddings` in batch format. They
//! need a serving engine, which pools the hidden states of prompts.
//!
//! Invariants: a vector depends on its input alone; a line of the output is written as a whole or
//! not at all.

pub mod job;
pub mod line;
pub mod prepare;

#[cfg(test)]
mod tests;
