//! Forms too large or deep are refused before anything is compiled.

use grammar::{Checker, Grammar};
use serde_json::{Map, Value, json};

fn refusal(grammar: &Grammar) -> String {
    Checker::new().unwrap().check(grammar).unwrap_err().to_string()
}

/// Definitions each of which refers to the next.
fn linked(count: usize, link: impl Fn(Value) -> Value) -> Grammar {
    let mut defs = Map::new();
    for index in 0..count {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
        defs.insert(format!("d{index}"), link(next));
    }
    defs.insert(format!("d{count}"), json!({"type": "null"}));
    Grammar::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": defs}).to_string())
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
    checker.check(&Grammar::JsonSchema(list.to_string())).unwrap();
    checker.check(&linked(20, |next| json!({"anyOf": [next]}))).unwrap();
}

#[test]
fn references_to_elsewhere_are_refused() {
    let schema = json!({"$ref": "https://example.com/a.json"}).to_string();
    let told = refusal(&Grammar::JsonSchema(schema));
    assert!(told.contains("only references within the schema"), "{told}");
}

#[test]
fn large_regexes_and_choices_are_refused() {
    for grammar in [
        Grammar::Regex("a".repeat(20_000)),
        Grammar::Regex(format!("{}a{}", "(".repeat(100), ")".repeat(100))),
        Grammar::Choice(vec!["a".to_owned(); 5_000]),
        Grammar::Choice(vec!["a".repeat(1 << 19)]),
    ] {
        let told = refusal(&grammar);
        assert!(told.contains("exceeds the bound of"), "{told}");
    }
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
        assert!(accepted(&Grammar::Choice((0..4000).map(|i| format!("choice {i}")).collect())));
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(checks).unwrap();
    thread.join().unwrap();
}
