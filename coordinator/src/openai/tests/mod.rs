//! The language's own tests, with a model of one byte per token.

mod growing;
