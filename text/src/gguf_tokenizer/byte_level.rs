//! Byte-level BPE (`tokenizer.ggml.model` = gpt2): merges from the file, and one of several schemes
//! for splitting text before the merges (`schemes`).

use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::schemes::scheme;
use super::{Metadata, TokenList, TokenizerProblem, build_error, required};

/// Returns the tokenizer without its added tokens, and whether texts begin with BOS by default.
pub(super) fn tokenizer(
    metadata: &Metadata,
    vocabulary: &TokenList<'_>,
) -> Result<(Tokenizer, bool), TokenizerProblem> {
    let scheme = match metadata.text("tokenizer.ggml.pre")? {
        Some(name) => scheme(name)?,
        None if is_gpt2(vocabulary) => scheme("gpt-2")?,
        None => return Err(TokenizerProblem::NoPreTokenizer),
    };
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary.ids::<Vocab>(), merges(metadata)?)
        .ignore_merges(scheme.ignores_merges)
        .build()
        .map_err(build_error)?;
    let mut tokenizer = Tokenizer::new(bpe);
    if scheme.composes {
        tokenizer.with_normalizer(Some(NFC)).map_err(build_error)?;
    }
    tokenizer.with_pre_tokenizer(Some(scheme.pre_tokenizer()?));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok((tokenizer, scheme.adds_bos))
}

/// Returns true if the vocabulary is GPT-2's own or an extension of it, which has GPT-2's last
/// tokens at their original ids. Files from before the pre-tokenizer key existed need no other
/// vocabulary.
fn is_gpt2(vocabulary: &TokenList<'_>) -> bool {
    let token = |id: usize| vocabulary.tokens.get(id).map(String::as_str);
    token(50_255) == Some("\u{120}gazed") && token(50_256) == Some("<|endoftext|>")
}

/// Returns the merges in order of rank. The first space of a merge separates its two tokens.
pub(super) fn merges(metadata: &Metadata) -> Result<Vec<(String, String)>, TokenizerProblem> {
    let key = "tokenizer.ggml.merges";
    let merges = required(key, metadata.texts(key)?)?;
    let pair = |(index, merge): (usize, &String)| {
        merge
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty())
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .ok_or(TokenizerProblem::Merge { index })
    };
    merges.iter().enumerate().map(pair).collect()
}
