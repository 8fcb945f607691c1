//! Characters and tokens of an answer, in the order in which they are read.

use grammar::is_function_name;

/// A character or a token of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CharOrToken {
    Char(char),
    /// Token with a meaning of its own; its text, if it has one, follows.
    Token(u32),
}

impl CharOrToken {
    /// Returns the character if it may occur in the name of a function.
    pub fn as_name_char(self) -> Option<char> {
        match self {
            CharOrToken::Char(char) if is_function_name(char.encode_utf8(&mut [0; 4])) => {
                Some(char)
            }
            _ => None,
        }
    }
}
