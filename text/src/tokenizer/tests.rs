//! Tests with tokenizers that are small enough for all ids to be known, built from files as models
//! publish them.

use std::fs;
use std::path::Path;

use tokenizers::Tokenizer;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;

use super::*;

/// Writes OPT's special tokens as ids 0 to 3, `text` as the ids from 4, then the results of merges.
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

/// Returns a tokenizer with the ids a 4, b 5, Ġ 6, ab 7 and Ġab 8. `Ġ` is the byte-level
/// spelling of a space.
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

#[test]
fn a_tokenizer_in_another_form_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let unread = || TextTokenizer::unsupported_file(directory.path());
    assert_eq!(unread(), None);
    fs::write(directory.path().join("tokenizer.model"), "").unwrap();
    assert_eq!(unread(), Some("tokenizer.model"));
    fs::write(directory.path().join("tekken.json"), "{}").unwrap();
    assert_eq!(unread(), Some("tekken.json"));
    fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(unread(), None, "one is read");
}

/// Tests with `é`, whose bytes C3 A9 are spelled `Ã` and `©`, and with `a` between characters.
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
    // The first bytes of characters without the rest, followed by a whole character.
    let tokens = [[5; 300].as_slice(), &[6, 4]].concat();
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for token in &tokens {
        text.extend(stream.push(*token).unwrap());
        let (kept, emitted) = stream.growing.as_parts();
        assert!(kept.len() - emitted < PENDING_TOKENS_MAX, "{} wait", kept.len() - emitted);
    }
    assert_eq!(text, tokenizer.decode(&tokens).unwrap());
    assert!(text.ends_with("éa"), "{text}");
}

/// Returns a tokenizer with LLaMA 2's decoder and the tokens `▁a`, `▁b`, the bytes of `é`, `▁`,
/// `c` and the special `<s>`.
fn sentencepiece() -> TextTokenizer {
    let words = ["▁a", "▁b", "<0xC3>", "<0xA9>", "▁", "c", "<s>"];
    let vocab = std::array::from_fn::<_, 7, _>(|id| (words[id].to_owned(), id as u32));
    let bpe = BPE::builder().vocab_and_merges(vocab, Vec::new()).build().unwrap();
    let mut tokenizer = Tokenizer::new(bpe);
    let strip = tokenizers::decoders::strip::Strip::new(' ', 1, 0);
    let replace = tokenizers::normalizers::Replace::new("▁", " ").unwrap();
    tokenizer.with_decoder(Some(Sequence::new(vec![
        replace.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
        strip.into(),
    ])));
    tokenizer.add_special_tokens([AddedToken::from("<s>", true)]).unwrap();
    TextTokenizer::new(tokenizer, Some(0))
}

/// Tests that only the space of a text's first token is stripped, as by SentencePiece decoders.
#[test]
fn a_stream_keeps_the_spaces_of_sentencepiece() {
    let tokenizer = sentencepiece();
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> = [0, 1, 2, 3, 1].map(|token| stream.push(token).unwrap()).to_vec();
    let text: String = pieces.into_iter().flatten().collect();
    assert_eq!(text, "a bé b");
    assert_eq!(text, tokenizer.decode(&[0, 1, 2, 3, 1]).unwrap());
    let bytes = [0, 1, 2, 3].map(|token| tokenizer.bytes(token));
    assert_eq!(bytes, [b" a".to_vec(), b" b".to_vec(), vec![0xc3], vec![0xa9]]);
}

fn answer(tokenizer: &TextTokenizer, prompt: &[u32], tokens: &[u32], keeps_space: bool) -> String {
    let mut stream = tokenizer.stream_after(prompt, keeps_space).unwrap();
    let mut text = String::new();
    for token in tokens {
        text.extend(stream.push(*token).unwrap());
    }
    text.extend(stream.finish().unwrap());
    text
}

#[test]
fn an_answer_keeps_the_space_of_its_first_token() {
    let tokenizer = sentencepiece();
    assert_eq!(answer(&tokenizer, &[6, 0], &[1, 5], false), " bc");
    assert_eq!(answer(&tokenizer, &[0; 100], &[1, 5], false), " bc");
    assert_eq!(answer(&tokenizer, &[0, 6, 6, 6, 6, 6, 6], &[1], false), " b", "special tokens");
    // Without a preceding text, it is the first token of a text, unless the text must be exact.
    assert_eq!(answer(&tokenizer, &[], &[1, 1], false), "b b");
    assert_eq!(answer(&tokenizer, &[6], &[1, 1], false), "b b");
    assert_eq!(answer(&tokenizer, &[6], &[5], true), "c");
    assert_eq!(answer(&tokenizer, &[6], &[1, 1], true), " b b");
    assert_eq!(answer(&tokenizer, &[4], &[1], false), " b", "the prompt's own space was stripped");
}

#[test]
fn an_answer_completes_the_prompts_last_character() {
    let tokenizer = sentencepiece();
    assert_eq!(answer(&tokenizer, &[0, 2], &[3, 1], false), "é b");
    assert_eq!(answer(&tokenizer, &[0, 2], &[1], false), "\u{FFFD} b");
    // The context contains either all bytes of a run or none.
    let prompt = [[0].as_slice(), &[2, 3].repeat(5), &[2]].concat();
    assert_eq!(answer(&tokenizer, &prompt, &[3, 1], false), "é b");
    assert_eq!(answer(&tokenizer, &[2, 3, 2, 3, 2, 3], &[3, 0], false).chars().last(), Some('a'));
}

#[test]
fn prompt_and_answer_are_the_text_of_both() {
    let tokenizer = sentencepiece();
    let mut state = 7_u32;
    let mut next = |most: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % most
    };
    for _ in 0..400 {
        // Words and whole characters, so that no run of bytes is invalid.
        let mut tokens = Vec::new();
        for _ in 0..next(12) {
            match next(6) {
                2 => tokens.extend([2, 3]),
                3 => tokens.push(6),
                word => tokens.push(word),
            }
        }
        let split = next(tokens.len() as u32 + 1) as usize;
        let (prompt, rest) = tokens.split_at(split);
        let cut = prompt.last() == Some(&2);
        let before = tokenizer.decode(&prompt[..split - usize::from(cut)]).unwrap();
        let after = answer(&tokenizer, prompt, rest, false);
        assert_eq!(before + &after, tokenizer.decode(&tokens).unwrap(), "{prompt:?} {rest:?}");
    }
}

#[test]
fn a_text_that_is_far_too_long_is_counted_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    opt_directory(directory.path(), &["a", "Ġ"], &[]);
    let tokenizer = TextTokenizer::from_directory(directory.path(), Family::Opt).unwrap().unwrap();
    let text = "a ".repeat(100_000);
    let tokens = tokenizer.encode(&text, false).unwrap().len();
    assert_eq!(tokenizer.excess(&text, 1000).unwrap(), Some(tokens));
    assert_eq!(tokenizer.excess(&text, tokens).unwrap(), None);
    assert_eq!(tokenizer.excess("a a a", 1).unwrap(), None, "a short one is tokenised at once");
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
