//! Tests of walks through grammars with vocabularies small enough to know every token.

use std::sync::Arc;

use grammar::{Checker, CompiledGrammarCache, Grammar, GrammarSet, Vocabulary};

/// Returns a vocabulary of bytes, some words that end within others, and two tokens that end an
/// answer.
fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for word in
        ["yes", "no", "yesterday", "{\"", "\": ", "true", "12", "\n\n", "é", "</s>", "<end>"]
    {
        words.push(word.as_bytes().to_vec());
    }
    let ends = vec![words.len() as u32 - 2, words.len() as u32 - 1];
    ends.iter().for_each(|end| words[*end as usize].clear());
    Vocabulary { words, ends }
}

fn compiled(grammar: &Grammar) -> CompiledGrammarCache {
    let grammars = GrammarSet::new(vocabulary(), vec![grammar.clone()], |_| None);
    Checker::new().and_then(|checker| checker.check(grammar)).expect("a grammar");
    CompiledGrammarCache::new(Arc::new(grammars)).expect("a grammar")
}

/// Returns the text of an answer for which `choose` picks each token among those allowed, and true
/// if it ended.
fn walk(grammar: &Grammar, most: usize, mut choose: impl FnMut(&[u32]) -> u32) -> (String, bool) {
    let (mut compiled, vocabulary) = (compiled(grammar), vocabulary());
    let mut walk = compiled.start_matcher(0);
    let mut mask = vec![0; compiled.mask_words()];
    let mut text = Vec::new();
    for _ in 0..most {
        walk.fill_mask(&mut mask);
        let bit = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
        let allowed: Vec<u32> = (0..vocabulary.words.len() as u32).filter(bit).collect();
        assert!(!allowed.is_empty());
        let token = choose(&allowed);
        if vocabulary.ends.contains(&token) {
            return (String::from_utf8(text).expect("UTF-8"), true);
        }
        text.extend(&vocabulary.words[token as usize]);
        walk.accept_token(token);
    }
    (String::from_utf8_lossy(&text).into_owned(), false)
}

/// Returns a function that picks randomly.
fn random(seed: u64) -> impl FnMut(&[u32]) -> u32 {
    let mut state = seed * 2 + 1;
    move |allowed| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        allowed[(state >> 33) as usize % allowed.len()]
    }
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let texts = ["yes", "no", "yes and \"no\"", "é"].map(str::to_owned);
    let grammar = Grammar::Choice(texts.to_vec());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let (text, ended) = walk(&grammar, 40, random(seed * 77));
        assert!(ended && texts.contains(&text), "{text:?}");
        seen.insert(text);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    // "yesterday" begins like "yes" but is not a choice: its token is never allowed.
    let yesterday = 256 + 2;
    walk(&grammar, 40, |allowed| {
        assert!(!allowed.contains(&yesterday));
        allowed[0]
    });
}

/// Returns the tokens allowed after `tokens`, in ascending order.
fn following(compiled: &mut CompiledGrammarCache, tokens: &[u32]) -> Vec<u32> {
    let mut walk = compiled.start_matcher(0);
    let mut mask = vec![0; compiled.mask_words()];
    tokens.iter().for_each(|token| walk.accept_token(*token));
    assert_eq!(walk.failure(), None);
    walk.fill_mask(&mut mask);
    (0..mask.len() as u32 * 32).filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1).collect()
}

#[test]
fn a_choice_is_said_in_the_tokens_of_the_tokenizer() {
    let words =
        [" ", "y", "yes", " yes", "no", " no", "pe", "\n", ""].map(|word| word.as_bytes().to_vec());
    let vocabulary = Vocabulary { words: words.to_vec(), ends: vec![8] };
    let texts = [" yes", " yespe", " no", "yes", "nope"].map(str::to_owned).to_vec();
    // Texts that the tokenizer does not encode are spelled in the fewest tokens.
    let encode = |text: &str| match text {
        " yes" => Some(vec![3]),
        "yes" => Some(vec![2]),
        "nope" => Some(vec![4, 6]),
        _ => None,
    };
    let grammars = GrammarSet::new(vocabulary, vec![Grammar::Choice(texts)], encode);
    let mut compiled = CompiledGrammarCache::new(Arc::new(grammars)).unwrap();
    // A space, or " y", would lead to " yes", too.
    assert_eq!(following(&mut compiled, &[]), [2, 3, 4, 5]);
    assert_eq!(following(&mut compiled, &[3]), [6, 8]);
    assert_eq!(following(&mut compiled, &[3, 6]), [8]);
    assert_eq!(following(&mut compiled, &[2]), [8]);
    assert_eq!(following(&mut compiled, &[4]), [6]);
    assert_eq!(following(&mut compiled, &[5]), [8]);
    let mut walk = compiled.start_matcher(0);
    walk.accept_token(0);
    assert!(walk.failure().is_some() && !walk.is_complete());
}

