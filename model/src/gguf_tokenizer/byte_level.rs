//! Byte-level BPE (`tokenizer.ggml.model` = gpt2): merges from the file, and one of some ways to
//! cut text before them (`schemes`).

use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::schemes::scheme;
use super::{Metadata, Problem, Vocabulary, build_error, required};

/// The tokenizer without its added tokens, and whether texts begin with BOS unless the file says.
pub(super) fn tokenizer(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<(Tokenizer, bool), Problem> {
    let scheme = match metadata.text("tokenizer.ggml.pre")? {
        Some(name) => scheme(name)?,
        None if is_gpt2(vocabulary) => scheme("gpt-2")?,
        None => return Err(Problem::NoPreTokenizer),
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

/// Returns true for GPT-2's own vocabulary, which others have extended: its last tokens are where
/// they were published. Files from before there was a key for the pre-tokenizer need no other one.
fn is_gpt2(vocabulary: &Vocabulary<'_>) -> bool {
    let token = |id: usize| vocabulary.tokens.get(id).map(String::as_str);
    token(50_255) == Some("\u{120}gazed") && token(50_256) == Some("<|endoftext|>")
}

/// Merges in order of rank. The space between the two is the first that has something before it.
fn merges(metadata: &Metadata) -> Result<Vec<(String, String)>, Problem> {
    let key = "tokenizer.ggml.merges";
    let merges = required(key, metadata.texts(key)?)?;
    let pair = |(index, merge): (usize, &String)| {
        merge
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty())
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .ok_or(Problem::Merge { index })
    };
    merges.iter().enumerate().map(pair).collect()
}
