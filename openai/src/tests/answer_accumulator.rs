//! Streamed pieces add up to the whole answer.

use crate::stop::GeneratedTokens;
use engine_api::codec::{TextCodec, TextContext};
use engine_api::event::{FinishCause, Logprob};
use testkit::byte_codec::{BOS, ByteCodec};

use crate::answer_accumulator::{AnswerAccumulator, AnswerDelta, FinishedAnswer};
use crate::answer_options::AnswerOptions;
use crate::stop::{Answer, finish};

const CODEC: ByteCodec = ByteCodec::STRIPPING;

/// Random numbers from a seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// Everything that was streamed, joined.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    text: String,
    token_ids: Vec<u32>,
    logprobs: Vec<String>,
    events: usize,
}

impl Heard {
    fn add(&mut self, delta: AnswerDelta) {
        self.text += &delta.text;
        self.token_ids.extend(&delta.token_ids);
        if let Some(logprobs) = delta.logprobs {
            let of_text = logprobs.into_text();
            let shown = of_text.tokens.iter().zip(&of_text.text_offset);
            self.logprobs.extend(shown.map(|(token, offset)| format!("{offset}:{token}")));
        }
        self.events += 1;
    }
}

fn logprob(token: u32) -> Logprob {
    Logprob { token, logprob: -0.5 }
}

/// Streams tokens one at a time until a stop string ends the answer.
fn streamed(tokens: &[u32], following: &AnswerOptions, ends: FinishCause) -> (Heard, Answer) {
    let mut growing = AnswerAccumulator::new(Some(&CODEC), following.clone());
    let mut heard = Heard::default();
    let mut finish = ends;
    for token in tokens {
        let logprobs = vec![logprob(*token); following.logprobs_per_token];
        if growing.push(*token, &logprobs) {
            finish = FinishCause::Stop;
            break;
        }
        heard.add(growing.take());
    }
    let FinishedAnswer { rest, answer, .. } = growing.end(finish);
    heard.add(rest);
    (heard, answer)
}

fn whole(tokens: &[u32], following: &AnswerOptions, ends: FinishCause) -> Answer {
    let logprobs =
        tokens.iter().flat_map(|token| vec![logprob(*token); following.logprobs_per_token]);
    let generated =
        GeneratedTokens { tokens: tokens.to_vec(), logprobs: logprobs.collect(), finish: ends };
    let (answer, logprobs) = finish(generated, following, Some(&CODEC));
    Answer { logprobs: logprobs.map(|found| found.decode(Some(&CODEC))), ..answer }
}

#[test]
fn pieces_put_together_are_the_whole() {
    let words = ["a", "b", "é", "€", " 😀", "\n", " ab", "\u{1F1E9}\u{1F1EA}"];
    let contexts = ["", "a", "é", " ", "€ b"];
    let mut stopped = 0;
    for seed in 0..4000 {
        let mut numbers = Numbers(seed);
        let text: String =
            (0..numbers.below(24)).map(|_| words[numbers.below(8) as usize]).collect();
        // One text in four ends at a random byte, possibly within a character.
        let mut tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        if numbers.below(4) == 0 && !tokens.is_empty() {
            let place = numbers.below(tokens.len() as u64) as usize;
            tokens.truncate(place);
        }
        let stop: Vec<String> = (0..numbers.below(3))
            .map(|_| (0..1 + numbers.below(3)).map(|_| words[numbers.below(8) as usize]).collect())
            .collect();
        let logprobs_per_token = numbers.below(3) as usize;
        // The prompt ends within a character in some cases.
        let before = contexts[numbers.below(5) as usize].as_bytes();
        let cut = before.len() - (numbers.below(4) as usize / 3).min(before.len());
        let prompt: Vec<u32> = before[..cut].iter().copied().map(u32::from).collect();
        let context = TextContext {
            keeps_leading_space: numbers.below(4) == 0,
            ..TextContext::after_prompt(&prompt)
        };
        let min_tokens = numbers.below(3) as u32 * 5;
        let following = AnswerOptions {
            is_streamed: true,
            stop: stop.into(),
            min_tokens,
            context,
            logprobs_per_token,
            ..AnswerOptions::default()
        };
        let ends = if numbers.below(2) == 0 { FinishCause::Stop } else { FinishCause::Length };
        let (heard, answer) = streamed(&tokens, &following, ends);
        let expected = whole(&tokens, &following, ends);
        let context = format!("seed {seed}: {text:?} {following:?}");
        assert_eq!(answer.text, expected.text, "{context}");
        assert_eq!(answer.token_ids, expected.token_ids, "{context}");
        assert_eq!(answer.generated, expected.generated, "{context}");
        assert_eq!(answer.finish, expected.finish, "{context}");
        assert_eq!(Some(heard.text), expected.text, "{context}");
        assert_eq!(heard.token_ids, expected.token_ids, "{context}");
        let logprobs = expected.logprobs.map(|logprobs| logprobs.into_text());
        let shown = logprobs.map_or(Vec::new(), |logprobs| {
            let shown = logprobs.tokens.iter().zip(&logprobs.text_offset);
            shown.map(|(token, offset)| format!("{offset}:{token}")).collect()
        });
        assert_eq!(heard.logprobs, shown, "{context}");
        if expected.finish == FinishCause::Stop && ends == FinishCause::Length {
            assert!(expected.generated > min_tokens, "{context}");
        }
        stopped += usize::from(ends == FinishCause::Length && expected.finish == FinishCause::Stop);
    }
    assert!(stopped > 400, "only {stopped} answers met a stop string");
}

