//! Tests that every generated answer is complete and valid against the original schema, by a
//! validator that is independent of the parser.

use std::sync::Arc;

use grammar::{Checker, CompiledGrammarCache, Grammar, GrammarSet, Vocabulary, Whitespace};
use schema_validator::SchemaValidator;
use serde_json::{Value, json};

/// Maximum number of tokens of an answer; after `STEERED` tokens the shortest end is chosen.
const LONGEST: usize = 1_200;
const STEERED: usize = 60;

/// Returns a vocabulary of bytes and of words in which parts of a JSON text end and begin; the last
/// token ends an answer.
fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let more = [
        "{\"", "\":", "\": ", "\":1", ",\"", ", \"", "\",\"", "}}", "]}", "null", "true", "[{\"",
        "\\u00", "\\u", "1,", "\"a\"", "\"},", "ab", "12", "\"]",
    ];
    words.extend(more.map(|word| word.as_bytes().to_vec()));
    words.push(Vec::new());
    let end = words.len() as u32 - 1;
    Vocabulary { words, ends: vec![end] }
}

/// Returns the texts of random answers to a grammar, with true if they are complete.
fn answers(grammar: &Grammar, count: u64) -> Vec<(Vec<u8>, bool)> {
    let vocabulary = vocabulary();
    let (end, words) = (vocabulary.ends[0], vocabulary.words.clone());
    let grammars = GrammarSet::new(vocabulary, vec![grammar.clone()], |_| None);
    let mut compiled = CompiledGrammarCache::new(Arc::new(grammars)).expect("compiles");
    let mut mask = vec![0; compiled.mask_words()];
    (0..count)
        .map(|seed| {
            let mut state = seed * 77 + 1;
            let mut walk = compiled.start_matcher(0);
            let mut text = Vec::new();
            for step in 0..LONGEST {
                walk.fill_mask(&mut mask);
                assert_eq!(walk.failure(), None, "{grammar:?} behind {}", shown(&text));
                let is_set = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
                let allowed: Vec<u32> = (0..=end).filter(is_set).collect();
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let pick = (state >> 33) as usize;
                let token = if step < STEERED {
                    allowed[pick % allowed.len()]
                } else {
                    // Closing tokens are preferred, then those that add little.
                    let in_string = is_in_string(&text);
                    let closes = |token: &u32| match words[*token as usize].as_slice() {
                        [] => 0,
                        b"\"" if in_string => 1,
                        b"}" | b"]" if !in_string => 1,
                        b"0" | b"1" | b"a" | b":" | b"\"" => 3,
                        word if word.iter().all(|byte| (0x20..0x7f).contains(byte)) => 4,
                        _ => 5,
                    };
                    let best = allowed.iter().map(closes).min().expect("a token");
                    let best: Vec<u32> =
                        allowed.into_iter().filter(|t| closes(t) == best).collect();
                    best[pick % best.len()]
                };
                if token == end {
                    return (text, walk.is_complete());
                }
                text.extend(&words[token as usize]);
                walk.accept_token(token);
            }
            (text, false)
        })
        .collect()
}

fn is_in_string(text: &[u8]) -> bool {
    let (mut is_in, mut is_escaped) = (false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in => is_escaped = true,
            b'"' => is_in = !is_in,
            _ => {}
        }
    }
    is_in
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Generates answers to a schema, validates them and returns their number.
fn hold(schema: &Value, whitespace: &Whitespace) -> usize {
    let grammar = Grammar::JsonSchema(schema.to_string(), whitespace.clone());
    let mut checker = Checker::new().expect("a checker");
    checker.check(&grammar).unwrap_or_else(|error| panic!("{schema}: {error}"));
    assert_eq!(grammar.unenforced(), Vec::<String>::new(), "{schema}");
    let validator = SchemaValidator::new(schema);
    let validator = validator.unwrap_or_else(|error| panic!("{schema}: {error}"));
    let answers = answers(&grammar, 40);
    for (text, is_complete) in &answers {
        assert!(is_complete, "{schema}: {} does not end", shown(text));
        let value: Value = serde_json::from_slice(text)
            .unwrap_or_else(|error| panic!("{schema}: {}: {error}", shown(text)));
        assert_eq!(validator.validate(&value), Ok(()), "{schema}: {} is none", shown(text));
        checker.check_text(&grammar, text).unwrap_or_else(|error| panic!("{schema}: {error}"));
    }
    answers.len()
}

/// Returns schemas of strings with control characters and patterns.
fn texts() -> Vec<Value> {
    vec![
        json!({"const": "a\u{1}b"}),
        json!({"enum": ["\u{0}", "\u{7f}", "x\u{1f}\n", "plain"]}),
        json!({"const": {"a\u{2}": "\u{3}"}}),
        json!({"type": "object", "properties": {"a": {"const": "\u{1}"}, "b": {"type": "integer"}},
            "required": ["a"], "additionalProperties": {"type": "boolean"}}),
        json!({"type": "string", "pattern": "^\u{1}[0-9]$"}),
        json!({"type": "string", "pattern": r"^\x02?[\x03-\x06]{2}$"}),
        json!({"type": "string", "pattern": "^.{2}$"}),
    ]
}

