//! Tests that choices are generated in the tokens that the model's own tokenizer produces, and in
//! no others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::codec::TextContext;
use grammar::{CompiledGrammarCache, Grammar, GrammarMatcher, GrammarSet, Vocabulary};
use model::config::Family;
use serde_json::{Map, json};
use tokenizer_host::message::TextSource;
use tokenizer_host::model::ModelText;

/// A model's tokenizer and vocabulary, with one token that ends an answer.
struct TestTokenizer {
    text: ModelText,
    vocabulary: Vocabulary,
}

impl TestTokenizer {
    fn open(from: &TextSource, count: usize, end: u32) -> TestTokenizer {
        let text = ModelText::open(from).expect("a tokenizer").expect("it is there");
        let word = |word: tokenizer_host::message::VocabularyEntry| {
            if word.is_special { Vec::new() } else { word.bytes }
        };
        let words = text.vocabulary(count).into_iter().map(word).collect();
        TestTokenizer { text, vocabulary: Vocabulary { words, ends: vec![end] } }
    }

    fn open_folder(path: PathBuf, family: Family, count: usize, end: u32) -> TestTokenizer {
        TestTokenizer::open(&TextSource::Directory { path, family }, count, end)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.text.encode_part(text).expect("it has tokens")
    }

    /// Returns the tokens that a text adds to those of a prompt.
    fn tokens_after(&self, prompt: &str, text: &str) -> Vec<u32> {
        let (before, all) = (self.encode(prompt), self.encode(&format!("{prompt}{text}")));
        let (begins, added) = all.split_at(before.len());
        assert_eq!(begins, before, "{prompt:?} keeps its tokens before {text:?}");
        added.to_vec()
    }

