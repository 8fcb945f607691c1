//! Tokenizers small enough to know every id by heart, built from files as models publish them.

use std::fs;
use std::path::Path;

use tokenizers::Tokenizer;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;

use super::*;

/// Ids 0-3 as OPT has them, 4.. for bytes in the order of `text`, then merges.
fn opt_directory(directory: &Path, text: &[&str], merges: &[(&str, &str)]) {
    let mut vocab = serde_json::Map::new();
    let mut tokens: Vec<String> = ["<s>", "<pad>", "</s>", "<unk>"].map(str::to_owned).to_vec();
    tokens.extend(text.iter().map(|&token| token.to_owned()));
    tokens.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    for (id, token) in tokens.into_iter().enumerate() {
        vocab.insert(token, id.into());
    }
    fs::write(directory.join("vocab.json"), serde_json::to_string(&vocab).unwrap()).unwrap();
    let lines: String = merges.iter().map(|(left, right)| format!("{left} {right}\n")).collect();
    fs::write(directory.join("merges.txt"), format!("#version: 0.2\n{lines}")).unwrap();
}

/// `Ġ` is the byte-level spelling of a space; ids: a 4, b 5, Ġ 6, ab 7, Ġab 8.
fn small_opt(directory: &Path) -> TextTokenizer {
    opt_directory(directory, &["a", "b", "Ġ"], &[("a", "b"), ("Ġ", "ab")]);
    TextTokenizer::from_directory(directory, Family::Opt).unwrap().unwrap()
}

#[test]
fn opt_merges_and_prepends_its_bos() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = small_opt(directory.path());
    assert_eq!(tokenizer.encode("ab ab", true).unwrap(), [2, 7, 8]);
    assert_eq!(tokenizer.encode("ab ab", false).unwrap(), [7, 8]);
    assert_eq!(tokenizer.encode("ba", true).unwrap(), [2, 5, 4]);
    assert_eq!(tokenizer.decode(&[2, 7, 8, 2]).unwrap(), "ab ab");
    assert_eq!(tokenizer.vocab_size(), 9);
    assert_eq!(tokenizer.token_id("Ġab"), Some(8));
}

#[test]
fn bos_is_added_as_the_tokenizer_config_says() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a"], &[]);
    let config = directory.path().join("tokenizer_config.json");
    let encode = |family| {
        let tokenizer = TextTokenizer::from_directory(directory.path(), family).unwrap().unwrap();
        tokenizer.encode("a", true).unwrap()
    };
    assert_eq!(encode(Family::Llama), [4], "only OPT adds a BOS unasked");
    fs::write(&config, r#"{"add_bos_token": false}"#).unwrap();
    assert_eq!(encode(Family::Opt), [4]);
    fs::write(&config, r#"{"add_bos_token": true, "bos_token": {"content": "<s>"}}"#).unwrap();
    assert_eq!(encode(Family::Opt), [0, 4]);
    assert_eq!(encode(Family::Llama), [0, 4]);
}

#[test]
fn special_tokens_in_text_are_single_tokens() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a"], &[]);
    fs::write(directory.path().join("special_tokens_map.json"), r#"{"pad_token": "<pad>"}"#)
        .unwrap();
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    assert_eq!(tokenizer.encode("a<pad>a</s>", false).unwrap(), [4, 1, 4, 2]);
    assert_eq!(tokenizer.decode(&[4, 1, 4, 2]).unwrap(), "aa");
}

#[test]
fn tokenizer_json_comes_first_and_never_truncates() {
    let directory = tempfile::tempdir().unwrap();
    small_opt(directory.path());
    let mut other = Tokenizer::new(
        BPE::builder()
            .vocab_and_merges([("a".to_owned(), 0), ("b".to_owned(), 1)], Vec::new())
            .build()
            .unwrap(),
    );
    let truncation = tokenizers::TruncationParams { max_length: 2, ..Default::default() };
    other.with_truncation(Some(truncation)).unwrap();
    other.save(directory.path().join("tokenizer.json"), false).unwrap();
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    assert_eq!(tokenizer.encode("abba", true).unwrap(), [0, 1, 1, 0]);
}

#[test]
fn absent_files_are_no_tokenizer_and_broken_ones_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let load = || TextTokenizer::from_directory(directory.path(), Family::Opt);
    assert!(load().unwrap().is_none());
    fs::write(directory.path().join("vocab.json"), "{}").unwrap();
    assert!(matches!(load(), Err(TokenizerError::NoMerges { .. })));
    fs::write(directory.path().join("tokenizer.json"), "{").unwrap();
    let message = load().unwrap_err().to_string();
    assert!(message.contains("tokenizer.json: the tokenizer cannot be read"), "{message}");
}

