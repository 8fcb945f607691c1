//! Tests of stop strings: where text and tokens are cut, and that tokens computed after the stop do
//! not show.

use engine_api::event::FinishCause;
use openai::answer_accumulator::AnswerAccumulator;
use openai::answer_options::AnswerOptions;
use openai::stop::GeneratedTokens;
use openai::stop::{Answer, finish};
use openai::stop_strings::StopStrings;

use testkit::byte_codec::ByteCodec;

const CODEC: ByteCodec = ByteCodec::CHAT;

fn ended(text: &str, stop: &[&str]) -> Answer {
    let tokens = text.bytes().map(u32::from).collect();
    let stop: Vec<String> = stop.iter().map(|stop| (*stop).to_owned()).collect();
    let generated = GeneratedTokens { tokens, logprobs: Vec::new(), finish: FinishCause::Length };
    let following = AnswerOptions { stop: stop.into(), ..AnswerOptions::default() };
    finish(generated, &following, Some(&CODEC)).0
}

#[test]
fn nothing_to_stop_at() {
    let answer = ended("abc", &[]);
    assert_eq!(answer.text.as_deref(), Some("abc"));
    assert_eq!(answer.finish, FinishCause::Length);
    assert_eq!(ended("abc", &["x"]), answer);
}

#[test]
fn the_first_complete_stop_cuts_text_and_tokens() {
    let answer = ended("one two three", &["two", " t"]);
    assert_eq!(answer.text.as_deref(), Some("one"));
    assert_eq!(answer.token_ids.len(), 3);
    assert_eq!(answer.finish, FinishCause::Stop);
    // "ab" is complete before "abcd"; of those complete at the same time the one that begins first
    // wins.
    assert_eq!(ended("xabcd", &["abcd", "b"]).text.as_deref(), Some("xa"));
    assert_eq!(ended("xabcd", &["cd", "bcd", "d"]).text.as_deref(), Some("xa"));
    assert_eq!(ended("stop", &["stop"]).token_ids, [0_u32; 0]);
}

#[test]
fn surplus_tokens_do_not_show() {
    let expected = ended("ab.", &["."]);
    for late in ["ab.c", "ab.cd", "ab.cd.e"] {
        assert_eq!(ended(late, &["."]), expected);
    }
}

#[test]
fn half_characters_belong_to_the_stop() {
    // The two bytes of "é" are two tokens; the first has no text of its own.
    let answer = ended("aé", &["é"]);
    assert_eq!(answer.text.as_deref(), Some("a"));
    assert_eq!(answer.token_ids, [u32::from(b'a')]);
}

#[test]
fn a_stop_string_is_noticed_where_it_cuts() {
    let stop: StopStrings = vec!["lo w".to_owned(), "ö".to_owned()].into();
    for text in ["hello world", "schön", "nothing", "hello ", ""] {
        let options = AnswerOptions { stop: stop.clone(), ..AnswerOptions::default() };
        let mut accumulator = AnswerAccumulator::new(Some(&CODEC), options);
        let stopped = text.bytes().any(|byte| accumulator.push(u32::from(byte), &[]));
        let answer = ended(text, &["lo w", "ö"]);
        assert_eq!(stopped, answer.finish == FinishCause::Stop, "{text}");
    }
}

#[test]
fn unfinished_characters_become_replacements() {
    let tokens = vec![u32::from(b'a'), 0xc3];
    let generated = GeneratedTokens { tokens, logprobs: Vec::new(), finish: FinishCause::Length };
    let answer = finish(generated, &AnswerOptions::default(), Some(&CODEC)).0;
    assert_eq!(answer.text.as_deref(), Some("a\u{fffd}"));
    assert_eq!(answer.token_ids.len(), 2);
}

#[test]
fn without_tokenizer_there_is_no_text() {
    let generated =
        GeneratedTokens { tokens: vec![5, 6], logprobs: Vec::new(), finish: FinishCause::Stop };
    let answer = finish(generated, &AnswerOptions::default(), None).0;
    let token_ids = vec![5, 6];
    let expected = Answer {
        calls: Vec::new(),
        reasoning: String::new(),
        text: None,
        token_ids,
        generated: 3,
        reasoning_tokens: 0,
        stop_string: None,
        logprobs: None,
        finish: FinishCause::Stop,
        ended_with_eos: true,
        error: None,
        is_retryable: false,
    };
    assert_eq!(answer, expected);
}
