//! Text to token ids and back, as the job needs it: a small trait, so that the job is tested
//! without a model.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub role: String,
    pub content: String,
    /// Other fields of the message that templates know, such as `tool_calls`: names and JSON texts.
    pub more: Vec<(String, String)>,
}

impl Turn {
    /// A turn of text alone.
    pub fn new(role: &str, content: String) -> Turn {
        Turn { role: role.to_owned(), content, more: Vec::new() }
    }

    /// Bytes of all its texts.
    pub fn size_bytes(&self) -> usize {
        let more: usize = self.more.iter().map(|(name, text)| name.len() + text.len()).sum();
        self.role.len() + self.content.len() + more
    }
}

/// A conversation, and what else its chat template is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    /// Functions that the model is told of: JSON texts, in the form of the request.
    pub tools: Vec<String>,
    /// Variables of the template, such as `enable_thinking`: names and JSON texts.
    pub variables: Vec<(String, String)>,
    /// The answer goes on with the last turn, which is the assistant's.
    pub continues: bool,
    /// The text ends with the last turn, without what begins an answer.
    pub omits_generation_prompt: bool,
}

impl Conversation {
    /// Of turns alone.
    pub fn new(turns: Vec<Turn>) -> Conversation {
        Conversation { turns, ..Conversation::default() }
    }

    /// Bytes of all its texts.
    pub fn size_bytes(&self) -> usize {
        let turns = self.turns.iter().map(Turn::size_bytes).sum::<usize>();
        let variables = self.variables.iter().map(|(name, text)| name.len() + text.len());
        turns + self.tools.iter().map(String::len).sum::<usize>() + variables.sum::<usize>()
    }
}

/// Context that a tokenizer needs to decode an answer: SentencePiece decoders strip the leading
/// space of a text, which the first token of an answer must keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextContext {
    /// The last tokens of the prompt; none where a text begins.
    pub tokens: Vec<u32>,
    /// No space is stripped even if the prompt has no text: an answer that follows a grammar is
    /// exactly the text that the grammar accepted.
    pub keeps_space: bool,
}

/// Maximum number of a prompt's tokens that are given as context; far fewer are used.
const MAX_CONTEXT_TOKENS: usize = 64;

impl TextContext {
    /// The end of a prompt.
    pub fn behind(prompt: &[u32]) -> TextContext {
        let tokens = &prompt[prompt.len().saturating_sub(MAX_CONTEXT_TOKENS)..];
        TextContext { tokens: tokens.to_vec(), keeps_space: false }
    }
}

/// Why a text side gives no answer. The ends of sentences.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The text, the conversation or the tokens are at fault.
    #[error("{0}")]
    Refused(String),
    #[error("it has about {tokens} tokens")]
    TooLong { tokens: usize },
    /// The tokenizer is, for reasons of its own: the same may be answered later.
    #[error("{0}")]
    Unavailable(String),
}

/// A model's text side, which several threads may ask at once.
pub trait TextCodec: Debug + Sync {
    /// Token ids of a raw prompt, with the tokens the model expects around one (BOS). A text of far
    /// more than `max_tokens` is not tokenised.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express, or that is too long.
    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, CodecError>;

    /// Token ids of a text within another one, without the tokens around a prompt.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express.
    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError>;

    /// Token ids of a conversation, rendered by the model's chat template up to where the
    /// assistant's answer begins. A template that asks for the date is told that of `now_s`,
    /// seconds since 1970. A text of far more than `max_tokens` is not tokenised.
    ///
    /// # Errors
    /// A model without template, or a template that refuses the conversation, or writes too long a
    /// text.
    fn encode_chat(
        &self,
        chat: &Conversation,
        now_s: u64,
        max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError>;

    /// The text of the chat template that renders conversations with functions; `None` where there
    /// is no template.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    fn tools_template(&self) -> Result<Option<String>, CodecError>;

    /// The token that is a text and no part of others; `None` where there is none.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    fn special_token(&self, text: &str) -> Result<Option<u32>, CodecError>;

    /// The bytes that a token adds to a text, which may end or begin within a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// The text that each of the tokens completes behind a context, and behind them what is left:
    /// incomplete characters as U+FFFD. A character that the context begins belongs to the token
    /// that completes it.
    ///
    /// # Errors
    /// Tokens that the model's decoder cannot turn into text.
    fn pieces(&self, context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError>;

    /// A decoder for one sequence's new tokens while they come, behind a context.
    fn stream(&self, context: &TextContext) -> Box<dyn TextStream + '_>;
}

/// Turns tokens into text one at a time, never half a character.
pub trait TextStream {
    /// The text that `token` completes, empty while a character is incomplete. After an error the
    /// next token completes what this one would have.
    ///
    /// # Errors
    /// As [`TextCodec::pieces`].
    fn push(&mut self, token: u32) -> Result<String, CodecError>;
}
