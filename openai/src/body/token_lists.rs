//! Lists of tokens that answers may, or may not, contain.

use serde_json::Value;

use super::values::{JsonFields, describe_value, get_non_null, invalid_value};
use crate::input_line::Rejection;
use engine_api::token_rules::TokenRules;

/// Maximum number of words that answers may not contain.
const MAX_BAD_WORDS: usize = 128;
/// Maximum total size of these words, in bytes.
const MAX_BAD_WORD_BYTES: usize = 16 << 10;

/// Reads vLLM's `bad_words`.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_bad_words(fields: &JsonFields) -> Result<Vec<String>, Rejection> {
    let Some(value) = get_non_null(fields, "bad_words") else { return Ok(Vec::new()) };
    let wanted = format!(
        "an array of at most {MAX_BAD_WORDS} non-empty strings with at most {MAX_BAD_WORD_BYTES} \
         bytes in total"
    );
    let refused = || invalid_value("bad_words", &wanted);
    let words = value.as_array().filter(|words| words.len() <= MAX_BAD_WORDS);
    let word = |word: &Value| word.as_str().filter(|word| !word.is_empty()).map(str::to_owned);
    let words: Option<Vec<String>> = words.ok_or_else(refused)?.iter().map(word).collect();
    let words = words.ok_or_else(refused)?;
    let is_short = words.iter().map(String::len).sum::<usize>() <= MAX_BAD_WORD_BYTES;
    if is_short { Ok(words) } else { Err(refused()) }
}

/// Reads vLLM's `allowed_token_ids`.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_allowed_token_ids(fields: &JsonFields) -> Result<Vec<u32>, Rejection> {
    let Some(value) = get_non_null(fields, "allowed_token_ids") else { return Ok(Vec::new()) };
    let max = TokenRules::LOGIT_BIASES_MAX;
    let wanted = format!("an array of 1 to {max} token ids");
    let refused = || invalid_value("allowed_token_ids", &wanted);
    let tokens = value.as_array().filter(|tokens| (1..=max).contains(&tokens.len()));
    let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok());
    tokens.ok_or_else(refused)?.iter().map(|id| token(id).ok_or_else(refused)).collect()
}

/// Reads vLLM's `thinking_token_budget`: the number of tokens after which the reasoning is ended;
/// -1 for any number.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_thinking_budget(fields: &JsonFields) -> Result<Option<u32>, Rejection> {
    let Some(value) = get_non_null(fields, "thinking_token_budget") else { return Ok(None) };
    let number = match value.as_i64() {
        Some(-1) => return Ok(None),
        Some(number) => u32::try_from(number).ok(),
        None => None,
    };
    let wanted = || format!("a non-negative integer, or -1, got {}", describe_value(value));
    number.map(Some).ok_or_else(|| invalid_value("thinking_token_budget", &wanted()))
}

/// Reads vLLM's `truncate_prompt_tokens`: the number of tokens at the end of a prompt that are
/// kept; -1 keeps as many as the context permits.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_truncation(fields: &JsonFields) -> Result<Option<usize>, Rejection> {
    let Some(value) = get_non_null(fields, "truncate_prompt_tokens") else { return Ok(None) };
    let number = match value.as_i64() {
        Some(-1) => Some(usize::MAX),
        Some(number) => usize::try_from(number).ok().filter(|number| *number > 0),
        None => None,
    };
    let wanted = || format!("a positive integer, or -1, got {}", describe_value(value));
    number.map(Some).ok_or_else(|| invalid_value("truncate_prompt_tokens", &wanted()))
}
