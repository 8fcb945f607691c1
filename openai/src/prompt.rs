//! Tokenised prompts, which are within the vocabulary and the context.

use engine_api::codec::{CodecError, TextCodec};
use engine_api::token_rules::TokenRules;

use super::body::RawPrompt;
use super::input_line::{ErrorCode, Prompt, Rejection};

/// Limits of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Maximum number of positions of prompt and answer together.
    pub context: usize,
    pub vocab_size: usize,
    /// File of the model's tokenizer, if there is one that cannot be read.
    pub unsupported_tokenizer: Option<&'static str>,
}

impl ModelLimits {
    /// Checks that all tokens are in the model's vocabulary.
    ///
    /// # Errors
    /// Returns a rejection of the first token that is not.
    pub fn check_tokens(&self, tokens: impl IntoIterator<Item = u32>) -> Result<(), Rejection> {
        let is_outside = |token: &u32| *token as usize >= self.vocab_size;
        let Some(token) = tokens.into_iter().find(is_outside) else { return Ok(()) };
        let max = self.vocab_size - 1;
        let message = format!("Token id {token} is out of vocabulary: must be at most {max}.");
        Err(Rejection::new(ErrorCode::TokenOutOfVocabulary, message))
    }

    /// Checks that all tokens with rules are in the model's vocabulary.
    ///
    /// # Errors
    /// Returns a rejection of the first token that is not.
    pub fn check_token_rules(&self, rules: Option<&TokenRules>) -> Result<(), Rejection> {
        let Some(TokenRules { logit_bias, stop_token_ids, .. }) = rules else { return Ok(()) };
        self.check_tokens(logit_bias.iter().map(|(token, _)| *token))
            .map_err(|rejection| rejection.with_param("logit_bias"))?;
        self.check_tokens(stop_token_ids.iter().copied())
            .map_err(|rejection| rejection.with_param("stop_token_ids"))
    }

    /// Returns the sentence that rejects a request that needs a tokenizer. It includes the
    /// `consequence`, which begins with its own punctuation.
    pub fn missing_tokenizer_message(&self, consequence: &str) -> String {
        match self.unsupported_tokenizer {
            None => format!("This model has no tokenizer{consequence}."),
            Some(file) => format!(
                "This model's tokenizer is in {file}, which cannot be read{consequence}. To make \
                 it readable, put a tokenizer.json next to it: transformers' AutoTokenizer writes \
                 one with save_pretrained."
            ),
        }
    }
}

/// Length of the answers that a request specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLength {
    /// Maximum number of new tokens.
    pub max_tokens: u32,
    /// The request itself specifies `max_tokens`. A default is lowered to what the context leaves
    /// without a warning.
    pub is_requested: bool,
    /// The request is rejected if the context leaves less than it specifies, because its answers
    /// have a response format or tools and are useless if cut.
    pub must_fit: bool,
    /// Maximum number of tokens of a prompt, whose last tokens are kept; `None` if a prompt that
    /// exceeds the context is rejected.
    pub max_prompt_tokens: Option<usize>,
}

/// Tokenises a prompt, and lowers the length of its answers to what the context leaves. A chat is
/// rendered as of `now_s`, in seconds since 1970.
///
/// # Errors
/// Returns a rejection of an empty prompt, a text without a tokenizer, a token outside the
/// vocabulary, or a prompt and an answer that exceed the context.
pub fn fit_prompt(
    raw: &RawPrompt,
    length: AnswerLength,
    codec: Option<&dyn TextCodec>,
    now_s: u64,
    limits: ModelLimits,
) -> Result<Prompt, Rejection> {
    let tokens = match length.max_prompt_tokens {
        None => tokenize_prompt(raw, codec, now_s, limits)?,
        Some(max_tokens) => {
            let whole = ModelLimits { context: usize::MAX, ..limits };
            let mut tokens = tokenize_prompt(raw, codec, now_s, whole)?;
            let answer = if length.is_requested { length.max_tokens as usize } else { 1 };
            let max_tokens = max_tokens.min(limits.context.saturating_sub(answer)).max(1);
            tokens.drain(..tokens.len().saturating_sub(max_tokens));
            tokens
        }
    };
    if tokens.is_empty() {
        return Err(Rejection::new(ErrorCode::EmptyPrompt, "The prompt must not be empty."));
    }
    limits.check_tokens(tokens.iter().copied())?;
    let remaining = limits.context.saturating_sub(tokens.len());
    let AnswerLength { max_tokens, is_requested, must_fit, .. } = length;
    let has_no_capacity = remaining == 0 && max_tokens > 0;
    let is_cut = is_requested && must_fit && max_tokens as usize > remaining;
    if tokens.len() > limits.context || has_no_capacity || is_cut {
        return Err(context_length_exceeded(raw, tokens.len(), Some(length), limits));
    }
    let max_new = max_tokens.min(u32::try_from(remaining).unwrap_or(u32::MAX));
    Ok(Prompt { tokens: tokens.into(), max_new })
}