/// Returns schemas with alternatives, some of them references.
fn alternatives() -> Vec<Value> {
    let object = |name: &str, kind: Value| {
        json!({"type": "object", "properties": {"kind": {"const": name}, "it": kind},
            "required": ["kind"], "additionalProperties": false})
    };
    let cat = object("cat", json!({"type": "integer", "minimum": 0, "maximum": 9}));
    let dog = object("dog", json!({"type": "boolean"}));
    let of = |name: &str| {
        json!({"type": "object", "properties": {name: {"type": "null"}}, "required": [name],
            "additionalProperties": false})
    };
    vec![
        json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "$defs": {"cat": cat, "dog": dog},
            "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/cat"}}}),
        json!({"type": "array", "maxItems": 2, "items": {"oneOf": [{"$ref": "#/$defs/cat"},
            {"type": "null"}, {"$ref": "#/$defs/dog"}]}, "$defs": {"cat": cat, "dog": dog}}),
        json!({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}],
            "anyOf": [{"type": "string"}, {"type": "number"}]}),
        json!({"type": "object", "oneOf": [of("a"), of("b")]}),
    ]
}

/// Returns schemas of objects with few possible keys.
fn keys() -> Vec<Value> {
    let nothing = json!({"type": "null"});
    vec![
        json!({"type": "object", "properties": {"a": nothing}, "patternProperties": {"^a$": {}},
            "required": ["a"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": nothing, "b": nothing},
            "patternProperties": {"^[ab]$": {}}, "required": ["a"],
            "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^[ab]$": nothing},
            "additionalProperties": false, "minProperties": 1}),
        json!({"type": "object", "propertyNames": {"enum": ["x", "y"]},
            "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "propertyNames": {"pattern": "^[xy]$"},
            "additionalProperties": {"type": "boolean"}}),
    ]
}

/// Returns schemas with keywords that have no effect.
fn notes() -> Vec<Value> {
    vec![
        json!({"type": "string", "format": "password", "title": "T", "description": "D",
            "examples": ["e"], "$comment": "c", "deprecated": true, "readOnly": true,
            "contentMediaType": "text/plain", "maxLength": 4}),
        json!({"type": "object", "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9},
            "maxProperties": 2}),
        json!({"type": "array", "uniqueItems": true, "maxItems": 1, "items": {"type": "null"}}),
        json!({"type": "integer", "format": "int64", "not": false, "if": {}, "minContains": 2,
            "dependentRequired": {}, "unevaluatedItems": true}),
        json!({"type": "object", "properties": {"a": {"type": "null"}},
            "unevaluatedProperties": false}),
        json!({"type": ["null", "boolean", "string"], "x-unknown": 5}),
    ]
}

fn numbers() -> Vec<Value> {
    vec![
        json!({"type": "integer", "minimum": 9007199254740990_u64,
            "maximum": 9007199254740995_u64}),
        json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        json!({"type": "integer", "minimum": 9223372036854775000_u64}),
        json!({"type": "integer", "exclusiveMinimum": 18014398509481985_u64,
            "exclusiveMaximum": 18014398509482003_u64}),
        json!({"enum": [9007199254740995_u64, "a", -9007199254740999_i64]}),
        json!({"const": 9007199254740993_u64}),
        json!({"type": "number", "multipleOf": 0.5, "minimum": -3, "maximum": 3}),
    ]
}

/// Returns schemas of nested values.
fn nested() -> Vec<Value> {
    vec![
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"},
            "never": {"$ref": "#/$defs/never"}}, "additionalProperties": false},
            "never": {"type": "object", "properties": {"again": {"$ref": "#/$defs/never"}},
                "required": ["again"]}}}),
        json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/endless"}], "$defs": {
            "endless": {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}}}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"},
            "minItems": 1, "maxItems": 3}),
    ]
}

fn schemas() -> Vec<Value> {
    [texts(), alternatives(), keys(), notes(), numbers(), nested()].concat()
}

#[test]
fn what_is_said_has_the_schema() {
    for whitespace in [Whitespace::OneSpace, Whitespace::Nothing] {
        let said: usize = schemas().iter().map(|schema| hold(schema, &whitespace)).sum();
        assert_eq!(said, 40 * schemas().len());
    }
}

