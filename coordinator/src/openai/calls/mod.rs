//! Tool calls: the formats of models, extraction from answers, and the format for clients.

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
