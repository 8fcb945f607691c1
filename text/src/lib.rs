//! Text and tokens: tokenizers from directories and from GGUF files, and chat templates. Apart from
//! `model`, so that what computes with weights does not wait for their dependencies.

pub mod chat;
pub mod gguf_tokenizer;
pub mod tokenizer;
pub mod tokenizer_config;
