//! Tests of constrained answers with the whole program.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::command::{Place, lines, text};

fn stderr(line: &Value) -> impl Iterator<Item = (&str, &str)> {
    let choices = line["response"]["body"]["choices"].as_array().expect("choices");
    choices.iter().map(|choice| {
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str());
        (text.expect("a text"), choice["finish_reason"].as_str().expect("a reason"))
    })
}

#[test]
fn answers_have_the_form_that_was_asked_for() {
    let place = Place::new();
    let schema = json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["cat", "dog"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        },
        "required": ["kind", "age", "names"],
        "additionalProperties": false,
        // A model of random weights would use up its tokens for spaces.
        "x-guidance": {"whitespace_flexible": false},
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "pet", "schema": schema}});
    let messages = json!([{"role": "user", "content": "A pet, please."}]);
    let bodies = [
        json!({"prompt": "Is it?", "structured_outputs": {"choice": ["yes", "no", "who knows"]}}),
        json!({"prompt": "Once upon", "max_tokens": 9, "ignore_eos": true}),
        json!({"messages": messages, "response_format": format, "max_tokens": 84}),
        json!({"prompt": "A number:", "max_tokens": 60,
            "structured_outputs": {"regex": "[1-9][0-9]{2}(,[0-9]{3}){1,2}"}}),
        json!({"prompt": "A pet:", "structured_outputs": {"json": schema}, "temperature": 1.5,
            "n": 4, "max_tokens": 100, "logprobs": 1}),
        json!({"prompt": "The end.", "response_format": {"type": "text"}, "max_tokens": 5}),
        json!({"prompt": "Is it not?", "structured_outputs": {"choice": ["yes", "no", "who knows"]},
            "temperature": 2, "n": 9}),
    ];
    let alone = place.answered(&bodies, &["--batches", "1x1"]);
    for (line, expected) in [(0, 1), (6, 9)] {
        let all: Vec<_> = stderr(&alone[line]).collect();
        assert_eq!(all.len(), expected);
        for (text, reason) in all {
            assert!(["yes", "no", "who knows"].contains(&text), "{text:?}");
            assert_eq!(reason, "stop");
        }
    }
    // Equal texts have equal tokens.
    let mut said = BTreeMap::new();
    for choice in alone[6]["response"]["body"]["choices"].as_array().expect("choices") {
        let tokens = said.entry(choice["text"].to_string()).or_insert_with(|| &choice["token_ids"]);
        assert_eq!(*tokens, &choice["token_ids"], "{}", choice["text"]);
    }
    for (text, reason) in stderr(&alone[2]).chain(stderr(&alone[4])) {
        let pet: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert!(matches!(pet["kind"].as_str(), Some("cat" | "dog")), "{text}");
        assert!(pet["age"].as_u64() <= Some(30), "{text}");
        assert!(pet["names"].as_array().is_some_and(|names| names.len() <= 2), "{text}");
        assert_eq!(reason, "stop", "{text}");
    }
    for (text, reason) in stderr(&alone[3]) {
        let digits = text.split(',').skip(1).all(|part| part.len() == 3);
        assert!(digits && text.len() >= 7 && text.parse::<u64>().is_err(), "{text:?}");
        assert_eq!(reason, "stop", "{text:?}");
    }
    // A request without a grammar is not affected by others.
    let free = place.answered(&[bodies[1].clone()], &[]);
    assert_eq!(stderr(&free[0]).collect::<Vec<_>>(), stderr(&alone[1]).collect::<Vec<_>>());
    for options in [
        &["--batches", "2x3"][..],
        &["--batches", "1x4", "--device", "emulated", "--split", "k:up"],
        &["--batches", "3x2", "--device", "emulated", "--policy", "gpu-only"],
    ] {
        let stderr = |lines: &[Value]| -> Vec<Value> {
            lines.iter().map(|line| line["response"]["body"]["choices"].clone()).collect()
        };
        assert_eq!(stderr(&place.answered(&bodies, options)), stderr(&alone), "{options:?}");
    }
}

/// On a CUDA device logits are copied to the host, where the same sampler applies the same
/// grammars.
#[test]
fn a_device_gives_them_too() {
    let place = Place::new();
    let choice = json!({"choice": ["yes", "no", "who knows"]});
    let line = |i: usize| {
        json!({"prompt": [9 + i, 30], "structured_outputs": choice, "logprobs": 2,
            "max_tokens": 12})
    };
    let input: String = (0..3).map(|i| format!("{}\n", line(i))).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
    let extra = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "1x2"];
    let done = crate::cuda::run(&place, "llama", &place.path("in.jsonl"), &extra, &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let answers = lines(&place.path("out.jsonl"));
    assert_eq!(answers.len(), 3);
    for line in &answers {
        for (text, reason) in stderr(line) {
            assert!(["yes", "no", "who knows"].contains(&text), "{text:?}");
            assert_eq!(reason, "stop");
        }
        let logprobs =
            line["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"].as_array();
        let logprobs = logprobs.expect("a list");
        assert!(!logprobs.is_empty());
        assert!(
            logprobs.iter().all(|logprob| logprob.as_f64().is_some_and(|l| l < 0.0 && l > -99.0))
        );
    }
}

