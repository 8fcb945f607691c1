//! Function calls: how models write them, read out of what they say, and told to clients.

pub mod format;
mod harmony;
mod hermes;
mod llama;
mod matching;
mod mistral;
mod parts;
mod qwen_coder;
pub mod reader;
pub mod told;
