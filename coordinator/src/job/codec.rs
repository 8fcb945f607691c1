//! Text to token ids and back, as the job needs it: a small trait, so that the job is tested
//! without a model.

use std::fmt::Debug;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    pub role: String,
    pub content: String,
}

/// A model's text side. Every error is a sentence (or the end of one) for the user.
pub trait TextCodec: Debug {
    /// Token ids of a raw prompt, with the tokens the model expects around one (BOS).
    ///
    /// # Errors
    /// Text that the vocabulary cannot express.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// Token ids of a conversation, rendered by the model's chat template up to where the
    /// assistant's answer begins.
    ///
    /// # Errors
    /// A model without template, or a template that refuses the conversation.
    fn encode_chat(&self, turns: &[Turn]) -> Result<Vec<u32>, String>;

    /// The bytes that a token adds to a text, which may end or begin within a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// A decoder for one sequence's new tokens.
    fn stream(&self) -> Box<dyn TextStream + '_>;
}

/// Turns tokens into text one at a time, never half a character.
pub trait TextStream {
    /// The text that `token` completes, empty while a character is incomplete.
    fn push(&mut self, token: u32) -> String;

    /// What is left, incomplete characters as U+FFFD.
    fn finish(&mut self) -> String;
}
