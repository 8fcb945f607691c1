//! What the coordinator and a text process say to each other.

use std::path::PathBuf;

use model::config::Family;
use model::tokenizer::Piece;
use serde::{Deserialize, Serialize};

use crate::boundary::codec::Conversation;

/// Where a tokenizer and a chat template are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextFrom {
    /// A folder in the form of Hugging Face.
    Directory { path: PathBuf, family: Family },
    /// In the metadata of a GGUF file.
    Gguf { path: PathBuf },
}

/// The first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSetup {
    pub from: TextFrom,
    /// The most the process may allocate.
    pub memory_bytes: u64,
}

/// What is asked of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextRequest {
    /// The tokens of a raw prompt.
    Encode { text: String },
    /// The tokens of a text within another one.
    EncodePart { text: String },
    /// The tokens of a conversation, rendered as of `now_s`, seconds since 1970.
    EncodeChat { chat: Conversation, now_s: u64 },
    /// The template of conversations with functions.
    ToolsTemplate,
    /// The token that is this text and no part of others.
    SpecialToken { text: String },
    /// The text that each of the tokens completes, and what is left at the end.
    Pieces { tokens: Vec<u32> },
    /// See [`model::tokenizer::TextTokenizer::next_piece`].
    NextPiece { tokens: Vec<u32>, emitted: usize, is_last: bool },
    /// What each of the first tokens of the vocabulary spells.
    Vocabulary { tokens: usize },
}

/// What one token spells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    pub bytes: Vec<u8>,
    /// It is no part of a text.
    pub is_special: bool,
}

/// What the process answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextReply {
    /// To the setup.
    Ready {
        has_tokenizer: bool,
    },
    Tokens(Vec<u32>),
    Pieces(Vec<String>),
    NextPiece(Option<Piece>),
    ToolsTemplate(Option<String>),
    SpecialToken(Option<u32>),
    Vocabulary(Vec<Word>),
    /// The end of a sentence.
    Refused(String),
}
