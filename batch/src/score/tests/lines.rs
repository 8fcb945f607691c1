//! Tests of parsing lines and of splitting texts into tokens.

use openai::input_line::ErrorCode;
use openai::prompt::ModelLimits;
use testkit::byte_codec::{BOS, ByteCodec};

use crate::score::line::{LineOptions, parse_line};
use crate::score::question::ScoreQuestion;
use crate::score::tokens::PrefixToken;

const CODEC: ByteCodec = ByteCodec::PLAIN;
const PREFIX: u32 = 7;

fn options() -> LineOptions<'static> {
    LineOptions {
        limits: ModelLimits { context: 12, vocab_size: 1000, unsupported_tokenizer: None },
        prefix: PrefixToken(Some(PREFIX)),
        codec: Some(&CODEC),
    }
}

fn question(line: &str) -> ScoreQuestion {
    let read = parse_line(line.as_bytes(), 3, &options());
    assert!(read.is_request, "{line}");
    read.result.unwrap_or_else(|rejection| panic!("{line}: {rejection:?}"))
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn spaces_go_to_the_continuation_and_an_empty_prompt_has_the_prefix() {
    let asked = question(r#"{"prompt": "ab ", "continuations": ["c", "de"]}"#);
    assert_eq!(asked.prompt, [&[BOS][..], &bytes("ab")].concat());
    assert_eq!(asked.continuations, [bytes(" c"), bytes(" de")]);
    let asked = question(r#"{"prompt": "ab", "continuations": [" c"]}"#);
    assert_eq!(asked.continuations, [bytes(" c")]);
    for prompt in ["", " \t\u{1f}"] {
        let line = serde_json::json!({"prompt": prompt, "continuations": ["c", "\u{7}d"]});
        let asked = question(&line.to_string());
        assert_eq!(asked.prompt, [PREFIX]);
        let spaces = bytes(prompt);
        assert_eq!(asked.continuations[0], [&spaces[..], &bytes("c")].concat());
        // A text that begins with the prefix does not repeat it.
        let second = if prompt.is_empty() { bytes("d") } else { [&spaces[..], &[7, 100]].concat() };
        assert_eq!(asked.continuations[1], second);
    }
}

#[test]
fn token_ids_are_taken_as_they_are() {
    let asked = question(r#"{"prompt": [2, 9], "continuations": [[4], [5, 999]]}"#);
    assert_eq!((asked.prompt, asked.line), (vec![2, 9], 3));
    assert_eq!(asked.continuations, [vec![4], vec![5, 999]]);
    assert_eq!(question(r#"{"prompt": [], "continuations": [[4]]}"#).prompt, [PREFIX]);
}

#[test]
fn what_cannot_be_asked_is_an_error_line() {
    let code = |line: &str, options: &LineOptions<'_>| {
        let read = parse_line(line.as_bytes(), 1, options);
        read.result.expect_err(line).code
    };
    let cases = [
        ("{", ErrorCode::InvalidJson),
        (r#"{"continuations": ["a"]}"#, ErrorCode::MissingField),
        (r#"{"prompt": "a"}"#, ErrorCode::MissingField),
        (r#"{"prompt": "a", "continuations": []}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": "a", "continuations": [[4]]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": [1], "continuations": ["b"]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": [1], "continuations": [[-1]]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": 1, "continuations": [[4]]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": [1], "continuations": [[4], []]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": "a", "continuations": [""]}"#, ErrorCode::InvalidValue),
        (r#"{"prompt": [1], "continuations": [[1000]]}"#, ErrorCode::TokenOutOfVocabulary),
        (r#"{"prompt": "0123456789", "continuations": ["ab"]}"#, ErrorCode::ContextLengthExceeded),
        (r#"{"prompt": "a", "continuations": ["b"], "n": 2}"#, ErrorCode::UnsupportedField),
        (r#"{"prompt": "a\u0001", "continuations": ["b"]}"#, ErrorCode::Tokenizer),
    ];
    for (line, expected) in cases {
        assert_eq!(code(line, &options()), expected, "{line}");
    }
    let text = r#"{"prompt": "a", "continuations": ["b"]}"#;
    let bare = LineOptions { codec: None, ..options() };
    assert_eq!(code(text, &bare), ErrorCode::NoTokenizer);
    let nameless = LineOptions { prefix: PrefixToken(None), ..options() };
    let empty = r#"{"prompt": "", "continuations": ["b"]}"#;
    assert_eq!(code(empty, &nameless), ErrorCode::EmptyPrompt);
}
