//! A prompt and its continuation as tokens, split as EleutherAI's lm-eval does it.
//!
//! The tokens of a continuation are those of the whole text behind as many as the prompt alone has:
//! a tokenizer seldom makes the same tokens of a text by itself as of the same text behind another.
//! Spaces at the prompt's end go to the continuation, since tokens mostly begin with a space.

use crate::boundary::codec::{CodecError, TextCodec};
use crate::openai::item::{ErrorCode, Rejection};

/// What stands before a continuation without a prompt: the beginning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(pub Option<u32>);

/// Tokens of a prompt, and of what may follow it. Texts of far more than `max_tokens` are refused.
///
/// # Errors
/// A rejection of texts that the tokenizer refuses, or of which nothing is left to be scored.
pub fn split(
    prompt: &str,
    continuations: &[&str],
    prefix: Prefix,
    codec: &dyn TextCodec,
    max_tokens: usize,
) -> Result<(Vec<u32>, Vec<Vec<u32>>), Rejection> {
    let context = prompt.trim_end_matches(is_space);
    let spaces = &prompt[context.len()..];
    if context.is_empty() {
        return behind_prefix(spaces, continuations, prefix, codec);
    }
    let encode = |text: &str| {
        let encoded = codec.encode(text, max_tokens);
        encoded.map_err(|error| refused(&error))
    };
    let before = encode(context)?;
    let after = continuations.iter().map(|continuation| {
        let whole = encode(&[context, spaces, continuation].concat())?;
        Ok(whole.get(before.len()..).unwrap_or_default().to_vec())
    });
    let after = after.collect::<Result<_, Rejection>>()?;
    Ok((before, after))
}

/// The same of continuations that nothing precedes: the prefix does, once.
fn behind_prefix(
    spaces: &str,
    continuations: &[&str],
    Prefix(prefix): Prefix,
    codec: &dyn TextCodec,
) -> Result<(Vec<u32>, Vec<Vec<u32>>), Rejection> {
    let prefix = prefix.ok_or_else(no_prefix)?;
    let encode = |text: &&str| -> Result<Vec<u32>, Rejection> {
        let text = [spaces, text].concat();
        let mut tokens = codec.encode_part(&text).map_err(|error| refused(&error))?;
        let begins = tokens.first() == Some(&prefix);
        tokens.drain(..usize::from(begins));
        Ok(tokens)
    };
    let after = continuations.iter().map(encode).collect::<Result<_, _>>()?;
    Ok((vec![prefix], after))
}

/// Why nothing can stand before a continuation without a prompt.
pub fn no_prefix() -> Rejection {
    let message = "The prompt is empty, and the model names no token that begins a text; give a \
                   prompt.";
    Rejection::new(ErrorCode::EmptyPrompt, message)
}

fn refused(error: &CodecError) -> Rejection {
    Rejection::of_codec(error, ErrorCode::Tokenizer, "The text cannot be tokenised")
}

/// What Python takes for a space: lm-eval strips prompts there.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}
