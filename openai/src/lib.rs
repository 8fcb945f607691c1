//! Requests and answers of OpenAI's endpoints and of Anthropic's Messages API, with the fields that
//! other servers added.
//!
//! The modules read bodies into requests, find stop strings, reasoning and tool calls in answers,
//! and convert answers to the format of the endpoints. They are independent of the source of a
//! request: a batch file or a client of the server.

pub mod answer_accumulator;
pub mod answer_blocks;
pub mod answer_options;
pub mod answer_parser;
pub mod answer_parts;
pub mod body;
pub mod bounded_json;
pub mod char_or_token;
pub mod chat_extensions;
pub mod chat_messages;
pub mod chats;
pub mod chunk;
pub mod echo;
pub mod embeddings;
pub mod error_response;
pub mod fingerprint;
pub mod generation;
pub mod grammar_cache;
pub mod input_line;
pub mod json;
pub mod logprobs;
pub mod messages;
pub mod output;
pub mod output_options;
pub mod output_validator;
pub mod prompt;
pub mod prompt_bounds;
pub mod prompt_logprobs;
pub mod raw_logprobs;
pub mod reasoning;
pub mod request;
pub mod rerank;
pub mod responses;
pub mod sse;
pub mod stop;
pub mod stop_strings;
pub mod token_rules;
pub mod tool_calls;
mod usage;

#[cfg(test)]
mod tests;
