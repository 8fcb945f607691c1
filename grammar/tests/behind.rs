//! Tests of grammars after a marker: text before it is unconstrained, but the answer cannot end
//! there.

use std::sync::Arc;

use grammar::{
    Behind, Checker, CompiledGrammarCache, Grammar, GrammarMatcher, GrammarSet, Marker, Vocabulary,
};

const END: u32 = 256;
/// Special tokens, which no text contains.
const CHANNEL: u32 = 257;
const MESSAGE: u32 = 258;
/// `k>x`: the end of a marker, and text after it.
const STRADDLING: u32 = 259;

fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    words.extend([Vec::new(), Vec::new(), Vec::new(), b"k>x".to_vec()]);
    Vocabulary { words, ends: vec![END] }
}

fn begin(marker: Marker, grammar: Grammar) -> GrammarMatcher {
    let grammar = Grammar::Behind(Box::new(Behind { marker, grammar }));
    Checker::new().and_then(|checker| checker.check(&grammar)).expect("a grammar");
    let grammars = GrammarSet::new(vocabulary(), vec![grammar], |_| None);
    CompiledGrammarCache::new(Arc::new(grammars)).expect("compiles").start_matcher(0)
}

fn allowed(walk: &mut GrammarMatcher) -> Vec<u32> {
    let mut mask = vec![0; 9];
    walk.fill_mask(&mut mask);
    (0..260).filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).collect()
}

fn say(walk: &mut GrammarMatcher, text: &str) {
    text.bytes().for_each(|byte| walk.accept_token(u32::from(byte)));
}

#[test]
fn nothing_is_held_before_the_marker_but_the_end() {
    let marker = || Marker::Text("</think>".to_owned());
    let all: Vec<u32> = (0..260).filter(|token| *token != END).collect();
    for (form, first, text) in [
        (Grammar::Regex("[0-9]x".to_owned()), "0123456789", "7x"),
        (Grammar::Choice(["yes", "no"].map(str::to_owned).to_vec()), "ny", "no"),
        (Grammar::json_schema(r#"{"type": "boolean"}"#), "ft", "true"),
    ] {
        let mut walk = begin(marker(), form);
        for said in ["", "No {\"a\": </thin", "king> <", "/think"] {
            say(&mut walk, said);
            assert_eq!(allowed(&mut walk), all, "behind {said}");
            assert!(!walk.is_complete() && !walk.is_unconstrained());
        }
        say(&mut walk, ">");
        let first: Vec<u32> = first.bytes().map(u32::from).collect();
        assert_eq!(allowed(&mut walk), first);
        say(&mut walk, text);
        assert!(walk.is_complete(), "{text}");
        assert_eq!(walk.failure(), None);
        assert_eq!(allowed(&mut walk), [END]);
    }
}

#[test]
fn a_marker_of_tokens_is_all_of_them_in_a_row() {
    let marker = || Marker::Tokens(vec![CHANNEL, u32::from(b'f'), MESSAGE]);
    let mut walk = begin(marker(), Grammar::Regex("ab".to_owned()));
    for token in [CHANNEL, u32::from(b'a'), MESSAGE, u32::from(b'f'), MESSAGE, CHANNEL] {
        walk.accept_token(token);
        assert_eq!(allowed(&mut walk).len(), 259);
    }
    walk.accept_token(u32::from(b'f'));
    walk.accept_token(MESSAGE);
    assert_eq!(allowed(&mut walk), [u32::from(b'a')]);
    say(&mut walk, "ab");
    assert!(walk.is_complete());
}

#[test]
fn what_the_markers_token_says_behind_it_counts() {
    let marker = || Marker::Text("</think>".to_owned());
    let mut walk = begin(marker(), Grammar::Regex("xy".to_owned()));
    say(&mut walk, "</thin");
    walk.accept_token(STRADDLING);
    assert_eq!(allowed(&mut walk), [u32::from(b'y')]);
    let mut walk = begin(marker(), Grammar::Regex("ab".to_owned()));
    say(&mut walk, "</thin");
    walk.accept_token(STRADDLING);
    assert!(walk.failure().is_some());
}

#[test]
fn what_stands_behind_a_marker_is_found_again() {
    let bytes = |token: u32| vocabulary().words[token as usize].clone();
    let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let text = Marker::Text("</think>".to_owned());
    assert_eq!(
        text.bytes_after(&tokens("a</think> b</think>"), bytes),
        Some(b" b</think>".to_vec())
    );
    assert_eq!(text.bytes_after(&tokens("a</think"), bytes), None);
    let pair = Marker::Tokens(vec![CHANNEL, MESSAGE]);
    let said = [vec![MESSAGE, CHANNEL, MESSAGE], tokens("ab")].concat();
    assert_eq!(pair.bytes_after(&said, bytes), Some(b"ab".to_vec()));
    assert_eq!(pair.bytes_after(&[CHANNEL], bytes), None);
}
