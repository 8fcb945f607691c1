//! What the coordinator and a text process say to each other.

use std::path::PathBuf;

use model::config::Family;
use model::tokenizer::Piece;
use serde::{Deserialize, Serialize};

use crate::boundary::codec::{Conversation, TextContext};

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
    /// The tokens of a raw prompt, at most so many.
    Encode { text: String, max_tokens: usize },
    /// The tokens of a text within another one.
    EncodePart { text: String },
    /// The tokens of a conversation, rendered as of `now_s`, seconds since 1970.
    EncodeChat { chat: Conversation, now_s: u64, max_tokens: usize },
    /// The template of conversations with functions.
    ToolsTemplate,
    /// The tokens that the tokenizer names for the beginning and the end of a text.
    Ends,
    /// The token that is this text and no part of others.
    SpecialToken { text: String },
    /// The text that each of the tokens completes behind a context, and what is left at the end.
    Pieces { context: TextContext, tokens: Vec<u32> },
    /// See [`model::tokenizer::TextTokenizer::grow_behind`].
    GrowBehind { context: TextContext },
    /// See [`model::tokenizer::TextTokenizer::next_piece`].
    NextPiece { tokens: Vec<u32>, emitted: usize, is_last: bool },
    /// What each of the first tokens of the vocabulary spells.
    Vocabulary { tokens: usize },
}

impl TextRequest {
    /// Bytes of what a client wrote.
    pub fn size_bytes(&self) -> usize {
        match self {
            TextRequest::Encode { text, .. }
            | TextRequest::EncodePart { text }
            | TextRequest::SpecialToken { text } => text.len(),
            TextRequest::EncodeChat { chat, .. } => chat.size_bytes(),
            TextRequest::ToolsTemplate | TextRequest::Ends | TextRequest::GrowBehind { .. } => 0,
            TextRequest::Pieces { tokens, .. } | TextRequest::NextPiece { tokens, .. } => {
                tokens.len() * 8
            }
            TextRequest::Vocabulary { tokens } => tokens * 8,
        }
    }

    /// Returns true if it is a client's text that can exceed the limits of a process.
    pub fn is_of_client(&self) -> bool {
        match self {
            TextRequest::Encode { .. }
            | TextRequest::EncodePart { .. }
            | TextRequest::EncodeChat { .. } => true,
            TextRequest::ToolsTemplate
            | TextRequest::Ends
            | TextRequest::SpecialToken { .. }
            | TextRequest::Pieces { .. }
            | TextRequest::GrowBehind { .. }
            | TextRequest::NextPiece { .. }
            | TextRequest::Vocabulary { .. } => false,
        }
    }
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
    /// The text has more tokens than it may have, about so many.
    TooLong {
        tokens: usize,
    },
    /// The last tokens of a context, and how many of them have their text.
    Grown {
        tokens: Vec<u32>,
        emitted: usize,
    },
    Pieces(Vec<String>),
    NextPiece(Option<Piece>),
    ToolsTemplate(Option<String>),
    Ends {
        bos: Option<u32>,
        eos: Option<u32>,
    },
    SpecialToken(Option<u32>),
    Vocabulary(Vec<Word>),
    /// The end of a sentence.
    Refused(String),
}
