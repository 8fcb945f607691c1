//! Messages between the coordinator and a text process.

use std::path::PathBuf;

use engine_api::codec::{Conversation, TextContext};
use model::config::Family;
use serde::{Deserialize, Serialize};
use text::tokenizer::TextPiece;

/// Location of a tokenizer and a chat template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextSource {
    /// Folder in the layout of Hugging Face.
    Directory { path: PathBuf, family: Family },
    /// Metadata of a GGUF file.
    Gguf { path: PathBuf },
}

/// First message to a text process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSetup {
    pub source: TextSource,
    /// Maximum memory that the process may allocate, in bytes.
    pub memory_bytes: u64,
}

/// Request to a text process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextRequest {
    /// Tokens of a raw prompt, at most `max_tokens`.
    Encode { text: String, max_tokens: usize },
    /// Tokens of a text that is part of another one.
    EncodePart { text: String },
    /// Tokens of a conversation, at most `max_tokens`, rendered as of `now_s` in seconds since
    /// 1970.
    EncodeChat { chat: Conversation, now_s: u64, max_tokens: usize },
    /// Template that renders conversations with functions.
    ToolsTemplate,
    /// The tokenizer's tokens for the beginning and the end of a text.
    BoundaryTokens,
    /// Special token with this text.
    SpecialToken { text: String },
    /// Text that each of the tokens completes after a context, and the remainder at the end.
    Pieces { context: TextContext, tokens: Vec<u32> },
    /// See [`text::tokenizer::TextTokenizer::grow_behind`].
    BeginStream { context: TextContext },
    /// See [`text::tokenizer::TextTokenizer::next_piece`].
    NextPiece { tokens: Vec<u32>, emitted: usize, is_last: bool },
    /// Bytes of each of the first `tokens` ids of the vocabulary.
    Vocabulary { tokens: usize },
}

impl TextRequest {
    /// Returns the size of the variable part of the request, in bytes.
    pub fn size_bytes(&self) -> usize {
        match self {
            TextRequest::Encode { text, .. }
            | TextRequest::EncodePart { text }
            | TextRequest::SpecialToken { text } => text.len(),
            TextRequest::EncodeChat { chat, .. } => chat.size_bytes(),
            TextRequest::ToolsTemplate
            | TextRequest::BoundaryTokens
            | TextRequest::BeginStream { .. } => 0,
            TextRequest::Pieces { tokens, .. } | TextRequest::NextPiece { tokens, .. } => {
                tokens.len() * 8
            }
            TextRequest::Vocabulary { tokens } => tokens * 8,
        }
    }

    /// Returns true if the request contains a client's text, which can exceed the limits of a
    /// process.
    pub fn is_from_client(&self) -> bool {
        match self {
            TextRequest::Encode { .. }
            | TextRequest::EncodePart { .. }
            | TextRequest::EncodeChat { .. } => true,
            TextRequest::ToolsTemplate
            | TextRequest::BoundaryTokens
            | TextRequest::SpecialToken { .. }
            | TextRequest::Pieces { .. }
            | TextRequest::BeginStream { .. }
            | TextRequest::NextPiece { .. }
            | TextRequest::Vocabulary { .. } => false,
        }
    }
}

/// A token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VocabularyEntry {
    pub bytes: Vec<u8>,
    /// The token is special: it is not part of a text.
    pub is_special: bool,
}

/// Reply of a text process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextReply {
    /// Reply to the setup.
    Ready {
        has_tokenizer: bool,
    },
    Tokens(Vec<u32>),
    /// The text has more tokens than it may have: approximately `tokens`.
    TooLong {
        tokens: usize,
    },
    /// Last tokens of a context, and the number of them whose text has been emitted.
    StreamState {
        tokens: Vec<u32>,
        emitted: usize,
    },
    Pieces(Vec<String>),
    NextPiece(Option<TextPiece>),
    ToolsTemplate(Option<String>),
    BoundaryTokens {
        bos: Option<u32>,
        eos: Option<u32>,
    },
    SpecialToken(Option<u32>),
    Vocabulary(Vec<VocabularyEntry>),
    /// Reason as the end of a sentence.
    Refused(String),
}
