//! Prompts as the model sees them: tokenised, inside the vocabulary and inside the context.

use super::body::RawPrompt;
use super::item::{ErrorCode, Prompt, Rejection};
use crate::boundary::codec::TextCodec;

/// What the model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Positions of prompt and answer together.
    pub context: usize,
    pub vocab_size: usize,
}

/// Tokenises one prompt, a chat as of `now_s` (seconds since 1970), and cuts `max_tokens` to what
/// the context leaves.
///
/// # Errors
/// A rejection for an empty prompt, a text without tokenizer, a token outside the vocabulary or a
/// prompt that leaves no room for an answer.
pub fn fit(
    raw: &RawPrompt,
    max_tokens: u32,
    codec: Option<&dyn TextCodec>,
    now_s: u64,
    limits: Limits,
) -> Result<Prompt, Rejection> {
    let tokens = tokenise(raw, codec, now_s)?;
    if tokens.is_empty() {
        return Err(Rejection::new(ErrorCode::EmptyPrompt, "The prompt is empty."));
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= limits.vocab_size) {
        return Err(Rejection::new(
            ErrorCode::TokenOutOfVocabulary,
            format!(
                "The token id {token} is outside the vocabulary, which ends at {}.",
                limits.vocab_size - 1
            ),
        ));
    }
    let room = limits.context.saturating_sub(tokens.len());
    if tokens.len() > limits.context || (room == 0 && max_tokens > 0) {
        return Err(Rejection::new(
            ErrorCode::PromptTooLong,
            format!(
                "The prompt has {} tokens and the model's context is {}: no room is left for an \
                 answer; shorten the prompt.",
                tokens.len(),
                limits.context
            ),
        ));
    }
    let max_new = max_tokens.min(u32::try_from(room).unwrap_or(u32::MAX));
    Ok(Prompt { tokens, max_new })
}

/// Token ids of a prompt, a chat as of `now_s`; none of an empty text.
///
/// # Errors
/// A text without tokenizer, or one that it refuses.
pub fn tokenise(
    raw: &RawPrompt,
    codec: Option<&dyn TextCodec>,
    now_s: u64,
) -> Result<Vec<u32>, Rejection> {
    let tokenizer = || {
        codec.ok_or_else(|| {
            Rejection::new(
                ErrorCode::NoTokenizer,
                "This model has no tokenizer; give the prompt as a list of token ids.",
            )
        })
    };
    match raw {
        RawPrompt::Tokens(tokens) => Ok(tokens.clone()),
        RawPrompt::Text(text) if text.is_empty() => Ok(Vec::new()),
        RawPrompt::Text(text) => tokenizer()?.encode(text).map_err(|reason| {
            Rejection::new(
                ErrorCode::Tokenizer,
                format!("The prompt cannot be tokenised: {reason}."),
            )
        }),
        RawPrompt::Chat(chat) => tokenizer()?.encode_chat(chat, now_s).map_err(|reason| {
            Rejection::new(
                ErrorCode::ChatTemplate,
                format!("The messages cannot be rendered: {reason}."),
            )
        }),
    }
}
