//! The language of requests and answers: OpenAI's endpoints, and the fields that others added.
//!
//! What a body asks for, what an answer says, where an answer is cut. Nothing here knows where a
//! request came from.

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
