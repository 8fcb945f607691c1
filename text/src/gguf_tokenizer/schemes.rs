//! The schemes named by `tokenizer.ggml.pre`: how text is split before merges, as published in the
//! models' `tokenizer.json`. Each expression is that of the model that the scheme is named after.

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::{TokenizerProblem, build_error};

/// A scheme for splitting text, and related settings.
#[derive(Debug)]
pub(super) struct Scheme {
    names: &'static [&'static str],
    /// Names for which llama.cpp uses the same expression.
    aliases: &'static [&'static str],
    cut: Cut,
    /// Characters are composed first (NFC).
    pub(super) composes: bool,
    /// A piece that is itself a token becomes that token, regardless of the merges.
    pub(super) ignores_merges: bool,
    /// Texts begin with BOS unless the file specifies otherwise.
    pub(super) adds_bos: bool,
}

#[derive(Debug)]
enum Cut {
    /// GPT-2's expression, which the byte-level pre-tokenizer applies itself.
    Gpt2,
    /// Every digit separately, then GPT-2's expression.
    DigitsThenGpt2,
    /// Matches of the first of these expressions that applies, and the text between matches.
    Matches(&'static [&'static str]),
}

/// Parts that several expressions have in common. A word may begin with one character that is not a
/// letter.
const WORD: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+";
const CONTRACTION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const SYMBOLS: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*";
const SYMBOLS_AND_SLASHES: &str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*";
const SPACES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}{1,3}";

/// LLaMA-3: GPT-4's expression, with numbers in groups of up to three digits.
const LLAMA3: &[&str] = &[CONTRACTION, WORD, DIGITS, SYMBOLS, SPACES];
/// LLaMA-3's expression with single digits.
const QWEN2: &[&str] = &[CONTRACTION, WORD, DIGIT, SYMBOLS, SPACES];
/// Qwen2's expression with marks as parts of words.
const QWEN35: &[&str] = &[
    CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    DIGIT,
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    SPACES,
];
/// Mistral's Tekken: words end before capital letters; no contractions, single digits.
const TEKKEN: &[&str] = &[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    DIGIT,
    SYMBOLS_AND_SLASHES,
    SPACES,
];
/// GPT-4o (o200k): Tekken with contractions at the ends of words, and groups of three digits.
const GPT4O: &[&str] = &[
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ),
    DIGITS,
    SYMBOLS_AND_SLASHES,
    SPACES,
];

const PLAIN: Scheme = Scheme {
    names: &[],
    aliases: &[],
    cut: Cut::Gpt2,
    composes: false,
    ignores_merges: false,
    adds_bos: false,
};

const SCHEMES: [Scheme; 9] = [
    Scheme { names: &["gpt-2"], aliases: &["gigachat", "a.x-4.0", "mellum", "trillion"], ..PLAIN },
    // GPT-NeoX's tokenizer: OLMo, OLMoE.
    Scheme { names: &["olmo"], composes: true, ..PLAIN },
    // Includes StarCoder's tokenizer: Granite 3.
    Scheme {
        names: &["smollm", "refact", "starcoder"],
        aliases: &["minerva-7b"],
        cut: Cut::DigitsThenGpt2,
        ..PLAIN
    },
    // LLaMA-3 has tokens that its merges cannot produce.
    Scheme {
        names: &["llama-bpe", "llama3", "llama-v3"],
        aliases: &["falcon3", "pixtral", "midm-2.0"],
        cut: Cut::Matches(LLAMA3),
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    // LLaMA-3's expression without its other settings: Phi-4, OLMo-2 and Granite 4 are "dbrx",
    // SmolLM3 is "smaug-bpe".
    Scheme { names: &["dbrx", "smaug-bpe"], cut: Cut::Matches(LLAMA3), ..PLAIN },
    // Also Qwen2.5 and Qwen3.
    Scheme {
        names: &["qwen2"],
        aliases: &["deepseek-r1-qwen", "megrez", "kormo"],
        cut: Cut::Matches(QWEN2),
        composes: true,
        ..PLAIN
    },
    Scheme { names: &["qwen35"], cut: Cut::Matches(QWEN35), composes: true, ..PLAIN },
    Scheme {
        names: &["tekken"],
        cut: Cut::Matches(TEKKEN),
        ignores_merges: true,
        adds_bos: true,
        ..PLAIN
    },
    // gpt-oss and Phi-4-mini.
    Scheme {
        names: &["gpt-4o"],
        aliases: &["llama4", "kanana2"],
        cut: Cut::Matches(GPT4O),
        ..PLAIN
    },
];

/// Returns the scheme with the given name.
///
/// # Errors
/// An unknown name; the error lists the known ones.
pub(super) fn scheme(name: &str) -> Result<&'static Scheme, TokenizerProblem> {
    let is_named =
        |scheme: &&Scheme| scheme.names.contains(&name) || scheme.aliases.contains(&name);
    SCHEMES.iter().find(is_named).ok_or_else(|| {
        let known: Vec<&str> = names().collect();
        let name = name.chars().take(60).collect();
        TokenizerProblem::PreTokenizer { name, supported: known.join(", ") }
    })
}

