//! The language of requests and answers: OpenAI's endpoints, and the fields that others added.
//!
//! What a body asks for, what an answer says, where an answer is cut. Nothing here knows where a
//! request came from.

pub mod body;
pub mod fingerprint;
pub mod item;
mod logprobs;
pub mod output;
pub mod prompt;
pub mod stop;
