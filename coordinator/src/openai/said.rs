//! What a model says, bit by bit.

use grammar::is_function_name;

/// A bit of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Char(char),
    /// Where it has a meaning of its own; its text, if it has one, comes behind it.
    Token(u32),
}

impl Said {
    /// The character, where a name may have it.
    pub fn of_name(self) -> Option<char> {
        match self {
            Said::Char(char) if is_function_name(char.encode_utf8(&mut [0; 4])) => Some(char),
            _ => None,
        }
    }
}
