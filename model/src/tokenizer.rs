//! Text to token ids and back, whatever files a model is published with.
//!
//! The batch job encodes prompts and detokenises behind the step with it; `gguf_tokenizer` builds
//! one from GGUF metadata. A model without tokenizer files is no error: the job then takes token
//! ids. Encoding never truncates or pads, whatever the file says.

mod context;
mod length;
mod token_bytes;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::config::Family;
use crate::tokenizer_config::{TokenizerConfig, TokenizerConfigError};

/// Tokens that one character can take: each adds at least a byte.
const CHARACTER_TOKENS: usize = 4;
/// More tokens than this end in no character only where their bytes are no text.
const WAITING_MAX: usize = 2 * CHARACTER_TOKENS;

/// Files of tokenizers that can be read.
const READ_FILES: [&str; 2] = ["tokenizer.json", "vocab.json"];
/// Files of tokenizers that cannot: Mistral's, SentencePiece's, OpenAI's tiktoken's.
const UNREAD_FILES: [&str; 7] = [
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
pub struct Piece {
    pub text: String,
    /// How many of the tokens it goes up to.
    pub tokens: usize,
}

/// A tokenizer with the one thing the `tokenizers` crate leaves to its caller: a BOS to prepend.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    prepend_bos: Option<u32>,
}

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("{path}: the tokenizer cannot be read: {reason}")]
    Read { path: String, reason: String },
    #[error("{path}: byte-level BPE needs merges.txt beside vocab.json")]
    NoMerges { path: String },
    #[error(transparent)]
    Config(#[from] TokenizerConfigError),
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    #[error("the tokens cannot be turned into text: {0}")]
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
    /// Wraps a tokenizer. `prepend_bos` is a token that [`TextTokenizer::encode`] puts first when
    /// it adds special tokens; `None` when the tokenizer's own post-processor does that, or nobody.
    pub fn new(mut tokenizer: Tokenizer, prepend_bos: Option<u32>) -> Self {
        // A tokenizer.json may carry the truncation of the training run, which would silently cut
        // prompts. Removing it cannot fail: only a stride that does not fit a length can.
        let _ = tokenizer.with_truncation(None);
        tokenizer.with_padding(None);
        Self { tokenizer, prepend_bos }
    }

    /// The tokenizer in a model's directory: `tokenizer.json`, else byte-level BPE from
    /// `vocab.json` and `merges.txt`. `None` when the directory has neither.
    ///
    /// # Errors
    /// Files that exist but cannot be read or understood.
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

    /// The first file of a directory that has a tokenizer in a form that cannot be read; `None` where
    /// there is none, or one that can be read.
    pub fn unread_file(directory: &Path) -> Option<&'static str> {
        let exists = |name: &&str| directory.join(name).is_file();
        if READ_FILES.iter().any(|name| exists(&name)) {
            return None;
        }
        UNREAD_FILES.into_iter().find(exists)
    }

    /// Token ids of `text`. With `add_special` the tokens that the model expects around a raw
    /// prompt are added (BOS); a rendered chat template already holds them.
    ///
    /// # Errors
    /// Text that the vocabulary cannot express (no unknown token, no byte fallback).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special)
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        let bos = self.prepend_bos.filter(|_| add_special);
        Ok(bos.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// Text of `tokens`, special tokens skipped, bytes that are no UTF-8 as U+FFFD.
    ///
    /// # Errors
    /// A decoder that refuses the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.tokenizer
            .decode(tokens, true)
            .map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// The bytes that `token` adds to a text, which may end or begin within a character; a special
    /// token's spelling, and nothing for an id outside the vocabulary.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        token_bytes::of(&self.tokenizer, token)
    }

    /// Whether a token is no part of a text.
    pub fn is_special(&self, token: u32) -> bool {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&token).is_some_and(|token| token.special)
    }

    /// The text that `tokens` add to that of the first `emitted` of them, as soon as it ends on a
    /// whole character; with `is_last` in any case, with U+FFFD for half of one. Of many tokens
    /// that end in no character those go first that no later one can complete.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`].
    pub fn next_piece(
        &self,
        tokens: &[u32],
        emitted: usize,
        is_last: bool,
    ) -> Result<Option<Piece>, TokenizerError> {
        let before = self.decode(&tokens[..emitted])?;
        let piece = |text: &str, tokens: usize| {
            let text = Some(behind(text, &before)).filter(|text| !text.is_empty());
            text.map(|text| Piece { text: text.to_owned(), tokens })
        };
        let text = self.decode(tokens)?;
        if is_last || !text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(piece(&text, tokens.len()));
        }
        if tokens.len() - emitted >= WAITING_MAX {
            // Of four places in a row one at least is within no character.
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

    /// A decoder for one sequence, which takes its tokens one at a time.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, growing: GrowingTokens::default() }
    }

    /// The same behind a prompt; see [`TextTokenizer::grow_behind`].
    ///
    /// # Errors
    /// As [`TextTokenizer::grow_behind`].
    pub fn stream_behind(
        &self,
        prompt: &[u32],
        keeps_space: bool,
    ) -> Result<StreamDecoder<'_>, TokenizerError> {
        Ok(StreamDecoder { tokenizer: self, growing: self.grow_behind(prompt, keeps_space)? })
    }

    /// Ids in the vocabulary, special tokens among them. The model's own table may be larger.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }
}

/// The tokens of a growing sequence that still matter for the text to come.
#[derive(Debug, Clone, Default)]
pub struct GrowingTokens {
    /// The last emitted piece's tokens, which give the next piece its context (a decoder may treat
    /// the first token of a text differently), and behind them the tokens that wait.
    tokens: Vec<u32>,
    /// How many of `tokens` are emitted.
    emitted: usize,
}

impl GrowingTokens {
    /// Takes the next token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// The tokens, and how many of them are emitted; see [`TextTokenizer::next_piece`].
    pub fn as_parts(&self) -> (&[u32], usize) {
        (&self.tokens, self.emitted)
    }

    /// Puts other tokens in front, of which so many are emitted; all there are so far wait.
    pub fn grow_from(&mut self, mut before: Vec<u32>, emitted: usize) {
        before.append(&mut self.tokens);
        *self = GrowingTokens { tokens: before, emitted };
    }

    /// The text of the first `tokens` was emitted.
    pub fn emit(&mut self, tokens: usize) {
        self.tokens.drain(..self.emitted);
        self.emitted = tokens - self.emitted;
    }
}

/// Turns a growing sequence into text as it grows, never emitting half a character: what was pushed
/// so far comes out as soon as it ends on a whole one.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a TextTokenizer,
    growing: GrowingTokens,
}

impl StreamDecoder<'_> {
    /// Takes the next token; the text that it completes, if any.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<Option<String>, TokenizerError> {
        self.growing.push(token);
        self.take(false)
    }

    /// What still waits for the rest of a character, with U+FFFD for it.
    ///
    /// # Errors
    /// As [`TextTokenizer::decode`].
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

/// What `text` has more than `before`, its beginning. A byte may make its whole run invalid, and
/// bytes before it no longer the character that they were: then as many characters are skipped.
fn behind<'t>(text: &'t str, before: &str) -> &'t str {
    text.strip_prefix(before).unwrap_or_else(|| {
        let skipped = before.chars().count();
        text.char_indices().nth(skipped).map_or("", |(at, _)| &text[at..])
    })
}

/// GPT-2's scheme, in which OPT is published.
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
    // OPT's files name one token for three purposes, and older files name none at all: then those
    // of its family, as long as the vocabulary has them.
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
