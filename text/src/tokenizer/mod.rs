//! Conversion of text to token ids and back, for all tokenizer files that models are published
//! with.
//!
//! The batch job uses it to encode prompts, and to detokenise answers outside the step path;
//! `gguf_tokenizer` builds a tokenizer from GGUF metadata. A model without tokenizer files is not
//! an error: the job then reads token ids. Encoding never truncates or pads, regardless of the
//! settings in the file.

mod context;
mod length;
mod token_bytes;

use std::fmt;
use std::path::Path;

use model::config::Family;
use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::tokenizer_config::{TokenizerConfig, TokenizerConfigError};

/// Maximum number of tokens in a character, each of which adds at least one byte.
const CHARACTER_TOKENS: usize = 4;
/// Maximum number of tokens without a whole character, unless their bytes are invalid.
const PENDING_TOKENS_MAX: usize = 2 * CHARACTER_TOKENS;

/// Tokenizer files that can be read.
const SUPPORTED_FILES: [&str; 2] = ["tokenizer.json", "vocab.json"];
/// Tokenizer files that cannot be read: those of Mistral, SentencePiece and OpenAI's tiktoken.
const UNSUPPORTED_FILES: [&str; 7] = [
    "tekken.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "spiece.model",
    "tokenizer.tiktoken",
    "tiktoken.model",
    "qwen.tiktoken",
];

/// A piece of a growing text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPiece {
    pub text: String,
    /// Number of tokens up to the end of the piece.
    pub tokens: usize,
}

/// A tokenizer, together with a BOS token to prepend, which the `tokenizers` crate leaves to its
/// caller.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    prepend_bos: Option<u32>,
}

/// Reason for which a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("{path}: the tokenizer cannot be read: {reason}")]
    Read { path: String, reason: String },
    #[error("{path}: byte-level BPE needs merges.txt in the directory of vocab.json")]
    NoMerges { path: String },
    #[error(transparent)]
    Config(#[from] TokenizerConfigError),
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    #[error("the tokens cannot be converted to text: {0}")]
    Decode(String),
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("prepend_bos", &self.prepend_bos)
            .finish_non_exhaustive()
    }
}

impl TextTokenizer {
    /// Wraps a tokenizer. [`TextTokenizer::encode`] prepends `prepend_bos` if it adds special
    /// tokens; `None` if the tokenizer's post-processor already does so, or none is needed.
    pub fn new(mut tokenizer: Tokenizer, prepend_bos: Option<u32>) -> Self {
        // A tokenizer.json may contain the truncation of the training run, which would silently
        // truncate prompts. Removing it cannot fail, since only an unsuitable stride is an error.
        let _ = tokenizer.with_truncation(None);
        tokenizer.with_padding(None);
        Self { tokenizer, prepend_bos }
    }

    /// Reads the tokenizer in a model's directory: `tokenizer.json`, else byte-level BPE from
    /// `vocab.json` and `merges.txt`. Returns `None` if the directory contains neither.
    ///
    /// # Errors
    /// Files that exist but cannot be read or parsed.
    pub fn from_directory(
        directory: &Path,
        family: Family,
    ) -> Result<Option<Self>, TokenizerError> {
        let json = directory.join("tokenizer.json");
        if json.is_file() {
            let tokenizer =
                Tokenizer::from_file(&json).map_err(|error| read_error(&json, error))?;
            return Ok(Some(Self::new(tokenizer, None)));
        }
        if directory.join("vocab.json").is_file() {
            let config = TokenizerConfig::from_directory(directory)?;
            return byte_level_bpe(directory, family, &config).map(Some);
        }
        Ok(None)
    }

    /// Returns the first file of a directory with a tokenizer in an unsupported format; `None` if
    /// there is no such file, or also one in a supported format.
    pub fn unsupported_file(directory: &Path) -> Option<&'static str> {
        let exists = |name: &&str| directory.join(name).is_file();
        if SUPPORTED_FILES.iter().any(exists) {
            return None;
        }
        UNSUPPORTED_FILES.into_iter().find(exists)
    }

    /// Returns the token ids of `text`. With `add_special`, adds the tokens that the model expects
    /// around a raw prompt (BOS); a rendered chat template already contains them.
    ///
    /// # Errors
    /// Text that the vocabulary cannot represent (no unknown token, no byte fallback).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special)
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        let bos = self.prepend_bos.filter(|_| add_special);
        Ok(bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// Returns the text of `tokens`, without special tokens, and with U+FFFD in place of invalid
    /// UTF-8.
    ///
    /// # Errors
    /// A decoder that refuses the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.tokenizer
            .decode(tokens, true)
            .map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// Returns the bytes that `token` adds to a text, which may begin or end inside a character.
    /// For a special token, returns its spelling, and for an id outside the vocabulary, nothing.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        token_bytes::of(&self.tokenizer, token)
    }

    /// Returns true if a token is not part of a text.
    pub fn is_special(&self, token: u32) -> bool {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).is_some_and(|token| token.special)
    }

    /// Returns the text that `tokens` add to the text of the first `emitted` of them, or `None` if
    /// it does not end with a whole character. With `is_last`, an incomplete character becomes
    /// U+FFFD instead. If many tokens do not end with a whole character, returns those that no
    /// later token can complete.
    ///
    /// # Errors
    /// See [`TextTokenizer::decode`].
    pub fn next_piece(
        &self,
        tokens: &[u32],
        emitted: usize,
        is_last: bool,
    ) -> Result<Option<TextPiece>, TokenizerError> {
        let before = self.decode(&tokens[..emitted])?;
        let piece = |text: &str, tokens: usize| {
            let text = Some(text_after(text, &before)).filter(|text| !text.is_empty());
            text.map(|text| TextPiece { text: text.to_owned(), tokens })
        };
        let text = self.decode(tokens)?;
        if is_last || !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(piece(&text, tokens.len()));
        }
        if tokens.len() - emitted >= PENDING_TOKENS_MAX {
            // Of four consecutive positions, at least one is not inside a character.
            let last = tokens.len() - CHARACTER_TOKENS;
            for first in (last + 1 - CHARACTER_TOKENS..=last).rev() {
                let (head, rest) = tokens.split_at(first);
                let head = self.decode(head)?;
                if text.strip_prefix(head.as_str()) == Some(&self.decode(rest)?) {
                    return Ok(piece(&head, first));
                }
            }
        }
        Ok(None)
    }

    /// Returns a decoder for a single sequence, which takes one token at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, growing: GrowingTokens::default() }
    }

    /// Returns a decoder for an answer to a prompt; see [`TextTokenizer::grow_behind`].
    ///
    /// # Errors
    /// See [`TextTokenizer::grow_behind`].
    pub fn stream_after(
        &self,
        prompt: &[u32],
        keeps_space: bool,
    ) -> Result<StreamDecoder<'_>, TokenizerError> {
        Ok(StreamDecoder { tokenizer: self, growing: self.grow_behind(prompt, keeps_space)? })
    }

    /// Returns the number of ids in the vocabulary, including special tokens. The model's embedding
    /// table may be larger.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns the id of a token by its exact spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}

