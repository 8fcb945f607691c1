//! Keys of objects, and what stands between the parts of a JSON text.

use std::collections::HashSet;
use std::sync::Arc;

use grammar::{Checker, Compiled, Grammar, Grammars, Vocabulary, Whitespace};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

/// Bytes, and words in which keys end and begin; the last token ends.
fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for word in ["{\"", "\":", "\":1", ",\"", "\":1,\"a", "a\":", "ab\"", "\",\"", "}}", "    "] {
        words.push(word.as_bytes().to_vec());
    }
    words.push(Vec::new());
    let end = words.len() as u32 - 1;
    Vocabulary { words, ends: vec![end] }
}

/// Texts of answers that prefer some bytes and otherwise choose at random, those that are complete.
fn texts(grammar: &Grammar, count: u64, prefers: &str) -> Vec<String> {
    let vocabulary = vocabulary();
    let end = vocabulary.ends[0];
    let words = vocabulary.words.clone();
    let grammars = Grammars::new(vocabulary, vec![grammar.clone()], |_| None);
    let mut compiled = Compiled::new(Arc::new(grammars)).unwrap();
    let mut mask = vec![0; compiled.mask_words()];
    let mut found = Vec::new();
    for seed in 0..count {
        let mut state = seed * 2 + 1;
        let mut walk = compiled.begin(0);
        let mut text = Vec::new();
        for _ in 0..400 {
            walk.allow(&mut mask);
            let is_set = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
            let allowed: Vec<u32> = (0..=end).filter(is_set).collect();
            let liked = |token: &&u32| {
                words[**token as usize].iter().all(|byte| prefers.as_bytes().contains(byte))
            };
            let liked: Vec<u32> = allowed.iter().filter(liked).copied().collect();
            let from = if liked.is_empty() { &allowed } else { &liked };
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let token = from[(state >> 33) as usize % from.len()];
            if token == end {
                assert_eq!(walk.failure(), None);
                if walk.is_complete() {
                    found.push(String::from_utf8(text).unwrap());
                }
                break;
            }
            text.extend(&words[token as usize]);
            walk.take(token);
        }
    }
    found
}

fn schema(schema: Value) -> Grammar {
    Grammar::json_schema(schema.to_string())
}

/// The keys of an object as they are written.
struct Written(Vec<String>);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Written, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Written;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, _)) = map.next_entry::<String, Value>()? {
                    keys.push(key);
                }
                Ok(Written(keys))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

#[test]
fn no_key_is_said_twice() {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9});
    for grammar in [
        schema(json!({"type": "object", "additionalProperties": number, "minProperties": 3})),
        schema(json!({"type": "object", "properties": {"a": number}, "required": ["a"],
            "additionalProperties": number, "minProperties": 4, "maxProperties": 5})),
        schema(json!({"type": "object", "patternProperties": {"^[ab]{1,2}$": number},
            "additionalProperties": false, "minProperties": 3})),
    ] {
        let texts = texts(&grammar, 60, "{}\":,ab1");
        assert!(texts.len() > 20, "{} are complete", texts.len());
        for text in texts {
            let Written(keys) =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let different = keys.iter().collect::<HashSet<_>>().len();
            assert!(different == keys.len() && different >= 3, "{text}");
        }
    }
}

#[test]
fn a_text_that_says_a_key_twice_is_wrong() {
    let mut checker = Checker::new().unwrap();
    let any = schema(json!({"type": "object"}));
    checker.check_text(&any, br#"{"a":1,"b":{"a":1}}"#).unwrap();
    let told = checker.check_text(&any, br#"{"a":1,"b":2,"a":3}"#).unwrap_err().to_string();
    assert!(told.contains("`a`"), "{told}");
}

/// A declared key cannot come in another spelling, where anything may be its value.
#[test]
fn a_key_has_one_spelling() {
    let mut checker = Checker::new().unwrap();
    let declared = schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    checker.check_text(&declared, br#"{"b":"x"}"#).unwrap();
    checker.check_text(&declared, br#"{"\u0061":"x"}"#).unwrap_err();
}

#[test]
fn between_parts_there_is_a_space_at_most() {
    let mut checker = Checker::new().unwrap();
    let list = json!({"type": "array", "items": {"type": "integer"}}).to_string();
    let of = |whitespace| Grammar::JsonSchema(list.clone(), whitespace);
    let line = Whitespace::Pattern("[ \n]{0,3}".to_owned());
    let everything = Whitespace::Pattern(r"\s*".to_owned());
    for (whitespace, text, expected) in [
        (Whitespace::OneSpace, "[1, 2]", true),
        (Whitespace::OneSpace, "[ 1 , 2 ]", true),
        (Whitespace::OneSpace, "[1,2]", true),
        (Whitespace::OneSpace, "[1,  2]", false),
        (Whitespace::OneSpace, "[1,\n2]", false),
        (Whitespace::Nothing, "[1,2]", true),
        (Whitespace::Nothing, "[1, 2]", false),
        (line.clone(), "[1,\n  2]", true),
        (line, "[1,\n   2]", false),
    ] {
        let told = checker.check_text(&of(whitespace.clone()), text.as_bytes());
        assert_eq!(told.is_ok(), expected, "{whitespace:?} {text}");
    }
    let told = checker.check(&of(everything)).unwrap_err().to_string();
    assert!(told.contains("more than whitespace"), "{told}");
    // The schema may say it itself.
    let own = json!({"type": "array", "x-guidance": {"whitespace_pattern": "\n"}});
    checker.check_text(&schema(own), b"[1,\n2]").unwrap();
}
