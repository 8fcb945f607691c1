//! The tokenizer in a GGUF file, rebuilt from its metadata.
//!
//! It is used if `--model` is a `.gguf` file. There are two kinds: byte-level BPE (`byte_level`),
//! for which the file names the scheme that splits text in `tokenizer.ggml.pre`, with the known
//! ones in `schemes`; and SentencePiece BPE (`sentence_piece`), in which pieces have scores. An
//! unknown scheme is refused by name, since an almost correct tokenizer silently degrades answers.

use std::borrow::Cow;
use std::collections::HashMap;

use model::source::gguf::metadata::{Metadata, MetadataError, required};
use tokenizers::{AddedToken, Tokenizer};

use crate::tokenizer::TextTokenizer;
use crate::tokenizer_config::TokenizerConfig;

mod byte_level;
mod schemes;
mod sentence_piece;

pub use schemes::scheme_names;

/// Tokenizer of a file, and the information that its chat template requires.
#[derive(Debug)]
pub struct GgufTokenizer {
    pub text: TextTokenizer,
    /// Special tokens by their spelling, and the chat template.
    pub config: TokenizerConfig,
}

/// Reason for which a file's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct GgufTokenizerError {
    pub path: String,
    pub problem: TokenizerProblem,
}

/// See [`GgufTokenizerError`].
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("tokenizer model {0:?} is not supported (supported are gpt2, llama and gemma4)")]
    Model(String),
    #[error("pre-tokenizer {name:?} is not supported (supported are {supported})")]
    PreTokenizer { name: String, supported: String },
    #[error(
        "the file names no pre-tokenizer (tokenizer.ggml.pre), as files converted before May 2024 \
         do, and without it text is split into wrong tokens; use a newer conversion, or set the \
         key (llama-bpe for LLaMA 3, qwen2 for Qwen2)"
    )]
    NoPreTokenizer,
    #[error("the SentencePiece option {0} is not supported")]
    Option(&'static str),
    #[error("the metadata key {key} has {found} entries for {expected} tokens")]
    Length { key: &'static str, found: usize, expected: usize },
    #[error("the metadata key {key} is {id}, which is not a token of the vocabulary")]
    TokenId { key: String, id: u32 },
    #[error("token {token} has type {kind}, which is not a token type")]
    TokenType { token: usize, kind: u32 },
    #[error("merge {index} is not two tokens separated by a space")]
    Merge { index: usize },
    #[error("the score of token {token} is not a finite number")]
    Score { token: usize },
    #[error("the tokenizer should add BOS to the start of texts, but the file names no BOS token")]
    NoBos,
    #[error("the vocabulary and merges do not make a tokenizer: {0}")]
    Build(String),
}

/// Name of a tokenizer with SentencePiece's pieces, and merges in the place of scores.
const GEMMA4: &str = "gemma4";

/// Token types of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The token list and token types, for both kinds of tokenizers. Ids are indices into the list.
struct TokenList<'a> {
    tokens: &'a [String],
    kinds: Vec<TokenType>,
}

impl GgufTokenizer {
    /// Builds the tokenizer that `metadata` describes; `None` if the file has none, in which case
    /// prompts are token ids. `path` is used in messages.
    ///
    /// `add_eos_token` is ignored: it applies to training texts, and a prompt that ended with EOS
    /// would not be continued.
    ///
    /// # Errors
    /// A scheme that is not supported, or contradictory metadata.
    pub fn from_metadata(
        metadata: &Metadata,
        path: &str,
    ) -> Result<Option<Self>, GgufTokenizerError> {
        Self::build(metadata)
            .map_err(|problem| GgufTokenizerError { path: path.to_owned(), problem })
    }

