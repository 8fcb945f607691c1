//! Tests of the keys of objects, and of whitespace in JSON texts.

use std::collections::HashSet;
use std::sync::Arc;

use grammar::{Checker, CompiledGrammarCache, Grammar, GrammarSet, Vocabulary, Whitespace};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

/// Returns a vocabulary of bytes and of words in which keys end and begin; the last token ends an
/// answer.
fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for word in ["{\"", "\":", "\":1", ",\"", "\":1,\"a", "a\":", "ab\"", "\",\"", "}}", "    "] {
        words.push(word.as_bytes().to_vec());
    }
    words.push(Vec::new());
    let end = words.len() as u32 - 1;
    Vocabulary { words, ends: vec![end] }
}

/// Returns the complete texts of random answers that prefer tokens of the bytes in `prefers`.
fn texts(grammar: &Grammar, count: u64, prefers: &str) -> Vec<String> {
    ended(grammar, count, prefers)
        .into_iter()
        .filter_map(|(text, whole)| whole.then_some(text))
        .collect()
}

/// Returns the texts of all answers that end by themselves, with true if they are complete.
fn ended(grammar: &Grammar, count: u64, prefers: &str) -> Vec<(String, bool)> {
    let vocabulary = vocabulary();
    let end = vocabulary.ends[0];
    let words = vocabulary.words.clone();
    let grammars = GrammarSet::new(vocabulary, vec![grammar.clone()], |_| None);
    let mut compiled = CompiledGrammarCache::new(Arc::new(grammars)).unwrap();
    let mut mask = vec![0; compiled.mask_words()];
    let mut found = Vec::new();
    for seed in 0..count {
        let mut state = seed * 2 + 1;
        let mut walk = compiled.start_matcher(0);
        let mut text = Vec::new();
        for _ in 0..400 {
            walk.fill_mask(&mut mask);
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
                found.push((String::from_utf8(text).unwrap(), walk.is_complete()));
                break;
            }
            text.extend(&words[token as usize]);
            walk.accept_token(token);
        }
    }
    found
}

fn schema(schema: Value) -> Grammar {
    Grammar::json_schema(schema.to_string())
}

/// The keys of an object in the order in which they are written.
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

/// A declared key cannot be written with another spelling where other keys may have any value.
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
    // The schema may specify the whitespace itself.
    let own = json!({"type": "array", "x-guidance": {"whitespace_pattern": "\n"}});
    checker.check_text(&schema(own), b"[1,\n2]").unwrap();
}

/// Returns true if a text is an object with at least `least` keys, all different and valid by
/// `is_key`.
fn is_right(text: &str, least: usize, is_key: fn(&str) -> bool) -> bool {
    let Written(keys) = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let different = keys.iter().collect::<HashSet<_>>().len();
    different == keys.len() && different >= least && keys.iter().all(|key| is_key(key))
}

/// Schema of an object's keys, minimum number of keys, and predicate that valid keys satisfy.
type Case = (Value, usize, fn(&str) -> bool);

/// If few keys are possible, no key is begun that cannot be completed.
#[test]
fn keys_that_run_out_end_the_object() {
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let cases: [Case; 6] = [
        (
            json!({"patternProperties": {"^[ab]$": number}, "additionalProperties": false}),
            0,
            |key| ["a", "b"].contains(&key),
        ),
        (
            json!({"patternProperties": {"^(a|ab|abb|b)$": number},
                "additionalProperties": false, "minProperties": 4}),
            4,
            |key| ["a", "ab", "abb", "b"].contains(&key),
        ),
        (
            json!({"patternProperties": {"^a$": number, "^b[ab1]$": {"type": "null"}},
                "additionalProperties": false, "minProperties": 3}),
            3,
            |key| ["a", "ba", "bb", "b1"].contains(&key),
        ),
        (
            json!({"properties": {"a": number}, "required": ["a"], "minProperties": 2,
                "patternProperties": {"^[ab]$": number}, "additionalProperties": false}),
            2,
            |key| ["a", "b"].contains(&key),
        ),
        // The keys that match no pattern.
        (
            json!({"patternProperties": {"[^ab]|..": false},
                "additionalProperties": number, "minProperties": 3}),
            3,
            |key| ["", "a", "b"].contains(&key),
        ),
        (
            json!({"patternProperties": {"^\\\\?\"?a$": number}, "additionalProperties": false,
                "minProperties": 4}),
            4,
            |key| ["a", "\\a", "\"a", "\\\"a"].contains(&key),
        ),
    ];
    for (mut keys, least, is_key) in cases {
        keys["type"] = json!("object");
        for whitespace in [Whitespace::OneSpace, Whitespace::Pattern("[ \n]{0,3}".to_owned())] {
            let grammar = Grammar::JsonSchema(keys.to_string(), whitespace);
            Checker::new().unwrap().check(&grammar).unwrap_or_else(|e| panic!("{keys}: {e}"));
            for prefers in ["\":,ab1", "{}\":,ab1 \\"] {
                let ended = ended(&grammar, 60, prefers);
                assert!(ended.len() > 20, "{} ended of {keys}", ended.len());
                for (text, is_whole) in ended {
                    assert!(is_whole, "{text} of {keys}");
                    assert!(is_right(&text, least, is_key), "{text} of {keys}");
                }
            }
        }
    }
}

#[test]
fn objects_of_more_keys_than_can_be_said_are_refused() {
    let closed = |min: usize| {
        json!({"type": "object", "patternProperties": {"^[ab]{1,2}$": {}, "^c": false},
            "additionalProperties": false, "minProperties": min})
    };
    let checker = Checker::new().unwrap();
    let check = |schema: Value| checker.check(&Grammar::json_schema(schema.to_string()));
    check(closed(6)).unwrap();
    let apart = |min: usize| {
        let mut keys = closed(0);
        keys["minProperties"] = json!(0);
        json!({"allOf": [{"type": "object", "minProperties": min}, keys]})
    };
    check(apart(6)).unwrap();
    for wrong in [
        closed(7),
        apart(7),
        json!({"type": "array", "items": closed(7)}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}},
            "$defs": {"b": closed(7)}}),
        json!({"anyOf": [{"type": "null"}, closed(8)]}),
    ] {
        let told = check(wrong.clone()).expect_err("refused").to_string();
        assert!(told.contains("but it can have only 6 keys"), "{wrong}: {told}");
    }
    // Declared keys count, and unlimited keys always suffice.
    let declared = |min: usize| {
        json!({"type": "object", "properties": {"a": {}, "z": {}}, "required": ["a", "z"],
            "patternProperties": {"^[ab]$": {}}, "additionalProperties": false,
            "minProperties": min})
    };
    check(declared(3)).unwrap();
    check(declared(4)).unwrap_err();
    check(json!({"type": "object", "patternProperties": {"^x*y$": {}},
        "additionalProperties": false, "minProperties": 200}))
    .unwrap();
    let told = check(json!({"type": "object", "patternProperties": {"^x": {}},
        "additionalProperties": false, "minProperties": 1_000_000}));
    assert!(told.unwrap_err().to_string().contains("exceeds the bound of"));
}
