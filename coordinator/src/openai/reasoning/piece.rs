//! What a bit of an answer is.

use crate::openai::said::Said;

/// A bit of an answer, by what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Thought(char),
    /// Of the answer proper.
    Said(Said),
    /// A function of this name is called.
    Call(String),
    /// Of the arguments of the last call.
    Argument(char),
}