/// Returns all known names.
fn names() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().flat_map(|scheme| scheme.names.iter().chain(scheme.aliases)).copied()
}

/// Returns one name of each scheme.
pub fn scheme_names() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().filter_map(|scheme| scheme.names.first()).copied()
}

impl Scheme {
    /// Returns the pre-tokenizer that splits the text and maps the bytes of the pieces to
    /// characters.
    pub(super) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper, TokenizerProblem> {
        let gpt2 = ByteLevel::new(false, true, true);
        let parts: Vec<PreTokenizerWrapper> = match self.cut {
            Cut::Gpt2 => return Ok(gpt2.into()),
            Cut::DigitsThenGpt2 => vec![Digits::new(true).into(), gpt2.into()],
            Cut::Matches(expressions) => {
                let pattern = SplitPattern::Regex(expressions.join("|"));
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(build_error)?;
                vec![split.into(), ByteLevel::new(false, true, false).into()]
            }
        };
        Ok(Sequence::new(parts).into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    /// Expected splits, generated by `scripts/fixtures_pre_tokenizers.py`.
    const CUTS: &str = include_str!("../../tests/fixtures/pre_tokenizers.json");

    /// Returns the lengths of the pieces of a text, in bytes.
    fn lengths(cut: &PreTokenizerWrapper, text: &str) -> Vec<usize> {
        let mut cut_text = PreTokenizedString::from(text);
        cut.pre_tokenize(&mut cut_text).expect("any text can be cut");
        let pieces = cut_text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(_, (start, end), _)| end - start).collect()
    }

    #[test]
    fn every_name_cuts_as_its_expression_does_elsewhere() {
        let cuts: Value = serde_json::from_str(CUTS).expect("JSON");
        let texts = cuts["texts"].as_array().expect("texts");
        let mut pieces = 0;
        for name in SCHEMES.iter().flat_map(|scheme| scheme.names) {
            let cut = scheme(name).expect("known").pre_tokenizer().expect("it compiles");
            let expected = cuts["lengths"][name].as_array().expect(name);
            assert_eq!(texts.len(), expected.len());
            for (text, expected) in texts.iter().zip(expected) {
                let text = text.as_str().expect("a text");
                let expected: Vec<usize> =
                    serde_json::from_value(expected.clone()).expect("lengths");
                assert_eq!(lengths(&cut, text), expected, "{name}: {text:?}");
                pieces += expected.len();
            }
        }
        assert!(pieces > 10_000, "{pieces} pieces are too few to say anything");
    }

    #[test]
    fn other_names_have_the_expression_that_they_have_elsewhere() {
        let cuts: Value = serde_json::from_str(CUTS).expect("JSON");
        let mut compared = 0;
        for alias in SCHEMES.iter().flat_map(|scheme| scheme.aliases) {
            if let Some(name) = cuts["same"][alias].as_str() {
                let (alias, named) = (scheme(alias).expect("known"), scheme(name).expect("known"));
                assert!(std::ptr::eq(alias, named), "{alias:?} is not {name}");
                compared += 1;
            }
        }
        assert!(compared >= 8, "{compared}");
    }

    #[test]
    fn expressions_are_told_apart() {
        let cut = |name: &str, text: &str| {
            lengths(&scheme(name).expect("known").pre_tokenizer().expect("it compiles"), text)
        };
        // A contraction is part of the word, a separate piece, or not recognised.
        assert_eq!(cut("gpt-4o", "We'Re"), [5]);
        assert_eq!(cut("dbrx", "We'Re"), [2, 3]);
        assert_eq!(cut("tekken", "We'Re"), [2, 3]);
        assert_eq!(cut("tekken", "camelCase"), [5, 4]);
        assert_eq!(cut("dbrx", "camelCase"), [9]);
        assert_eq!(cut("dbrx", "12345"), [3, 2]);
        assert_eq!(cut("refact", "123"), [1, 1, 1]);
        assert_eq!(cut("olmo", "123"), [3]);
        // A letter and a mark that do not compose.
        assert_eq!(cut("qwen35", "x\u{302}y"), [4]);
        assert_eq!(cut("qwen2", "x\u{302}y"), [1, 3]);
    }

    #[test]
    fn long_runs_are_cut_as_short_ones_are() {
        for name in ["tekken", "gpt-4o", "qwen35", "llama-bpe", "gpt-2"] {
            let cut = scheme(name).expect("known").pre_tokenizer().expect("it compiles");
            for run in ["A", "a", "\u{4e2d}", " ", "\n", "!"] {
                let count = 200_000;
                let text = format!("x{}y", run.repeat(count));
                let all: usize = lengths(&cut, &text).iter().sum();
                assert_eq!(all, text.len(), "{name} {run:?}");
                let short = lengths(&cut, &format!("x{}y", run.repeat(30)));
                assert_eq!(lengths(&cut, &text).len(), short.len(), "{name} {run:?}");
            }
        }
    }
}
