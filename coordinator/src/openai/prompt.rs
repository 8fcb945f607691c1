//! Prompts as the model sees them: tokenised, inside the vocabulary and inside the context.

use super::body::RawPrompt;
use super::item::{ErrorCode, Prompt, Rejection};
use crate::boundary::codec::{CodecError, TextCodec};

/// What the model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Positions of prompt and answer together.
    pub context: usize,
    pub vocab_size: usize,
    /// The file that has the tokenizer of a model whose tokenizer cannot be read.
    pub unread_tokenizer: Option<&'static str>,
}

impl Limits {
    /// Why a request that needs a tokenizer is refused: a sentence with the `consequence`, which
    /// begins with its comma.
    pub fn no_tokenizer(&self, consequence: &str) -> String {
        match self.unread_tokenizer {
            None => format!("This model has no tokenizer{consequence}."),
            Some(file) => format!(
                "This model's tokenizer is in {file}, which cannot be read{consequence}. To have \
                 it read, put a tokenizer.json beside it: transformers' AutoTokenizer writes one \
                 with save_pretrained."
            ),
        }
    }
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
    let tokens = tokenise(raw, codec, now_s, limits)?;
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
        return Err(too_long(tokens.len(), limits));
    }
    let max_new = max_tokens.min(u32::try_from(room).unwrap_or(u32::MAX));
    Ok(Prompt { tokens, max_new })
}

fn too_long(tokens: usize, limits: Limits) -> Rejection {
    Rejection::new(
        ErrorCode::PromptTooLong,
        format!(
            "The prompt has {tokens} tokens and the model's context is {}: no room is left for an \
             answer; shorten the prompt.",
            limits.context
        ),
    )
}

/// Token ids of a prompt, a chat as of `now_s`; none of an empty text. A text of far more tokens
/// than the context is not tokenised.
///
/// # Errors
/// A text without tokenizer, or one that it refuses.
pub fn tokenise(
    raw: &RawPrompt,
    codec: Option<&dyn TextCodec>,
    now_s: u64,
    limits: Limits,
) -> Result<Vec<u32>, Rejection> {
    let tokenizer = || {
        codec.ok_or_else(|| {
            let message = limits.no_tokenizer("; give the prompt as a list of token ids");
            Rejection::new(ErrorCode::NoTokenizer, message)
        })
    };
    let refused = |error: CodecError, code, what| match error {
        CodecError::TooLong { tokens } => too_long(tokens, limits),
        error => Rejection::of_codec(&error, code, what),
    };
    match raw {
        RawPrompt::Tokens(tokens) => Ok(tokens.clone()),
        RawPrompt::Text(text) if text.is_empty() => Ok(Vec::new()),
        RawPrompt::Text(text) => {
            let encoded = tokenizer()?.encode(text, limits.context);
            encoded.map_err(|error| {
                refused(error, ErrorCode::Tokenizer, "The prompt cannot be tokenised")
            })
        }
        RawPrompt::Chat(chat) => {
            let encoded = tokenizer()?.encode_chat(chat, now_s, limits.context);
            encoded.map_err(|error| {
                refused(error, ErrorCode::ChatTemplate, "The messages cannot be rendered")
            })
        }
    }
}
