//! Classified pieces of an answer.

use crate::char_or_token::CharOrToken;

/// A classified piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPiece {
    Reasoning(char),
    /// Part of the answer after the reasoning.
    Content(CharOrToken),
    /// Call of the function with this name.
    Call(String),
    /// Character of the arguments of the last call.
    Argument(char),
}
