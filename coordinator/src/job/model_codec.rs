//! The codec of a real model: its tokenizer and its chat template.

use std::fmt::Debug;

use model::tokenizer::{StreamDecoder, TextTokenizer};

use super::codec::{TextCodec, TextStream, Turn};

/// Renders a conversation into the text that the model continues.
pub type ChatRenderer = Box<dyn Fn(&[Turn]) -> Result<String, String>>;

/// The codec of a real model.
pub struct ModelCodec {
    tokenizer: TextTokenizer,
    chat: Option<ChatRenderer>,
}

impl Debug for ModelCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelCodec")
            .field("tokenizer", &self.tokenizer)
            .field("has_chat_template", &self.chat.is_some())
            .finish()
    }
}

impl ModelCodec {
    /// A tokenizer, and the model's chat template if it has one.
    pub fn new(tokenizer: TextTokenizer, chat: Option<ChatRenderer>) -> ModelCodec {
        ModelCodec { tokenizer, chat }
    }

    /// What each of so many tokens adds to a text; nothing for special ones.
    pub fn words(&self, tokens: usize) -> Vec<Vec<u8>> {
        self.tokenizer.words(tokens)
    }
}

impl TextCodec for ModelCodec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer.encode(text, true).map_err(|error| error.to_string())
    }

    fn encode_chat(&self, turns: &[Turn]) -> Result<Vec<u32>, String> {
        let chat = self
            .chat
            .as_ref()
            .ok_or("this model has no chat template, so it takes prompts but no messages")?;
        // The template writes the special tokens itself; adding them again would double the BOS.
        self.tokenizer.encode(&chat(turns)?, false).map_err(|error| error.to_string())
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.bytes(token)
    }

    fn stream(&self) -> Box<dyn TextStream + '_> {
        Box::new(ModelStream { decoder: Some(self.tokenizer.stream()) })
    }
}

struct ModelStream<'a> {
    /// `None` once finished.
    decoder: Option<StreamDecoder<'a>>,
}

impl TextStream for ModelStream<'_> {
    fn push(&mut self, token: u32) -> String {
        // A token outside the tokenizer's vocabulary (tables are padded) has no text.
        let piece = self.decoder.as_mut().map(|decoder| decoder.push(token));
        piece.and_then(Result::ok).flatten().unwrap_or_default()
    }

    fn finish(&mut self) -> String {
        let rest = self.decoder.take().map(StreamDecoder::finish);
        rest.and_then(Result::ok).flatten().unwrap_or_default()
    }
}
