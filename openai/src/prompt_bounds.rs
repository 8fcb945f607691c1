//! Rejection of texts that certainly exceed the context, before a tokenizer processes them as a
//! whole, which takes some hundred times their size in memory.

use engine_api::codec::TextCodec;

use super::body::{Body, RawPrompt};
use super::input_line::{ErrorCode, Rejection};

/// Size up to which texts are not checked, and size of the pieces of larger texts, in bytes.
const PROBED_BYTES: usize = 256 << 10;
/// Number of tokens by which a cut between two pieces of a text may change the total.
const CUT_TOKENS: usize = 64;

/// Bounds on the texts of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptBounds {
    /// Maximum number of positions of prompt and answer together.
    pub context: usize,
    /// Length of the longest token, in bytes; 0 if it is unknown.
    pub token_bytes: usize,
}

impl PromptBounds {
    /// Creates the bounds of a model with `vocab_size` tokens.
    pub fn new(context: usize, vocab_size: usize, codec: Option<&dyn TextCodec>) -> PromptBounds {
        let tokens = 0..u32::try_from(vocab_size).unwrap_or(u32::MAX);
        let longest = codec.and_then(|codec| tokens.map(|token| codec.bytes(token).len()).max());
        PromptBounds { context, token_bytes: longest.unwrap_or(0) }
    }

    /// Checks prompts before they are tokenised.
    ///
    /// # Errors
    /// Returns a rejection of a text that has more tokens than the context, of a conversation with
    /// more messages than that, or of a text that the tokenizer refuses.
    pub fn check(
        &self,
        prompts: &[RawPrompt],
        codec: Option<&dyn TextCodec>,
    ) -> Result<(), Rejection> {
        prompts.iter().try_for_each(|prompt| match prompt {
            RawPrompt::Tokens(_) => Ok(()),
            RawPrompt::Text(text) => self.check_texts(&[text.as_str()], "prompt", codec),
            RawPrompt::Chat(chat) => {
                if chat.turns.len() > self.context {
                    let what = format!("has {} messages", chat.turns.len());
                    return Err(self.too_long(&what, "messages"));
                }
                let texts: Vec<&str> = chat.turns.iter().map(|turn| &*turn.content).collect();
                self.check_texts(&texts, "messages", codec)
            }
        })
    }

    /// Checks the prompts and the predicted answer of a body before they are tokenised.
    ///
    /// # Errors
    /// Returns a rejection like [`PromptBounds::check`].
    pub fn check_body(&self, body: &Body, codec: Option<&dyn TextCodec>) -> Result<(), Rejection> {
        self.check(&body.prompts, codec)?;
        match &body.prediction {
            Some(RawPrompt::Text(text)) => self.check_texts(&[text.as_str()], "prediction", codec),
            _ => Ok(()),
        }
    }

    fn check_texts(
        &self,
        texts: &[&str],
        field: &'static str,
        codec: Option<&dyn TextCodec>,
    ) -> Result<(), Rejection> {
        let size_bytes: usize = texts.iter().map(|text| text.len()).sum();
        let refused = || self.too_long(&format!("has {size_bytes} bytes of text"), field);
        if size_bytes <= PROBED_BYTES {
            return Ok(());
        }
        let fits_bytes = self.context.saturating_mul(self.token_bytes);
        if self.token_bytes > 0 && size_bytes > fits_bytes {
            return Err(refused());
        }
        let Some(codec) = codec else { return Ok(()) };
        let (mut tokens, mut cuts) = (0, 0);
        for piece in texts.iter().flat_map(|text| pieces(text)) {
            let found = codec.encode_part(piece).map_err(|reason| {
                let message = format!("The prompt cannot be tokenised: {reason}.");
                Rejection::new(ErrorCode::Tokenizer, message)
            })?;
            (tokens, cuts) = (tokens + found.len(), cuts + CUT_TOKENS);
            if tokens > self.context + cuts {
                return Err(refused());
            }
        }
        Ok(())
    }

    fn too_long(&self, what: &str, field: &'static str) -> Rejection {
        let text = if field == "prediction" { "prediction" } else { "prompt" };
        let message = format!(
            "This model's maximum context length is {} tokens. However, the {text} {what}, which \
             is more than that. Please reduce the length of the {field}.",
            self.context
        );
        Rejection::new(ErrorCode::ContextLengthExceeded, message).with_param(field)
    }
}

/// Splits a text into pieces that are tokenised separately.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = PROBED_BYTES.min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
