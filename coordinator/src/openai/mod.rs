//! Requests and answers of OpenAI's endpoints, with the fields that other servers added.
//!
//! The modules read bodies into requests, find stop strings, reasoning and tool calls in answers,
//! and convert answers to the format of the endpoints. They are independent of the source of a
//! request: a batch file or a client of the server.

pub mod body;
pub mod bounded_json;
pub mod calls;
pub mod chats;
pub mod chunk;
pub mod echo;
pub mod fingerprint;
pub mod following;
pub mod forms;
pub mod found_logprobs;
pub mod grammar_cache;
pub mod growing;
pub mod item;
pub mod json;
pub mod logprobs;
pub mod output;
pub mod parts;
pub mod prompt;
pub mod prompt_bounds;
pub mod prompt_logprobs;
pub mod reader;
pub mod reasoning;
pub mod refusal;
pub mod request;
pub mod said;
pub mod stop;
pub mod stop_strings;

#[cfg(test)]
mod tests;