/// Runs the examples of constrained answers in `docs/formats.md`, word for word.
#[test]
fn the_documented_forms_run() {
    let document = include_str!("../../docs/formats.md");
    let is_example = |line: &&str| {
        ["choice", "regex", "schema", "keys"]
            .iter()
            .any(|name| line.starts_with(&format!("{{\"custom_id\": \"{name}\"")))
    };
    let bodies: Vec<Value> = document
        .lines()
        .filter(is_example)
        .map(|line| serde_json::from_str(line).expect("an example"))
        .collect();
    assert_eq!(bodies.len(), 4);
    let answers = Place::new().answered(&bodies, &["--batches", "2x2", "--temperature", "1"]);
    let texts: Vec<&str> = answers
        .iter()
        .flat_map(stderr)
        .map(|(text, reason)| {
            assert_eq!(reason, "stop", "{text:?}");
            text
        })
        .collect();
    assert!([" yes", " no", " not always"].contains(&texts[0]), "{:?}", texts[0]);
    let date = texts[1].strip_prefix(' ').expect("a blank");
    let parts: Vec<u32> = date.split('-').map(|part| part.parse().expect("a number")).collect();
    assert!(date.len() == 10 && (1900..2100).contains(&parts[0]), "{date}");
    assert!((1..=12).contains(&parts[1]) && parts[2] < 40, "{date}");
    let cat: Value = serde_json::from_str(texts[2]).unwrap_or_else(|e| panic!("{}: {e}", texts[2]));
    assert!(cat["name"].as_str().expect("a text").chars().count() <= 8, "{cat}");
    let colours = cat["colours"].as_array().expect("a list");
    assert!(
        colours.iter().all(|colour| ["black", "white", "red"].map(Value::from).contains(colour))
    );
    assert!((1..=3).contains(&colours.len()), "{cat}");
    let hours: BTreeMap<String, u32> =
        serde_json::from_str(texts[3]).unwrap_or_else(|e| panic!("{}: {e}", texts[3]));
    assert!(hours.len() >= 2 && texts[3].matches(':').count() == hours.len(), "{}", texts[3]);
    assert!(
        hours
            .iter()
            .all(|(day, hours)| { ["mon", "tue", "wed"].contains(&day.as_str()) && *hours < 10 })
    );
}

/// Schemas in the style of other programs are enforced, and every answer ends.
#[test]
fn schemas_of_other_programs_are_followed() {
    let place = Place::new();
    let dead_end = json!({"type": "object", "properties": {"a": {"type": "null"}},
        "patternProperties": {"^a$": {}}, "required": ["a"], "additionalProperties": false});
    let union = json!({"$defs": {
        "A": {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "boolean"}},
            "required": ["k", "x"], "additionalProperties": false},
        "B": {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"],
            "additionalProperties": false}},
        "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]});
    let of = |schema: &Value, seed: usize| {
        let form = json!({"json": schema, "disable_any_whitespace": true});
        json!({"prompt": "x", "max_tokens": 60, "temperature": 2, "seed": seed,
            "structured_outputs": form})
    };
    let mut bodies: Vec<Value> = (0..12).map(|seed| of(&dead_end, seed)).collect();
    bodies.extend((0..12).map(|seed| of(&union, seed)));
    bodies.push(of(&json!({"const": "a\u{1}b\u{7f}"}), 0));
    let schema = json!({"enum": [7, 12]});
    bodies.push(json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 20,
        "response_format": {"type": "json_object", "schema": schema}}));
    let answers = place.answered(&bodies, &["--batches", "2x4"]);
    let said: Vec<Value> = answers
        .iter()
        .map(|line| {
            let (text, reason) = stderr(line).next().expect("a choice");
            assert_eq!(reason, "stop", "{line}");
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
        })
        .collect();
    assert!(said[..12].iter().all(|value| *value == json!({"a": null})), "{said:?}");
    for value in &said[12..24] {
        match value["k"].as_str() {
            Some("a") => assert!(value["x"].is_boolean(), "{value}"),
            Some("b") => assert_eq!(*value, json!({"k": "b"})),
            _ => panic!("{value}"),
        }
    }
    assert_eq!(said[24], json!("a\u{1}b\u{7f}"));
    assert!([json!(7), json!(12)].contains(&said[25]), "{}", said[25]);
}
