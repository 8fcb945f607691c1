//! Conversion between text and token ids, as a small trait so that the job is tested without a
//! model.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTurn {
    pub role: String,
    pub content: String,
    /// Other fields of the message that templates use, such as `tool_calls`, as names and JSON
    /// texts.
    pub extra_fields: Vec<(String, String)>,
}

impl ChatTurn {
    /// Creates a turn that consists only of text.
    pub fn new(role: &str, content: String) -> ChatTurn {
        ChatTurn { role: role.to_owned(), content, extra_fields: Vec::new() }
    }

    /// Returns the number of bytes of all its texts.
    pub fn size_bytes(&self) -> usize {
        let extra_fields: usize =
            self.extra_fields.iter().map(|(name, text)| name.len() + text.len()).sum();
        self.role.len() + self.content.len() + extra_fields
    }
}

/// A conversation, with other inputs of its chat template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub turns: Vec<ChatTurn>,
    /// Functions that are described to the model, as JSON texts in the format of the request.
    pub tools: Vec<String>,
    /// Variables of the template, such as `enable_thinking`, as names and JSON texts.
    pub variables: Vec<(String, String)>,
    /// True if the answer continues the last turn, which is the assistant's.
    pub continues_last_turn: bool,
    /// True if the text ends with the last turn, without the beginning of an answer.
    pub omits_generation_prompt: bool,
}

impl Conversation {
    /// Creates a conversation that consists only of turns.
    pub fn new(turns: Vec<ChatTurn>) -> Conversation {
        Conversation { turns, ..Conversation::default() }
    }

    /// Returns the number of bytes of all its texts.
    pub fn size_bytes(&self) -> usize {
        let turns = self.turns.iter().map(ChatTurn::size_bytes).sum::<usize>();
        let variables = self.variables.iter().map(|(name, text)| name.len() + text.len());
        turns + self.tools.iter().map(String::len).sum::<usize>() + variables.sum::<usize>()
    }
}

/// Context that a tokenizer needs to decode an answer: SentencePiece decoders strip the leading
/// space of a text, which the first token of an answer must keep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextContext {
    /// Last tokens of the prompt; empty at the beginning of a text.
    pub tokens: Vec<u32>,
    /// True if no space is stripped even without a prompt: an answer that follows a grammar is
    /// exactly the text that the grammar accepted.
    pub keeps_leading_space: bool,
}

/// Maximum number of a prompt's tokens that are passed as context; decoders need far fewer.
const MAX_CONTEXT_TOKENS: usize = 64;

impl TextContext {
    /// Returns the context of an answer to `prompt`: the last tokens of the prompt.
    pub fn after_prompt(prompt: &[u32]) -> TextContext {
        let tokens = &prompt[prompt.len().saturating_sub(MAX_CONTEXT_TOKENS)..];
        TextContext { tokens: tokens.to_vec(), keeps_leading_space: false }
    }
}

/// Reason why a codec gives no result. Messages are the ends of sentences.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The text, the conversation or the tokens are invalid.
    #[error("{0}")]
    Refused(String),
    #[error("it has about {tokens} tokens")]
    TooLong { tokens: usize },
    /// The tokenizer failed for reasons of its own; the same request may succeed later.
    #[error("{0}")]
    Unavailable(String),
}

/// Text codec of a model: its tokenizer and chat template. Several threads may use it concurrently.
pub trait TextCodec: Debug + Sync {
    /// Returns the token ids of a raw prompt, including the tokens that the model expects around
    /// one (BOS). A text much longer than `max_tokens` is rejected without tokenising it.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express, or that is too long.
    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, CodecError>;

    /// Returns the token ids of a text within another one, without the tokens around a prompt.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express.
    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError>;

    /// Returns the token ids of a conversation, rendered by the model's chat template up to the
    /// beginning of the assistant's answer. A template that uses the date gets that of `now_s`, in
    /// seconds since 1970. A text much longer than `max_tokens` is rejected without tokenising it.
    ///
    /// # Errors
    /// A model without a template, or a template that rejects the conversation or produces a text
    /// that is too long.
    fn encode_chat(
        &self,
        chat: &Conversation,
        now_s: u64,
        max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError>;

    /// Returns the text of the chat template that renders conversations with functions; `None` if
    /// there is no template.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    fn tools_template(&self) -> Result<Option<String>, CodecError>;

    /// Returns the special token with exactly this text; `None` if there is none.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    fn special_token(&self, text: &str) -> Result<Option<u32>, CodecError>;

    /// Returns the bytes that a token adds to a text; they may begin or end within a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Returns the text that each of the tokens completes after a context, followed by an entry for
    /// the rest: incomplete characters as U+FFFD. A character that begins in the context belongs to
    /// the token that completes it.
    ///
    /// # Errors
    /// Tokens that the model's decoder cannot turn into text.
    fn pieces(&self, context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError>;

    /// Returns a decoder for the new tokens of one sequence as they arrive after a context.
    fn stream(&self, context: &TextContext) -> Box<dyn TextStream + '_>;
}

/// Turns tokens into text one at a time, only in whole characters.
pub trait TextStream {
    /// Returns the text that `token` completes, which is empty while a character is incomplete.
    /// After an error, the next token completes the text of this one too.
    ///
    /// # Errors
    /// See [`TextCodec::pieces`].
    fn push(&mut self, token: u32) -> Result<String, CodecError>;
}