/// The tokens of a growing sequence that are still needed to decode the following text.
#[derive(Debug, Clone, Default)]
pub struct GrowingTokens {
    /// The tokens of the last emitted piece, which are the context of the next piece (a decoder may
    /// treat the first token of a text differently), followed by the tokens that have not been
    /// emitted.
    tokens: Vec<u32>,
    /// Number of `tokens` that have been emitted.
    emitted: usize,
}

impl GrowingTokens {
    /// Appends the next token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// Returns the tokens, and the number of them that have been emitted; see
    /// [`TextTokenizer::next_piece`].
    pub fn as_parts(&self) -> (&[u32], usize) {
        (&self.tokens, self.emitted)
    }

    /// Prepends other tokens, the first `emitted` of which have been emitted. None of the existing
    /// tokens count as emitted.
    pub fn grow_from(&mut self, mut before: Vec<u32>, emitted: usize) {
        before.append(&mut self.tokens);
        *self = GrowingTokens { tokens: before, emitted };
    }

    /// Records that the text of the first `tokens` was emitted.
    pub fn emit(&mut self, tokens: usize) {
        self.tokens.drain(..self.emitted);
        self.emitted = tokens - self.emitted;
    }
}

/// Decodes a growing sequence incrementally, without ever emitting an incomplete character: text is
/// emitted as soon as it ends with a whole character.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a TextTokenizer,
    growing: GrowingTokens,
}

impl StreamDecoder<'_> {
    /// Appends the next token, and returns the text that it completes, if any.
    ///
    /// # Errors
    /// See [`TextTokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<Option<String>, TokenizerError> {
        self.growing.push(token);
        self.take(false)
    }

    /// Returns the remaining text, with U+FFFD in place of an incomplete character.
    ///
    /// # Errors
    /// See [`TextTokenizer::decode`].
    pub fn finish(mut self) -> Result<Option<String>, TokenizerError> {
        self.take(true)
    }

    fn take(&mut self, is_last: bool) -> Result<Option<String>, TokenizerError> {
        let (tokens, emitted) = self.growing.as_parts();
        let Some(piece) = self.tokenizer.next_piece(tokens, emitted, is_last)? else {
            return Ok(None);
        };
        self.growing.emit(piece.tokens);
        Ok(Some(piece.text))
    }
}

/// Returns the part of `text` after its beginning `before`. A byte may make its whole run invalid,
/// in which case preceding bytes no longer decode to the same character; the number of characters
/// in `before` is then skipped instead.
fn text_after<'t>(text: &'t str, before: &str) -> &'t str {
    text.strip_prefix(before).unwrap_or_else(|| {
        let skipped = before.chars().count();
        text.char_indices().nth(skipped).map_or("", |(at, _)| &text[at..])
    })
}

/// Creates a tokenizer with GPT-2's scheme, which OPT's published files use.
fn byte_level_bpe(
    directory: &Path,
    family: Family,
    config: &TokenizerConfig,
) -> Result<TextTokenizer, TokenizerError> {
    let (vocab, merges) = (directory.join("vocab.json"), directory.join("merges.txt"));
    if !merges.is_file() {
        return Err(TokenizerError::NoMerges { path: vocab.display().to_string() });
    }
    let bpe = BPE::from_file(&vocab.to_string_lossy(), &merges.to_string_lossy())
        .build()
        .map_err(|error| read_error(&vocab, error))?;
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(config.add_prefix_space, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    // OPT's files name one token for three purposes, and older files name none: then the family's
    // token is used if the vocabulary contains it.
    let mut special: Vec<String> = config.special_tokens().map(str::to_owned).collect();
    let family_bos = (family == Family::Opt).then_some("</s>");
    let bos = config.bos_token.as_deref().or(family_bos);
    special.extend(bos.map(str::to_owned));
    special.sort_unstable();
    special.dedup();
    special.retain(|token| tokenizer.token_to_id(token).is_some());
    tokenizer
        .add_special_tokens(special.into_iter().map(|token| AddedToken::from(token, true)))
        .map_err(|error| read_error(&vocab, error))?;
    let add_bos = config.add_bos_token.unwrap_or(family == Family::Opt);
    let prepend = bos.filter(|_| add_bos).and_then(|token| tokenizer.token_to_id(token));
    Ok(TextTokenizer::new(tokenizer, prepend))
}

fn read_error(path: &Path, error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Read { path: path.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
mod tests;