    /// Returns all token sequences that these choices allow.
    fn allowed_tokens(&self, choices: &[&str]) -> Vec<Vec<u32>> {
        let texts = choices.iter().map(|text| (*text).to_owned()).collect();
        let encode = |text: &str| self.text.encode_part(text).ok();
        let choice = vec![Grammar::Choice(texts)];
        let grammars = GrammarSet::new(self.vocabulary.clone(), choice, encode);
        let mut compiled =
            CompiledGrammarCache::new(Arc::new(grammars)).expect("no parser is needed");
        let walk = compiled.start_matcher(0);
        let mut mask = vec![0; compiled.mask_words()];
        let mut found = Vec::new();
        let mut rest: Vec<(GrammarMatcher, Vec<u32>)> = vec![(walk, Vec::new())];
        while let Some((mut walk, tokens)) = rest.pop() {
            walk.fill_mask(&mut mask);
            let bits = 0..mask.len() as u32 * 32;
            for token in bits.filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1) {
                if self.vocabulary.ends.contains(&token) {
                    assert!(walk.is_complete(), "{tokens:?} is no choice");
                    found.push(tokens.clone());
                    continue;
                }
                let (mut longer, mut tokens) = (walk.clone(), tokens.clone());
                longer.accept_token(token);
                tokens.push(token);
                rest.push((longer, tokens));
            }
        }
        found.sort_unstable();
        found
    }

    /// Asserts that each choice is possible in exactly one way: the tokens of the tokenizer after
    /// the prompt.
    fn check(&self, prompt: &str, choices: &[&str]) {
        let mut expected: Vec<_> =
            choices.iter().map(|text| self.tokens_after(prompt, text)).collect();
        expected.sort_unstable();
        for (tokens, text) in choices.iter().map(|text| (self.tokens_after(prompt, text), text)) {
            let words = tokens.iter().flat_map(|token| &self.vocabulary.words[*token as usize]);
            let spelled: Vec<u8> = words.copied().collect();
            assert_eq!(spelled, text.as_bytes(), "{tokens:?} behind {prompt:?}");
            // The answer's text is the choice, after the prompt and after a prompt without text.
            let decoded = |before: &[u32], keeps_leading_space: bool| {
                let context =
                    TextContext { keeps_leading_space, ..TextContext::after_prompt(before) };
                self.text.pieces(&context, &tokens).expect("decodable").concat()
            };
            assert_eq!(decoded(&self.encode(prompt), false), *text, "behind {prompt:?}");
            assert_eq!(decoded(&[], true), *text);
        }
        assert_eq!(self.allowed_tokens(choices), expected, "{choices:?}");
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

#[test]
fn byte_level_tokenizers() {
    let llama = TestTokenizer::open_folder(fixture("llama"), Family::Llama, 320, 2);
    let opt = TestTokenizer::open_folder(fixture("opt"), Family::Opt, 376, 2);
    for tokens in [llama, opt] {
        // Whole words, prefixes of other words, and texts with a common prefix but different
        // tokens.
        tokens.check("Is it so?", &[" no", " not", " not now", " yes", " the", " they", " that"]);
        tokens.check("It is:\n", &["no", "not", "now", "The", "the", "n", "th"]);
        tokens.check("It is", &["  no", " é", "\n", "\n\nno", " 日本", " no ", " no"]);
        assert_eq!(tokens.allowed_tokens(&[" no", " no"]).len(), 1, "equal choices are one");
        let no = tokens.encode(" no");
        assert_eq!((no.len(), &*tokens.vocabulary.words[no[0] as usize]), (1, &b" no"[..]));
        assert_eq!(tokens.allowed_tokens(&[" no"]), [no]);
    }
}

/// The name of a special token is spelled as ordinary text.
#[test]
fn special_tokens_are_texts() {
    let tokens = TestTokenizer::open_folder(fixture("llama"), Family::Llama, 320, 2);
    let said = tokens.allowed_tokens(&["<|im_end|>"]);
    assert_eq!(said.len(), 1);
    let words = said[0].iter().flat_map(|token| &tokens.vocabulary.words[*token as usize]);
    assert_eq!(words.copied().collect::<Vec<u8>>(), b"<|im_end|>");
}

/// Writes a tokenizer like SentencePiece's, which inserts a space before a text and falls back to
/// bytes; returns the size of its vocabulary.
fn sentence_pieces(folder: &Path) -> usize {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    vocab.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend("▁ y e s n o t w a d r".split(' ').map(str::to_owned));
    let merges = [
        ("▁", "▁"),
        ("e", "s"),
        ("y", "es"),
        ("▁", "yes"),
        ("n", "o"),
        ("▁", "no"),
        ("no", "t"),
        ("▁no", "t"),
        ("no", "w"),
        ("t", "e"),
        ("yes", "te"),
        ("▁yes", "te"),
    ];
    vocab.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let ids: Map<_, _> =
        vocab.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": ids,
            "merges": merges.map(|(left, right)| format!("{left} {right}"))},
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("writable");
    std::fs::write(folder.join("tokenizer_config.json"), "{}").expect("writable");
    vocab.len()
}

#[test]
fn tokenizers_that_put_a_blank_before_a_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = sentence_pieces(folder.path());
    let tokens = TestTokenizer::open_folder(folder.path().to_owned(), Family::Llama, count, 2);
    assert_eq!(tokens.encode("yes"), tokens.tokens_after("no", " yes"), "it puts a blank there");
    tokens.check("no", &[" yes", " no", " not", " yeste", " yes and", " now"]);
    tokens.check("no\n", &["yes", "no", "not", "yeste", "yes and", "y", "now"]);
    tokens.check("no\n", &[" yes", "yes", "  yes", "\n", "é", " é", "日 yes"]);
    // At `max_tokens` 1 an answer is " yes".
    let yes = tokens.allowed_tokens(&[" yes", " no"]);
    let words: Vec<_> =
        yes.iter().map(|said| &*tokens.vocabulary.words[said[0] as usize]).collect();
    assert!(words.contains(&&b" yes"[..]) && yes.iter().all(|said| said.len() == 1), "{yes:?}");
}

/// Tests the model that `make run` fetches, if it is present.
#[test]
fn smollm2() {
    let path = fixture("../../.cache/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.exists() {
        println!("skipped: {} is not there; `make run` fetches it", path.display());
        return;
    }
    let tokens = TestTokenizer::open(&TextSource::Gguf { path }, 49_152, 2);
    tokens.check("Is water wet?", &[" yes", " no", " not", " yesterday", " yes and no"]);
    tokens.check("<|im_start|>assistant\n", &["Yes", "No", "Not", "Yesterday", "12", "1"]);
    assert_eq!(tokens.allowed_tokens(&[" yes"])[0].len(), 1);
}
