//! Byte-level BPE (`tokenizer.ggml.model` = gpt2): merges from the file, and one of four ways to
//! split text before them, each as its models' `tokenizer.json` publishes it.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{PreTokenizerWrapper, Tokenizer};

use super::{Metadata, Problem, Vocabulary, build_error, required};

/// How LLaMA-3 splits: GPT-4's expression, numbers in groups of up to three digits.
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer without its added tokens, and whether texts begin with BOS unless the file says.
pub(super) fn tokenizer(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<(Tokenizer, bool), Problem> {
    let name = metadata.text("tokenizer.ggml.pre")?.unwrap_or("gpt-2");
    let pre_tokenizer: PreTokenizerWrapper = match name {
        "gpt-2" => ByteLevel::new(false, true, true).into(),
        "smollm" => {
            let digits = Digits::new(true).into();
            Sequence::new(vec![digits, ByteLevel::new(false, true, true).into()]).into()
        }
        "llama-bpe" => split(LLAMA3_SPLIT)?,
        "qwen2" => split(QWEN2_SPLIT)?,
        other => return Err(Problem::PreTokenizer(other.chars().take(60).collect())),
    };
    let llama3 = name == "llama-bpe";
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary.ids::<Vocab>(), merges(metadata)?)
        // LLaMA-3's merges do not reach all of its tokens: a word that is one, is one.
        .ignore_merges(llama3)
        .build()
        .map_err(build_error)?;
    let mut tokenizer = Tokenizer::new(bpe);
    if name == "qwen2" {
        tokenizer.with_normalizer(Some(NFC)).map_err(build_error)?;
    }
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok((tokenizer, llama3))
}

fn split(expression: &str) -> Result<PreTokenizerWrapper, Problem> {
    let pattern = SplitPattern::Regex(expression.to_owned());
    let split =
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(build_error)?;
    Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into())
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
