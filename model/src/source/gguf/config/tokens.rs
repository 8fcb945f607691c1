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

/// End of sequence, of turn and of message. Conversions of LLaMA-3 from before there was a key for
/// the last two have the tokens all the same.
pub(super) fn eos_token_ids(metadata: &Metadata, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ids.extend(token_id(metadata, &format!("tokenizer.ggml.{name}_token_id"), vocab)?);
    }
    if metadata.text("tokenizer.ggml.pre")? == Some("llama-bpe") {
        let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let ends = (0u32..)
            .zip(tokens)
            .filter(|(_, token)| matches!(token.as_str(), "<|eot_id|>" | "<|eom_id|>"));
        ids.extend(ends.map(|(id, _)| id));
    }
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}
