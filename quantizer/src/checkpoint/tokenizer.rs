//! Tokenizer of a GGUF file from `tokenizer.json`, for byte-level BPE and for BPE as SentencePiece
//! has it.
//!
//! A file names its scheme for splitting text instead of containing it. The name is found by
//! comparison: for each candidate the tokenizer is rebuilt from the metadata, as a reader would,
//! and must split a text with words, numbers, symbols and spaces of several scripts into the same
//! tokens as the original.

use std::path::Path;

use model::config::ModelConfig;
use model::source::gguf::metadata::Metadata;
use serde_json::Value;
use text::gguf_tokenizer::{GgufTokenizer, scheme_names};
use text::tokenizer::TextTokenizer;
use text::tokenizer_config::TokenizerConfig;

use crate::error::QuantizeError;
use crate::header::{FileHeader, HeaderValue};

/// Maximum size of `tokenizer.json`; those of the largest vocabularies have some 30 MB.
const MAX_FILE_BYTES: u64 = 1 << 28;
/// Character that represents a space inside pieces of SentencePiece.
const SPACE: &str = "\u{2581}";

/// Text that known schemes split differently.
const PROBE: &str = concat!(
    "Hello world's WE'RE camelCase HTTPServer naïve re\u{301}sume\u{301} x\u{302}y 3 42 1234567 ",
    "3.14 -- ... /path/to//file !?!? foo_bar(x[1]) {\"a\": 'b'}\n\n  indented\tby tabs\r\n",
    "     five  spaces \u{4e2d}\u{6587}\u{5b57}\u{7b26} ",
    "\u{440}\u{443}\u{441}\u{441}\u{43a}\u{438}\u{439} ",
    "\u{627}\u{644}\u{639}\u{631}\u{628}\u{64a}\u{629} \u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} ",
    "\u{1f600}\u{1f680} \u{663}\u{661}\u{664} ½ I'll don't They'VE\n"
);

/// Types of tokens in files.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

type Entries = Vec<(&'static str, HeaderValue)>;

/// Adds the tokenizer in a directory. A directory without one gives a file without a vocabulary,
/// whose prompts are token ids.
///
/// # Errors
/// A tokenizer that cannot be read, or of a kind that files do not express.
pub(super) fn add_tokenizer(
    header: &mut FileHeader,
    config: &ModelConfig,
    directory: &Path,
) -> Result<(), QuantizeError> {
    let path = directory.join("tokenizer.json");
    if !path.is_file() {
        if let Some(file) = TextTokenizer::unsupported_file(directory) {
            return Err(error(format!("{file} is not read; tokenizer.json is required")));
        }
        header.set("tokenizer.ggml.model", &HeaderValue::Text("no_vocab".to_owned()));
        let bos = config.bos_token_id.map(|id| ("bos", id));
        for (name, id) in bos.into_iter().chain(ends(config, None)) {
            header.set(&format!("tokenizer.ggml.{name}_token_id"), &HeaderValue::U32(id));
        }
        return Ok(());
    }
    let json = read_json(&path)?;
    let names =
        TokenizerConfig::from_directory(directory).map_err(|problem| error(problem.to_string()))?;
    let Some(original) = TextTokenizer::from_directory(directory, config.family)? else {
        return Err(error(format!("{} is no tokenizer", path.display())));
    };
    let vocabulary = Vocabulary::read(&json, config.vocab_size)?;
    let entries = vocabulary.entries(&json, config, &names, &original)?;
    for (key, value) in matching(entries, &vocabulary, &original)? {
        header.set(key, &value);
    }
    Ok(())
}

fn error(reason: String) -> QuantizeError {
    QuantizeError::Tokenizer { reason }
}

fn read_json(path: &Path) -> Result<Value, QuantizeError> {
    let io = |source| QuantizeError::Io { path: path.display().to_string(), source };
    let size_bytes = path.metadata().map_err(io)?.len();
    if size_bytes > MAX_FILE_BYTES {
        return Err(error(format!("{} has {size_bytes} bytes", path.display())));
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|problem| error(format!("{}: {problem}", path.display())))
}

/// Tokens by id, and the merges.
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    /// Bytes that are no part of a piece are tokens, as in SentencePiece's models.
    has_byte_fallback: bool,
}

