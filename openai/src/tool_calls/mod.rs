//! Tool calls: the formats of models, extraction from answers, and the format for clients.

mod deepseek;
pub mod format;
mod glm;
mod harmony;
mod hermes;
mod hy3;
mod kimi;
mod llama;
mod matching;
mod minimax;
mod mistral;
pub mod parse;
mod parts;
mod qwen_coder;
pub mod render;
