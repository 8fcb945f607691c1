//! The vocabulary's size and its special tokens.

use super::super::facts::TensorFacts;
use super::super::metadata::{Metadata, required};
use super::keys::{ConfigError, MAX_SIZE, wrong};

/// Tokens of the file's list, or rows of its table.
pub(super) fn vocab_size(metadata: &Metadata, facts: &TensorFacts) -> Result<usize, ConfigError> {
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.texts(key)?.map(<[String]>::len).filter(|tokens| *tokens > 0);
    let size = required(key, tokens.or(facts.embedding_rows))?;
    if size == 0 || size > MAX_SIZE as usize {
        return Err(wrong(key.to_owned(), size, "a list of 1 to 16777216 tokens"));
    }
    Ok(size)
}

/// A token id inside the vocabulary; `None` when the key is absent.
pub(super) fn token_id(
    metadata: &Metadata,
    key: &str,
    vocab: usize,
) -> Result<Option<u32>, ConfigError> {
    match metadata.integer(key)? {
        Some(id) if id as usize >= vocab => {
            Err(wrong(key.to_owned(), id, "a token id inside the vocabulary"))
        }
        other => Ok(other),
    }
}

/// Tokens that end an answer, by their spelling: of many conversions the keys name but one of them.
const ENDS: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|end_of_text|>",
];

/// End of sequence, of turn and of message, by the file's keys and by their spelling.
pub(super) fn eos_token_ids(metadata: &Metadata, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ids.extend(token_id(metadata, &format!("tokenizer.ggml.{name}_token_id"), vocab)?);
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let is_end = |token: &str| ENDS.contains(&token);
    ids.extend((0u32..).zip(tokens).filter(|(_, token)| is_end(token)).map(|(id, _)| id));
    // In gpt-oss's format it ends a message, of which an answer has several, whatever a key says.
    let of_message = tokens.iter().any(|token| token == "<|return|>");
    let ends_message =
        |id: u32| of_message && tokens.get(id as usize).is_some_and(|token| token == "<|end|>");
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| !ends_message(*id) && seen.insert(*id));
    Ok(ids)
}
