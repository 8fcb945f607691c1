//! Tokenization of a prompt and its continuations, split like in EleutherAI's lm-eval.
//!
//! The tokens of a continuation are those of the whole text after the number of tokens of the
//! prompt alone: a tokenizer seldom encodes a text on its own as it does after another. Spaces at
//! the prompt's end belong to the continuation, since tokens mostly begin with a space.

use engine_api::codec::{CodecError, TextCodec};
use openai::input_line::{ErrorCode, Rejection};

/// Token before a continuation without a prompt, which marks the beginning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixToken(pub Option<u32>);

/// Returns the tokens of a prompt and of its continuations. Texts of far more than `max_tokens` are
/// refused.
///
/// # Errors
/// Returns a rejection if the tokenizer refuses a text, or if the prompt is empty and there is no
/// prefix.
pub fn encode_question(
    prompt: &str,
    continuations: &[&str],
    prefix: PrefixToken,
    codec: &dyn TextCodec,
    max_tokens: usize,
) -> Result<(Vec<u32>, Vec<Vec<u32>>), Rejection> {
    let context = prompt.trim_end_matches(is_space);
    let spaces = &prompt[context.len()..];
    if context.is_empty() {
        return encode_after_prefix(spaces, continuations, prefix, codec);
    }
    let encode = |text: &str| {
        let encoded = codec.encode(text, max_tokens);
        encoded.map_err(|error| codec_rejection(&error))
    };
    let before = encode(context)?;
    let after = continuations.iter().map(|continuation| {
        let whole = encode(&[context, spaces, continuation].concat())?;
        Ok(whole.get(before.len()..).unwrap_or_default().to_vec())
    });
    let after = after.collect::<Result<_, Rejection>>()?;
    Ok((before, after))
}

/// Returns the tokens of continuations without a prompt. The prefix precedes them, once.
fn encode_after_prefix(
    spaces: &str,
    continuations: &[&str],
    PrefixToken(prefix): PrefixToken,
    codec: &dyn TextCodec,
) -> Result<(Vec<u32>, Vec<Vec<u32>>), Rejection> {
    let prefix = prefix.ok_or_else(missing_prefix)?;
    let encode = |text: &&str| -> Result<Vec<u32>, Rejection> {
        let text = [spaces, text].concat();
        let mut tokens = codec.encode_part(&text).map_err(|error| codec_rejection(&error))?;
        let begins = tokens.first() == Some(&prefix);
        tokens.drain(..usize::from(begins));
        Ok(tokens)
    };
    let after = continuations.iter().map(encode).collect::<Result<_, _>>()?;
    Ok((vec![prefix], after))
}

/// Returns the rejection of an empty prompt if the model has no prefix token.
pub fn missing_prefix() -> Rejection {
    let message = "The prompt must not be empty: the model has no beginning-of-text token.";
    Rejection::new(ErrorCode::EmptyPrompt, message)
}

fn codec_rejection(error: &CodecError) -> Rejection {
    Rejection::from_codec_error(error, ErrorCode::Tokenizer, "The text cannot be tokenised")
}

/// Returns true for characters that Python's `str.strip` removes, which lm-eval uses on prompts.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}