impl Vocabulary {
    fn read(json: &Value, size: usize) -> Result<Vocabulary, QuantizeError> {
        let model = &json["model"];
        // Old files do not name the type of BPE.
        if !matches!(model["type"].as_str(), Some("BPE") | None) {
            return Err(error(format!("its model is {}, not BPE", model["type"])));
        }
        let Some(vocab) = model["vocab"].as_object() else {
            return Err(error("it has no vocabulary".to_owned()));
        };
        let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![UNUSED; size];
        let mut place = |text: &str, id: Option<u64>, kind: i32| {
            let index = id.and_then(|id| usize::try_from(id).ok()).filter(|id| *id < size);
            let Some(index) = index else {
                return Err(error(format!("token {text:?} is outside the vocabulary of {size}")));
            };
            (tokens[index], types[index]) = (text.to_owned(), kind);
            Ok(())
        };
        let has_byte_fallback = model["byte_fallback"].as_bool().unwrap_or(false);
        for (text, id) in vocab {
            let kind = if has_byte_fallback && is_byte(text) { BYTE } else { NORMAL };
            place(text, id.as_u64(), kind)?;
        }
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let text = added["content"].as_str().unwrap_or_default();
            let is_special = added["special"].as_bool().unwrap_or(false);
            let kind = match is_special {
                true if Some(text) == model["unk_token"].as_str() && has_byte_fallback => UNKNOWN,
                true => CONTROL,
                false => USER_DEFINED,
            };
            place(text, added["id"].as_u64(), kind)?;
        }
        let merges = model["merges"].as_array().into_iter().flatten().map(|merge| match merge {
            Value::String(text) => Some(text.clone()),
            Value::Array(pair) => {
                Some(format!("{} {}", pair.first()?.as_str()?, pair.get(1)?.as_str()?))
            }
            _ => None,
        });
        let merges: Option<Vec<String>> = merges.collect();
        let merges = merges.ok_or_else(|| error("its merges are no pairs".to_owned()))?;
        Ok(Vocabulary { tokens, types, merges, has_byte_fallback })
    }

    fn id(&self, text: &str) -> Option<u32> {
        let id = self.tokens.iter().position(|token| token == text)?;
        u32::try_from(id).ok()
    }

    /// Returns all keys but the scheme.
    fn entries(
        &self,
        json: &Value,
        config: &ModelConfig,
        names: &TokenizerConfig,
        original: &TextTokenizer,
    ) -> Result<Entries, QuantizeError> {
        let kind = if self.has_byte_fallback { "llama" } else { "gpt2" };
        let mut entries: Entries = vec![
            ("tokenizer.ggml.model", HeaderValue::Text(kind.to_owned())),
            ("tokenizer.ggml.tokens", HeaderValue::Texts(self.tokens.clone())),
            ("tokenizer.ggml.token_type", HeaderValue::I32s(self.types.clone())),
        ];
        if self.has_byte_fallback {
            entries.push(("tokenizer.ggml.scores", HeaderValue::F32s(self.scores())));
        } else {
            entries.push(("tokenizer.ggml.merges", HeaderValue::Texts(self.merges.clone())));
        }
        let named = |text: &Option<String>| text.as_deref().and_then(|text| self.id(text));
        let bos = named(&names.bos_token).or(config.bos_token_id);
        let unknown = json["model"]["unk_token"].as_str().and_then(|text| self.id(text));
        let ids = [
            ("tokenizer.ggml.bos_token_id", bos),
            ("tokenizer.ggml.unknown_token_id", unknown.or_else(|| named(&names.unk_token))),
            ("tokenizer.ggml.padding_token_id", named(&names.pad_token)),
        ];
        entries.extend(ids.into_iter().filter_map(|(key, id)| Some((key, HeaderValue::U32(id?)))));
        for (name, id) in ends(config, named(&names.eos_token)) {
            let key = match name {
                "eos" => "tokenizer.ggml.eos_token_id",
                "eot" => "tokenizer.ggml.eot_token_id",
                _ => "tokenizer.ggml.eom_token_id",
            };
            entries.push((key, HeaderValue::U32(id)));
        }
        let (plain, special) = (original.encode("a", false)?, original.encode("a", true)?);
        let adds_bos =
            special.len() > plain.len() && bos.is_some() && special.first() == bos.as_ref();
        entries.push(("tokenizer.ggml.add_bos_token", HeaderValue::Bool(adds_bos)));
        if let Some(template) = &names.chat_template {
            entries.push(("tokenizer.chat_template", HeaderValue::Text(template.clone())));
        }
        Ok(entries)
    }

    /// Returns scores in the order of the merges, which files of SentencePiece have instead: that
    /// of a piece is the negative rank of the first merge that makes it.
    fn scores(&self) -> Vec<f32> {
        let mut ranks = std::collections::HashMap::new();
        for (rank, merge) in self.merges.iter().enumerate() {
            ranks.entry(merge.replacen(' ', "", 1)).or_insert(rank);
        }
        let lowest = self.merges.len();
        let rank = |token: &String| ranks.get(token).copied().unwrap_or(lowest);
        self.tokens.iter().map(|token| -(rank(token) as f32)).collect()
    }
}

fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Returns the tokens that end an answer, the tokenizer's own first.
fn ends(config: &ModelConfig, own: Option<u32>) -> impl Iterator<Item = (&'static str, u32)> {
    let others = config.eos_token_ids.iter().copied().filter(move |id| Some(*id) != own);
    let ids: Vec<u32> = own.into_iter().chain(others).collect();
    ["eos", "eot", "eom"].into_iter().zip(ids)
}

/// Returns the entries with the scheme for which a reader's tokens are the original's.
///
/// # Errors
/// No such scheme.
fn matching(
    entries: Entries,
    vocabulary: &Vocabulary,
    original: &TextTokenizer,
) -> Result<Entries, QuantizeError> {
    let candidates: Entries = if vocabulary.has_byte_fallback {
        let prefix = |flag| ("tokenizer.ggml.add_space_prefix", HeaderValue::Bool(flag));
        vec![prefix(true), prefix(false)]
    } else {
        let scheme = |name: &str| ("tokenizer.ggml.pre", HeaderValue::Text(name.to_owned()));
        scheme_names().map(scheme).collect()
    };
    let probe = if vocabulary.has_byte_fallback { PROBE.replace(SPACE, "") } else { PROBE.into() };
    let wanted = original.encode(&probe, true)?;
    for candidate in candidates {
        let mut metadata = Metadata::default();
        for (key, value) in entries.iter().chain([&candidate]) {
            metadata.insert((*key).to_owned(), value.to_metadata());
        }
        // A scheme that does not suit the vocabulary is not the one looked for.
        let Ok(Some(rebuilt)) = GgufTokenizer::from_metadata(&metadata, "") else { continue };
        if rebuilt.text.encode(&probe, true).is_ok_and(|found| found == wanted) {
            return Ok(entries.into_iter().chain([candidate]).collect());
        }
    }
    Err(error("no known scheme splits text into the same tokens".to_owned()))
}
