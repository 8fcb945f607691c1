//! Tests of randomly changed lines of a job.

use serde_json::{Value, json};

use super::mutate::{self, Random};
use super::{copy_of, from_environment, run};
use crate::command::{Place, lines};

/// Default number of mutations.
const CASES: u64 = 2000;

fn seeds() -> Vec<Value> {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 3}},
        "$defs": {"b": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[a-c]{2}$"}]}},
    });
    vec![
        json!({"prompt": "a b c", "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 7}),
        json!({"prompt": [5, 6, 7], "max_tokens": 2, "stop": ["x", "yz"], "logprobs": 2, "n": 2}),
        json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
               "max_tokens": 2, "logprobs": true, "top_logprobs": 2}),
        json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
               "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}],
                        "max_completion_tokens": 2,
                        "response_format": {"type": "json_schema",
                            "json_schema": {"name": "n", "schema": schema}}}}),
        json!({"prompt": ["a", "b"], "max_tokens": 2, "structured_outputs": {"regex": "[ab]{1,3}c?"}}),
        json!({"prompt": "a", "max_tokens": 2, "structured_outputs": {"choice": ["yes", "no"]}}),
    ]
}

#[test]
fn lines_of_a_job() {
    let cases = from_environment("TANDEM_FUZZ_CASES").unwrap_or(CASES);
    let mut random = Random(from_environment("TANDEM_FUZZ_SEED").unwrap_or(1));
    let place = Place::new();
    let model = copy_of("llama", &place.path("model"));
    let (input, output) = (place.path("in.jsonl"), place.path("out.jsonl"));
    let good = json!({"custom_id": "good", "prompt": [5, 6, 7], "max_tokens": 4}).to_string();
    std::fs::write(&input, format!("{good}\n")).expect("writable");
    assert_eq!(run(&model, &input, &output).0, Some(0));
    let alone = lines(&output).remove(0);
    let seeds = seeds();
    let mut left = cases;
    while left > 0 {
        let mut text = Vec::new();
        let count = left.min(250);
        for _ in 0..count {
            let mut value = random.pick(&seeds).clone();
            let mut line = if random.below(4) == 0 {
                let mut bytes = value.to_string().into_bytes();
                mutate::bytes(&mut bytes, &mut random);
                bytes
            } else {
                for _ in 0..=random.below(2) {
                    mutate::json(&mut value, &mut random);
                }
                value.to_string().into_bytes()
            };
            line.retain(|byte| !matches!(byte, b'\n' | b'\r'));
            // Requests for long answers and many choices are valid; here they would only cost time.
            let line = shortened(line);
            text.extend(line);
            text.push(b'\n');
        }
        text.extend(good.as_bytes());
        text.push(b'\n');
        std::fs::write(&input, &text).expect("writable");
        let before = random.0;
        let (code, said) = run(&model, &input, &output);
        assert!(matches!(code, Some(0 | 3)), "seed {before}: {said}");
        let answers = lines(&output);
        let asked = text.split(|byte| *byte == b'\n');
        let asked = asked.filter(|line| !line.iter().all(u8::is_ascii_whitespace)).count();
        assert_eq!(answers.len(), asked, "seed {before}");
        let mut last = answers.last().expect("the good line").clone();
        last["response"]["body"]["created"] = alone["response"]["body"]["created"].clone();
        assert_eq!(last, alone, "seed {before}");
        for answer in &answers {
            let (response, error) = (&answer["response"], &answer["error"]);
            assert_ne!(response.is_null(), error.is_null(), "seed {before}: {answer}");
        }
        left -= count;
    }
}

/// Limits the line to eight new tokens and four choices.
fn shortened(line: Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&line) else { return line };
    let shorten = |fields: &mut Value| {
        for (name, most) in [("max_tokens", 8), ("max_completion_tokens", 8), ("n", 4)] {
            if let Some(number) = fields.get(name).and_then(Value::as_u64).filter(|n| *n > most) {
                fields[name] = (number % most + 1).into();
            }
        }
        let asks = ["max_tokens", "max_completion_tokens"];
        let is_open = |name: &str| fields.get(name).is_none_or(Value::is_null);
        if fields.is_object() && asks.into_iter().all(is_open) {
            fields["max_tokens"] = 2.into();
        }
    };
    match value.get_mut("body") {
        Some(body) => shorten(body),
        None => shorten(&mut value),
    }
    value.to_string().into_bytes()
}
