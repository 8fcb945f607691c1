//! What a model says, bit by bit.

/// A bit of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Char(char),
    /// Where it has a meaning of its own; its text, if it has one, comes behind it.
    Token(u32),
}