/// Tests all control characters, each in a string of its own.
#[test]
fn no_character_of_a_text_is_lost() {
    let checker = Checker::new().expect("a checker");
    for character in (0..=0x20).chain([0x7f, 0x80, 0x2028]).filter_map(char::from_u32) {
        let wanted = json!({"a": format!("x{character}"), "b": [format!("{character}y")]});
        let grammar = Grammar::json_schema(json!({"const": wanted}).to_string());
        checker.check(&grammar).expect("a form");
        for (text, is_complete) in answers(&grammar, 3) {
            assert!(is_complete, "{character:?}: {}", shown(&text));
            let value: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(value, wanted);
        }
    }
}

/// A declared key cannot be written with another spelling if the schema contains control
/// characters.
#[test]
fn a_key_keeps_its_one_spelling() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"},
        "b": {"const": "\u{1}"}}, "additionalProperties": {"type": "string", "maxLength": 2}});
    let grammar = Grammar::json_schema(schema.to_string());
    let validator = SchemaValidator::new(&schema).expect("a schema");
    for (text, _) in answers(&grammar, 300) {
        let Ok(value) = serde_json::from_slice::<Value>(&text) else { continue };
        assert_eq!(validator.validate(&value), Ok(()), "{}", shown(&text));
    }
}

#[test]
fn what_leads_nowhere_is_refused_when_it_is_read() {
    let checker = Checker::new().expect("a checker");
    for (schema, words) in [
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                "b": {"$ref": "#/$defs/a"}}}),
            "refers back to itself",
        ),
        (json!({"$ref": "#"}), "refers back to itself"),
        (json!({"anyOf": [{"type": "null"}, {"$ref": "#"}]}), "refers back to itself"),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
            "without end",
        ),
        (json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "without end"),
        (json!({"type": "integer", "minimum": u64::MAX}), "beyond"),
        (json!({"const": u64::MAX}), "too large"),
        (
            json!({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}),
            "Unimplemented keys",
        ),
        (json!({"contains": {"const": 1}}), "contains"),
        (json!({"type": "string", "pattern": "(?=a)"}), "look-around"),
    ] {
        let told = checker.check(&Grammar::json_schema(schema.to_string()));
        let told = told.expect_err("refused").to_string();
        assert!(told.contains(words) && told.lines().count() == 1, "{schema}: {told}");
    }
}

#[test]
fn what_is_not_held_is_looked_at_in_the_end() {
    let mut checker = Checker::new().expect("a checker");
    for (schema, right, wrong, name) in [
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            "[1, 2]",
            "[1, 1]",
            "`uniqueItems`",
        ),
        (
            json!({"oneOf": [{"type": "integer", "minimum": 2},
                {"type": "integer", "maximum": 3}]}),
            "5",
            "2",
            "`oneOf`",
        ),
    ] {
        let grammar = Grammar::json_schema(schema.to_string());
        checker.check(&grammar).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(grammar.unenforced()[0].contains(name), "{:?}", grammar.unenforced());
        checker.check_text(&grammar, right.as_bytes()).expect("right");
        let told = checker.check_text(&grammar, wrong.as_bytes()).expect_err("wrong").to_string();
        assert!(told.contains("does not match the schema"), "{told}");
    }
}

/// The schema of a function's arguments is enforced as far as possible, whatever it contains.
#[test]
fn arguments_are_held_as_far_as_they_can_be() {
    let mut checker = Checker::new().expect("a checker");
    let of = |key: &str, schema: Value| {
        json!({"type": "object", "properties": {key: schema}, "required": [key],
            "additionalProperties": false})
    };
    for (schema, right, wrong) in [
        (of("a", json!({"not": {"const": 1}})), r#"{"a": 2}"#, r#"{"a": 1}"#),
        (of("a", json!({"type": "string", "pattern": "^(?!x)"})), r#"{"a": "y"}"#, r#"{"a": "x"}"#),
        (
            of("a", json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
            r#"{"a": ["x"]}"#,
            r#"{"a": ["x", "x"]}"#,
        ),
        (
            of("a", json!({"if": {"type": "integer"}, "then": {"minimum": 3}})),
            r#"{"a": 3}"#,
            r#"{"a": 2}"#,
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
            "minProperties": 2}),
            r#"{"a": null, "b": null}"#,
            r#"{"a": null}"#,
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"},
            "b$": {"minimum": 3}}}),
            r#"{"ab": 4}"#,
            r#"{"ab": 1}"#,
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x~1y"}},
            "$defs": {"x/y": {"type": "null"}}}),
            r#"{"a": null}"#,
            r#"{"a": 1}"#,
        ),
        (of("a", json!({"const": u64::MAX})), r#"{"a": 18446744073709551615}"#, r#"{"a": 5}"#),
    ] {
        let grammar = Grammar::Arguments(schema.to_string());
        checker.check(&grammar).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(!grammar.unenforced().is_empty(), "{schema}");
        checker
            .check_text(&grammar, right.as_bytes())
            .unwrap_or_else(|error| panic!("{schema} {right}: {error}"));
        checker.check_text(&grammar, wrong.as_bytes()).expect_err(wrong);
    }
}
