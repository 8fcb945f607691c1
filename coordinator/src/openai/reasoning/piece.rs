//! Classified pieces of an answer.

use crate::openai::said::Said;

/// A classified piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Thought(char),
    /// Part of the answer after the reasoning.
    Said(Said),
    /// Call of the function with this name.
    Call(String),
    /// Character of the arguments of the last call.
    Argument(char),
}
