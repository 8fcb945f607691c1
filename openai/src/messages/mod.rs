//! Anthropic's Messages API: its requests as chat completions, and answers in its format.

pub mod content;
pub mod error;
pub mod events;
pub mod message;
pub mod request;
pub mod tools;