#[test]
fn nothing_is_told_that_a_stop_string_takes_back() {
    let following = AnswerOptions {
        is_streamed: true,
        stop: vec!["END".to_owned()].into(),
        ..AnswerOptions::default()
    };
    let mut growing = AnswerAccumulator::new(Some(&CODEC), following);
    let mut seen = String::new();
    for byte in b"an EN EN" {
        assert!(!growing.push(u32::from(*byte), &[]));
        seen += &growing.take().text;
    }
    assert_eq!(seen, "an EN ", "what may begin a stop string waits");
    assert!(growing.push(u32::from(b'D'), &[]));
    let FinishedAnswer { rest, answer, .. } = growing.end(FinishCause::Stop);
    assert_eq!((rest.text.as_str(), answer.text.as_deref()), ("", Some("an EN ")));
}

#[test]
fn each_token_is_told_at_once_where_nothing_can_take_it_back() {
    let tokens: Vec<u32> = "é€".bytes().map(u32::from).collect();
    let following =
        AnswerOptions { is_streamed: true, logprobs_per_token: 1, ..AnswerOptions::default() };
    let mut growing = AnswerAccumulator::new(Some(&CODEC as &dyn TextCodec), following);
    let mut texts = Vec::new();
    for token in &tokens {
        growing.push(*token, &[logprob(*token)]);
        let delta = growing.take();
        assert_eq!(delta.token_ids, [*token]);
        texts.push(delta.text);
    }
    assert_eq!(texts, ["", "é", "", "", "€"]);
}

#[test]
fn an_answer_keeps_the_space_that_a_text_would_lose() {
    let heard = |context: TextContext, stop: &[&str]| {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let following =
            AnswerOptions { is_streamed: true, stop, context, ..AnswerOptions::default() };
        let tokens: Vec<u32> = " Paris.".bytes().map(u32::from).collect();
        let (heard, answer) = streamed(&tokens, &following, FinishCause::Length);
        assert_eq!(Some(&heard.text), answer.text.as_ref());
        heard.text
    };
    let behind = |prompt: &[u32]| TextContext::after_prompt(prompt);
    assert_eq!(heard(behind(&[BOS, 97]), &[]), " Paris.");
    assert_eq!(heard(behind(&[BOS, 97]), &[" Paris"]), "");
    // A text that begins with the space loses it, unless it follows a grammar.
    assert_eq!(heard(behind(&[BOS]), &[]), "Paris.");
    assert_eq!(heard(TextContext { keeps_leading_space: true, ..behind(&[BOS]) }, &[]), " Paris.");
}

#[test]
fn no_stop_string_ends_an_answer_of_too_few_tokens() {
    let tokens: Vec<u32> = "op op op".bytes().map(u32::from).collect();
    let heard = |min_tokens: u32| {
        let stop = vec!["op".to_owned()].into();
        let following =
            AnswerOptions { is_streamed: true, stop, min_tokens, ..AnswerOptions::default() };
        let (heard, answer) = streamed(&tokens, &following, FinishCause::Length);
        assert_eq!(
            whole(&tokens, &following, FinishCause::Length).text.as_ref(),
            Some(&heard.text)
        );
        (heard.text, answer.generated)
    };
    assert_eq!(heard(0), (String::new(), 2));
    assert_eq!(heard(1), (String::new(), 2));
    assert_eq!(heard(2), ("op ".to_owned(), 5));
    // A stop string that one of the first `min_tokens` tokens completes is ignored.
    assert_eq!(heard(5), ("op op ".to_owned(), 8));
    assert_eq!(heard(8), ("op op op".to_owned(), 8));
}
