//! Helpers for the tests of several crates: a tokenizer without a model ([`byte_codec`]), and
//! OpenAI's schemas of responses ([`schema`]).

pub mod byte_codec;
pub mod schema;
