//! Tests that grammars that are too large or deep are refused before they are compiled.

use std::time::{Duration, Instant};

use grammar::{Checker, Grammar};
use serde_json::{Map, Value, json};

fn refusal(grammar: &Grammar) -> String {
    Checker::new().unwrap().check(grammar).unwrap_err().to_string()
}

/// Returns definitions that each refer to the next one.
fn linked(count: usize, link: impl Fn(Value) -> Value) -> Grammar {
    let mut defs = Map::new();
    for index in 0..count {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
        defs.insert(format!("d{index}"), link(next));
    }
    defs.insert(format!("d{count}"), json!({"type": "null"}));
    Grammar::json_schema(json!({"$ref": "#/$defs/d0", "$defs": defs}).to_string())
}

#[test]
fn deep_schemas_are_refused() {
    for grammar in [
        linked(9_000, |next| next),
        linked(3_000, |next| json!({"type": "object", "properties": {"a": next}})),
        linked(5_000, |next| json!({"anyOf": [next]})),
        linked(30_000, |next| next),
    ] {
        let told = refusal(&grammar);
        assert!(told.contains("exceeds the bound of"), "{told}");
    }
}

#[test]
fn recursive_schemas_are_followed() {
    let list = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    let checker = Checker::new().unwrap();
    checker.check(&Grammar::json_schema(list.to_string())).unwrap();
    checker.check(&linked(20, |next| json!({"anyOf": [next]}))).unwrap();
}

#[test]
fn references_to_elsewhere_are_refused() {
    let schema = json!({"$ref": "https://example.com/a.json"}).to_string();
    let told = refusal(&Grammar::json_schema(schema));
    assert!(told.contains("only references within the schema"), "{told}");
}

#[test]
fn large_regexes_and_choices_are_refused() {
    for grammar in [
        Grammar::Regex("a".repeat(20_000)),
        Grammar::Regex(format!("{}a{}", "(".repeat(200), ")".repeat(200))),
        Grammar::Regex(format!("{}a{}", "[".repeat(200), "]".repeat(200))),
        Grammar::Regex(format!("(?i){}", r"[\p{L}]".repeat(400))),
        Grammar::json_schema(
            json!({"pattern": format!("{}a{}", "(".repeat(200), ")".repeat(200))}).to_string(),
        ),
        Grammar::Choice(vec!["a".to_owned(); 5_000]),
        Grammar::Choice(vec!["a".repeat(1 << 19)]),
    ] {
        let told = refusal(&grammar);
        assert!(told.contains("exceeds the bound of"), "{told}");
    }
}

