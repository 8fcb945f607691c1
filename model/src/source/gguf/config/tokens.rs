//! The size of the vocabulary, and its special tokens.

use super::super::facts::TensorFacts;
use super::super::metadata::{Metadata, required};
use super::keys::{ConfigError, MAX_SIZE, wrong};

/// Returns the number of tokens in the file's list, else the number of rows of the embedding table.
pub(super) fn vocab_size(metadata: &Metadata, facts: &TensorFacts) -> Result<usize, ConfigError> {
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.texts(key)?.map(<[String]>::len).filter(|tokens| *tokens > 0);
    let size = required(key, tokens.or(facts.embedding_rows))?;
    if size == 0 || size > MAX_SIZE as usize {
        return Err(wrong(key.to_owned(), size, "a list of 1 to 16777216 tokens"));
    }
    Ok(size)
}

/// Returns a token id in the vocabulary; `None` if the key is absent.
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

/// Spellings of tokens that end an answer, since many conversions name only one such token in their
/// keys. llama.cpp ends at the same tokens.
const ENDS: [&str; 14] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<turn|>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
];

/// Spellings of end tokens that are also used for ordinary tokens, such as HTML's `</s>`. They end
/// an answer only if the file marks them as control tokens. Those in the second half separate code
/// files.
const ENDS_IF_CONTROL: [&str; 18] = [
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "< EOT >",
    "_< EOT >",
    "[EOT]",
    "[EOS]",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Number of the token type of control tokens.
const CONTROL: u32 = 3;

/// Returns the tokens that end a sequence, turn or message, according to the file's keys and their
/// spelling.
pub(super) fn eos_token_ids(metadata: &Metadata, vocab: usize) -> Result<Vec<u32>, ConfigError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ids.extend(token_id(metadata, &format!("tokenizer.ggml.{name}_token_id"), vocab)?);
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let types = metadata.integers("tokenizer.ggml.token_type")?;
    // In a file without types, all tokens may be control tokens.
    let is_control = |id: u32| match &types {
        Some(types) => types.get(id as usize) == Some(&CONTROL),
        None => true,
    };
    let is_end =
        |id, token| ENDS.contains(&token) || (ENDS_IF_CONTROL.contains(&token) && is_control(id));
    let spelled = (0u32..).zip(tokens).filter(|(id, token)| is_end(*id, token.as_str()));
    ids.extend(spelled.map(|(id, _)| id));
    // In gpt-oss's format, `<|end|>` ends one of an answer's several messages, regardless of the
    // keys.
    let of_message =
        tokens.iter().any(|token| matches!(token.as_str(), "<|return|>" | "<|flush|>"));
    let ends_message =
        |id: u32| of_message && tokens.get(id as usize).is_some_and(|token| token == "<|end|>");
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| !ends_message(*id) && seen.insert(*id));
    Ok(ids)
}