    fn build(metadata: &Metadata) -> Result<Option<Self>, TokenizerProblem> {
        let model = metadata.text("tokenizer.ggml.model")?;
        let (Some(model), Some(tokens)) = (model, metadata.texts("tokenizer.ggml.tokens")?) else {
            return Ok(None);
        };
        let kinds = kinds(metadata, tokens.len())?;
        let tokens = match model {
            "llama" | GEMMA4 => sentence_piece::respelled(tokens, &kinds),
            _ => Cow::Borrowed(tokens),
        };
        let vocabulary = TokenList { tokens: &tokens, kinds };
        let (mut tokenizer, add_bos) = match model {
            "gpt2" => byte_level::tokenizer(metadata, &vocabulary)?,
            "llama" => (sentence_piece::tokenizer(metadata, &vocabulary, None)?, true),
            GEMMA4 => {
                let merges = byte_level::merges(metadata)?;
                (sentence_piece::tokenizer(metadata, &vocabulary, Some(merges))?, true)
            }
            "none" | "no_vocab" => return Ok(None),
            other => return Err(TokenizerProblem::Model(other.chars().take(60).collect())),
        };
        let strips_spaces = model == "llama" && is_phi3(metadata)?;
        tokenizer.add_tokens(vocabulary.added_tokens(strips_spaces)).map_err(build_error)?;

        let bos = vocabulary.token_id(metadata, "bos")?;
        let prepend_bos = match (metadata.boolean("tokenizer.ggml.add_bos_token")?, bos) {
            (Some(true), None) => return Err(TokenizerProblem::NoBos),
            (wish, bos) => bos.filter(|_| wish.unwrap_or(add_bos)),
        };
        let spelling = |id: Option<u32>| id.map(|id| tokens[id as usize].clone());
        let config = TokenizerConfig {
            bos_token: spelling(bos),
            eos_token: spelling(vocabulary.token_id(metadata, "eos")?),
            unk_token: spelling(vocabulary.token_id(metadata, "unknown")?),
            pad_token: spelling(vocabulary.token_id(metadata, "padding")?),
            add_bos_token: Some(prepend_bos.is_some()),
            add_prefix_space: metadata
                .boolean("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(model == "llama"),
            chat_template: chat_template(metadata)?.map(str::to_owned),
            tools_template: metadata.text("tokenizer.chat_template.tool_use")?.map(str::to_owned),
        };
        Ok(Some(Self { text: TextTokenizer::new(tokenizer, prepend_bos), config }))
    }
}

/// Returns the type of each of `count` tokens; all of them are normal if the file does not contain
/// types.
fn kinds(metadata: &Metadata, count: usize) -> Result<Vec<TokenType>, TokenizerProblem> {
    let key = "tokenizer.ggml.token_type";
    let Some(codes) = metadata.integers(key)? else {
        return Ok(vec![TokenType::Normal; count]);
    };
    if codes.len() != count {
        return Err(TokenizerProblem::Length { key, found: codes.len(), expected: count });
    }
    let kinds = codes.iter().enumerate().map(|(token, code)| match code {
        // 0 is "undefined", which early writers used for normal tokens.
        0 | 1 => Ok(TokenType::Normal),
        2 => Ok(TokenType::Unknown),
        3 => Ok(TokenType::Control),
        4 => Ok(TokenType::UserDefined),
        5 => Ok(TokenType::Unused),
        6 => Ok(TokenType::Byte),
        kind => Err(TokenizerProblem::TokenType { token, kind: *kind }),
    });
    kinds.collect()
}

impl<'a> TokenList<'a> {
    fn iter(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        (0u32..)
            .zip(self.tokens)
            .zip(&self.kinds)
            .map(|((id, token), kind)| (id, token.as_str(), *kind))
    }

    /// Returns the ids of tokens by spelling; the last id if several tokens have the same one.
    fn ids<M: FromIterator<(String, u32)>>(&self) -> M {
        self.iter().map(|(id, token, _)| (token.to_owned(), id)).collect()
    }

    /// Returns the tokens that are matched in the raw text before it is split. Byte tokens are not
    /// included: the text `<0x41>` is six characters. With `strips_spaces`, the tokens absorb the
    /// white space that follows them, as Phi-3's do.
    fn added_tokens(&self, strips_spaces: bool) -> Vec<AddedToken> {
        const PLAIN_OF_PHI3: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
        let special = |kind| matches!(kind, TokenType::Control | TokenType::Unknown);
        let is_added = |token: &str, kind: TokenType| {
            special(kind) || kind == TokenType::UserDefined || (strips_spaces && token == "</s>")
        };
        self.iter()
            .filter(|(_, token, kind)| is_added(token, *kind))
            .map(|(_, token, kind)| {
                let added = AddedToken::from(token, special(kind)).normalized(false);
                added.rstrip(strips_spaces && !PLAIN_OF_PHI3.contains(&token))
            })
            .collect()
    }

    /// Returns the id stored under `tokenizer.ggml.NAME_token_id`; `None` if the file has no such
    /// key.
    fn token_id(&self, metadata: &Metadata, name: &str) -> Result<Option<u32>, TokenizerProblem> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.integer(&key)? {
            Some(id) if id as usize >= self.tokens.len() => {
                Err(TokenizerProblem::TokenId { key, id })
            }
            id => Ok(id),
        }
    }
}

/// Returns true for models with Phi-3's SentencePiece tokenizer. Since the format cannot express
/// that tokens absorb white space, these models are recognised by their architecture or, as in
/// llama.cpp, by their name.
fn is_phi3(metadata: &Metadata) -> Result<bool, MetadataError> {
    let name = metadata.text("general.name")?.unwrap_or_default().to_lowercase();
    let is_named = ["phi-3", "phi3"].iter().any(|part| name.contains(part));
    Ok(is_named || metadata.text("general.architecture")? == Some("phi3"))
}

/// Returns the file's unnamed template, else the one named `default`.
fn chat_template(metadata: &Metadata) -> Result<Option<&str>, TokenizerProblem> {
    let unnamed = metadata.text("tokenizer.chat_template")?;
    let named = metadata.text("tokenizer.chat_template.default")?;
    Ok(unnamed.or(named))
}

fn build_error(error: tokenizers::Error) -> TokenizerProblem {
    TokenizerProblem::Build(error.to_string())
}

#[cfg(test)]
mod tests;
