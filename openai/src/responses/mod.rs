//! OpenAI's Responses API: its requests as chat completions, and answers in its format.

pub mod events;
pub mod input;
pub mod items;
pub mod line;
pub mod request;
pub mod response;
pub mod settings;
pub mod stored;
pub mod tools;
pub mod truncation;
