//! Tool calls: the formats of models, extraction from answers, and the format for clients.

pub mod format;
mod harmony;
mod hermes;
mod llama;
mod matching;
mod mistral;
pub mod parse;
mod parts;
mod qwen_coder;
pub mod render;