#[test]
fn json_has_its_schema() {
    let schema = r##"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"$ref": "#/$defs/kind"}, "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 200}, "maxItems": 3}}, "required": ["name", "kind", "ages"], "additionalProperties": false, "$defs": {"kind": {"enum": ["cat", "dog", null]}}}"##;
    let grammar = Grammar::json_schema(schema.to_owned());
    for seed in 0..40 {
        let (text, ended) = walk(&grammar, 2_000, random(seed));
        assert!(ended, "{text}");
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(value["name"].as_str().expect("a text").chars().count() <= 8, "{text}");
        assert!(matches!(value["kind"].as_str(), Some("cat" | "dog") | None), "{text}");
        let ages = value["ages"].as_array().expect("a list");
        assert!(ages.len() <= 3 && ages.iter().all(|age| age.as_u64() <= Some(200)), "{text}");
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(3), "{text}");
    }
}

#[test]
fn a_regular_expression_is_matched_as_a_whole() {
    let grammar = Grammar::Regex("[0-9]{3}-[a-c]+(x|y)".to_owned());
    for seed in 0..30 {
        let (text, ended) = walk(&grammar, 100, random(seed));
        assert!(ended, "{text}");
        let (digits, rest) = text.split_once('-').expect("a dash");
        assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        let letters = rest.trim_end_matches(['x', 'y']);
        assert!(rest.len() == letters.len() + 1 && !letters.is_empty(), "{text}");
        assert!(letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte)), "{text}");
    }
}

#[test]
fn every_token_that_ends_may_end() {
    let ends = vocabulary().ends;
    for end in ends.clone() {
        let mut done = false;
        let (text, ended) = walk(&Grammar::Choice(vec!["no".to_owned()]), 5, |allowed| {
            if allowed == ends {
                done = true;
                return end;
            }
            allowed[0]
        });
        assert_eq!((text.as_str(), ended, done), ("no", true, true));
    }
}

#[test]
fn walks_do_not_meet() {
    let mut compiled = compiled(&Grammar::Choice(vec!["ab".to_owned(), "cd".to_owned()]));
    let (mut one, mut two) = (compiled.start_matcher(0), compiled.start_matcher(0));
    let mut mask = vec![0; compiled.mask_words()];
    let allowed = |mask: &[u32]| -> Vec<u32> {
        (0..256).filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).collect()
    };
    one.fill_mask(&mut mask);
    assert_eq!(allowed(&mask), [u32::from(b'a'), u32::from(b'c')]);
    one.accept_token(u32::from(b'a'));
    two.fill_mask(&mut mask);
    assert_eq!(allowed(&mask), [u32::from(b'a'), u32::from(b'c')]);
    two.accept_token(u32::from(b'c'));
    one.fill_mask(&mut mask);
    assert_eq!(allowed(&mask), [u32::from(b'b')]);
    two.fill_mask(&mut mask);
    assert_eq!(allowed(&mask), [u32::from(b'd')]);
}

#[test]
fn what_is_no_grammar_is_refused_in_a_line() {
    let checker = Checker::new().expect("a checker");
    for wrong in [
        Grammar::json_schema("{\"type\": \"objekt\"}".to_owned()),
        Grammar::json_schema("{".to_owned()),
        Grammar::json_schema("{\"$ref\": \"#/$defs/none\"}".to_owned()),
        Grammar::Regex("(a".to_owned()),
        Grammar::Choice(Vec::new()),
    ] {
        let error = checker.check(&wrong).expect_err("refused").to_string();
        assert!(!error.is_empty() && error.lines().count() == 1, "{wrong:?}: {error}");
        println!("{error}");
    }
}