/// Returns the rejection of a prompt and an answer that exceed the context, in OpenAI's words:
/// clients recognise them, shorten the conversation and retry. `length` is `None` if the prompt
/// alone exceeds the context.
fn context_length_exceeded(
    raw: &RawPrompt,
    prompt_tokens: usize,
    length: Option<AnswerLength>,
    limits: ModelLimits,
) -> Rejection {
    let field = match raw {
        RawPrompt::Chat(_) => "messages",
        RawPrompt::Text(_) | RawPrompt::Tokens(_) => "prompt",
    };
    let requested = length.filter(|length| length.is_requested);
    let (found, remedy) = if let Some(AnswerLength { max_tokens, .. }) = requested {
        let requested = prompt_tokens as u64 + u64::from(max_tokens);
        (
            format!(
                "you requested {requested} tokens ({prompt_tokens} in the {field}, {max_tokens} \
                 in the completion)"
            ),
            format!("{field} or completion"),
        )
    } else {
        let room = if prompt_tokens > limits.context {
            ""
        } else {
            ", which leave none for the completion"
        };
        (format!("your {field} resulted in {prompt_tokens} tokens{room}"), field.to_owned())
    };
    let message = format!(
        "This model's maximum context length is {} tokens. However, {found}. Please reduce the \
         length of the {remedy}.",
        limits.context
    );
    Rejection::new(ErrorCode::ContextLengthExceeded, message).with_param(field)
}

/// Returns a warning if some prompts leave fewer new tokens than the request specifies.
pub fn shortened_warning(
    prompts: &[Prompt],
    max_tokens: u32,
    limits: ModelLimits,
) -> Option<String> {
    let mut shorter = prompts.iter().filter(|prompt| prompt.max_new < max_tokens);
    let first = shorter.next()?;
    let context = limits.context;
    Some(if prompts.len() == 1 {
        format!(
            "max_tokens was reduced to {}: the maximum context length is {context} tokens and the \
             prompt has {}.",
            first.max_new,
            first.tokens.len()
        )
    } else {
        format!(
            "max_tokens was reduced for {} of {} prompts: the maximum context length is {context} \
             tokens.",
            1 + shorter.count(),
            prompts.len()
        )
    })
}

/// Returns the token ids of a prompt; a chat is rendered as of `now_s`, and an empty text has no
/// tokens. A text of many more tokens than the context is not tokenised.
///
/// # Errors
/// Returns a rejection of a text if there is no tokenizer, or if the tokenizer refuses the text.
pub fn tokenize_prompt(
    raw: &RawPrompt,
    codec: Option<&dyn TextCodec>,
    now_s: u64,
    limits: ModelLimits,
) -> Result<Vec<u32>, Rejection> {
    let tokenizer = || {
        codec.ok_or_else(|| {
            let message =
                limits.missing_tokenizer_message("; specify the prompt as an array of token ids");
            Rejection::new(ErrorCode::NoTokenizer, message)
        })
    };
    let refused = |error: CodecError, code, what| match error {
        CodecError::TooLong { tokens } => context_length_exceeded(raw, tokens, None, limits),
        error => Rejection::from_codec_error(&error, code, what),
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