/// Returns an object with `declared` keys, `required` of which are required.
fn wide(declared: usize, required: usize) -> Value {
    let names = (0..declared).map(|index| format!("p{index}"));
    let properties: Map<_, _> = names.clone().map(|name| (name, json!({}))).collect();
    let required: Vec<String> = names.take(required).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// Grammars with many parts side by side would overflow the stack or take minutes, like deep ones.
#[test]
fn wide_forms_are_refused_in_time() {
    let patterns = |count| (0..count).map(|i| (format!("^k{i}$"), json!({})));
    for schema in [
        wide(9_000, 0),
        wide(9_000, 9_000),
        json!({"allOf": [wide(400, 0), {"$ref": "#/$defs/a"}], "$defs": {"a": wide(400, 0)}}),
        json!({"type": "object", "patternProperties": Map::from_iter(patterns(400))}),
        json!({"allOf": vec![json!({"type": "string", "pattern": "a.b"}); 2_000]}),
        json!({"type": "string", "pattern": ".*".repeat(8_000)}),
        json!({"type": "object", "additionalProperties": false, "minProperties": 2,
            "patternProperties": {"^a{5000}$": {}}}),
    ] {
        let begun = Instant::now();
        let told = refusal(&Grammar::json_schema(schema.to_string()));
        assert!(told.contains("exceeds the bound of"), "{told}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}: {told}", begun.elapsed());
    }
    let told = refusal(&Grammar::Regex("a?b*".repeat(4_000)));
    assert!(told.contains("exceeds the bound of"), "{told}");
}

/// The parser computes remainders in 32 bits; larger ones would be those of other numbers.
#[test]
fn multiples_that_the_parser_cannot_count_are_refused() {
    let checker = Checker::new().unwrap();
    let check = |multiples: &[f64]| {
        let of = |number: &f64| json!({"type": "number", "multipleOf": number});
        let all: Vec<Value> = multiples.iter().map(of).collect();
        checker.check(&Grammar::json_schema(json!({"allOf": all}).to_string()))
    };
    for fine in [&[0.01][..], &[5.0], &[0.25], &[3.0, 4.0], &[0.001], &[1000.0]] {
        check(fine).unwrap_or_else(|error| panic!("{fine:?}: {error}"));
    }
    for wrong in [&[1e-9][..], &[0.1234567], &[65_537.0, 65_539.0], &[4e9], &[1e-5, 7001.0]] {
        let told = check(wrong).expect_err("refused").to_string();
        let refused = told.contains("exceeds the bound of") || told.contains("decimals");
        assert!(refused && told.contains("multipleOf"), "{wrong:?}: {told}");
    }
}

/// Accepted grammars can be followed: the parser's own bounds are no narrower.
#[test]
fn the_widest_objects_can_be_begun() {
    let begin = || {
        for schema in [wide(480, 0), wide(2_000, 2_000), wide(600, 300)] {
            let grammar = Grammar::json_schema(schema.to_string());
            let mut checker = Checker::new().unwrap();
            checker.check(&grammar).unwrap();
            let told = checker.check_text(&grammar, br#"{"p0":1"#).unwrap_err().to_string();
            assert!(told.contains("before it is complete"), "{told}");
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(begin).unwrap();
    thread.join().unwrap();
}

#[test]
fn the_deepest_and_largest_that_are_accepted_compile_on_a_small_stack() {
    let checks = || {
        let checker = Checker::new().unwrap();
        let accepted = |grammar: &Grammar| match checker.check(grammar) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.to_string().contains("exceeds the bound of"), "{error}");
                false
            }
        };
        let objects = |n| linked(n, |next| json!({"type": "object", "properties": {"a": next}}));
        let deepest = (1..60).filter(|n| accepted(&objects(*n))).max().unwrap();
        assert!((25..60).contains(&deepest), "{deepest}");
        for (open, close) in
            [("(", ")"), ("(a", ")*"), ("(?:a|(b", "))"), ("[a&&[^b", "]]"), ("(", "{2}){3}")]
        {
            let nested = |n: usize| {
                let text = format!("{}c{}", open.repeat(n), close.repeat(n));
                [
                    Grammar::Regex(text.clone()),
                    Grammar::json_schema(json!({"pattern": text}).to_string()),
                ]
            };
            let deepest = (1..200).filter(|n| nested(*n).iter().all(accepted)).max().unwrap();
            assert!((25..160).contains(&deepest), "{deepest} of {open}");
        }
        assert!(accepted(&Grammar::Choice((0..4000).map(|i| format!("choice {i}")).collect())));
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(checks).unwrap();
    thread.join().unwrap();
}

#[test]
fn brackets_within_a_class_are_no_groups() {
    Checker::new().unwrap().check(&Grammar::Regex("[(]".repeat(300))).unwrap();
}

/// Returns `count` schemas that each refer to the next one by its anchor.
fn anchored(count: usize, keyword: &str, anchor: &str) -> Grammar {
    let mut defs = Map::new();
    for index in 0..count {
        let next = json!({anchor: format!("a{index}"), keyword: format!("#a{}", index + 1)});
        defs.insert(format!("d{index}"), next);
    }
    Grammar::json_schema(json!({keyword: "#a0", "$defs": defs}).to_string())
}

#[test]
fn anchors_are_not_followed() {
    for (keyword, anchor, words) in [
        ("$ref", "$anchor", "only references within the schema"),
        ("$dynamicRef", "$dynamicAnchor", "Unimplemented keys"),
        ("$recursiveRef", "$anchor", "Unimplemented keys"),
    ] {
        for count in [1, 5_000] {
            let told = refusal(&anchored(count, keyword, anchor));
            assert!(told.contains(words), "{told}");
        }
    }
    // An anchor without references has no effect.
    let schema = json!({"$anchor": "a", "type": "null"}).to_string();
    Checker::new().unwrap().check(&Grammar::json_schema(schema)).unwrap();
}

#[test]
fn references_that_readers_take_apart_differently_are_refused() {
    for to in ["#/$defs/a~1b", "#/$defs/a%2Fb"] {
        let schema = json!({"$ref": to, "$defs": {"a/b": {"type": "null"}}}).to_string();
        let told = refusal(&Grammar::json_schema(schema));
        assert!(told.contains("is not followed"), "{told}");
    }
}