/// `é` is the bytes C3 A9, spelled `Ã` and `©`; `a` stands between.
#[test]
fn a_stream_never_emits_half_a_character() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a", "Ã", "©"], &[]);
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> = [4, 5, 6, 4, 2, 4].map(|token| stream.push(token).unwrap()).to_vec();
    let text = |piece: &str| Some(piece.to_owned());
    assert_eq!(pieces, [text("a"), None, text("é"), text("a"), None, text("a")]);
    assert_eq!(stream.push(5).unwrap(), None);
    assert_eq!(stream.finish().unwrap(), text("\u{FFFD}"));
}

#[test]
fn a_stream_says_what_decode_says() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a", "Ġ", "Ã", "©", "ł", "ð", "Ł"], &[("Ġ", "a")]);
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    let mut state = 12345_u32;
    for length in (0..200).map(|round| 12 + round / 4) {
        let tokens: Vec<u32> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                2 + (state >> 16) % 10
            })
            .collect();
        let mut stream = tokenizer.stream();
        let mut streamed = String::new();
        for &token in &tokens {
            streamed.extend(stream.push(token).unwrap());
        }
        streamed.extend(stream.finish().unwrap());
        assert_eq!(streamed, tokenizer.decode(&tokens).unwrap(), "{tokens:?}");
    }
}

#[test]
fn bytes_that_are_no_text_do_not_pile_up() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a", "Ã", "©"], &[]);
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    // Beginnings of characters, never a whole one, and then one.
    let tokens = [[5; 300].as_slice(), &[6, 4]].concat();
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for token in &tokens {
        text.extend(stream.push(*token).unwrap());
        let (kept, emitted) = stream.growing.as_parts();
        assert!(kept.len() - emitted < WAITING_MAX, "{} wait", kept.len() - emitted);
    }
    assert_eq!(text, tokenizer.decode(&tokens).unwrap());
    assert!(text.ends_with("éa"), "{text}");
}

/// SentencePiece decoders strip the space of a text's first token only.
#[test]
fn a_stream_keeps_the_spaces_of_sentencepiece() {
    let mut tokenizer = Tokenizer::new(
        BPE::builder()
            .vocab_and_merges(
                [
                    ("▁a".to_owned(), 0),
                    ("▁b".to_owned(), 1),
                    ("<0xC3>".to_owned(), 2),
                    ("<0xA9>".to_owned(), 3),
                ],
                Vec::new(),
            )
            .build()
            .unwrap(),
    );
    let strip = tokenizers::decoders::strip::Strip::new(' ', 1, 0);
    let replace = tokenizers::normalizers::Replace::new("▁", " ").unwrap();
    tokenizer.with_decoder(Some(Sequence::new(vec![
        replace.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
        strip.into(),
    ])));
    let tokenizer = TextTokenizer::new(tokenizer, Some(0));
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> = [0, 1, 2, 3, 1].map(|token| stream.push(token).unwrap()).to_vec();
    let text: String = pieces.into_iter().flatten().collect();
    assert_eq!(text, "a bé b");
    assert_eq!(text, tokenizer.decode(&[0, 1, 2, 3, 1]).unwrap());
    let bytes = [0, 1, 2, 3].map(|token| tokenizer.bytes(token));
    assert_eq!(bytes, [b" a".to_vec(), b" b".to_vec(), vec![0xc3], vec![0xa9]]);
}

#[test]
fn tokens_of_bytes_are_the_bytes_of_the_text() {
    let directory = tempfile::tempdir().unwrap();
    let alphabet: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    let text: Vec<&str> = alphabet.iter().map(String::as_str).collect();
    opt_directory(directory.path(), &text, &[]);
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    let every_byte: String =
        (0..=0x4ff).filter_map(char::from_u32).chain("é€😀\u{ad}".chars()).collect();
    let tokens = tokenizer.encode(&every_byte, false).unwrap();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.bytes(*token)).collect();
    assert_eq!(bytes, every_byte.as_bytes());
    assert!(tokens.iter().all(|token| tokenizer.bytes(*token).len() == 1));
    assert_eq!(tokenizer.bytes(2), b"</s>", "a special token is what it is called");
    assert_eq!(tokenizer.bytes(100_000), b"");
    assert!(tokenizer.is_special(2), "and no part of a text");
    assert!(tokens.iter().all(|token| !tokenizer.is_special(*token)));
    assert!(!tokenizer.is_special(100_000));
}
