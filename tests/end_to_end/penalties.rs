//! Tests that penalties make repeated tokens less likely, with the whole program.

use std::collections::HashMap;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, text};

/// Tokens of an answer and the most likely ones at each position, as text.
struct Said {
    tokens: Vec<String>,
    likely: Vec<HashMap<String, f64>>,
    finish_reason: String,
}

fn answers(place: &Place, lines: &[Value], options: &[&str]) -> (String, Vec<Said>) {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = place.path("in.jsonl");
    // The creation time of answers is the modification time of the input, so it is only written if
    // it changes.
    if std::fs::read_to_string(&path).ok().as_deref() != Some(input.as_str()) {
        std::fs::write(path, input).expect("a writable folder");
    }
    let mut command = coordinator();
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl")).args(["--quiet", "--force"]).args(options);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
    let output = std::fs::read_to_string(place.path("out.jsonl")).expect("answers");
    let said = output.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let choice = &line["response"]["body"]["choices"][0];
        // Empty for an answer without tokens.
        let of = |name: &str| choice["logprobs"][name].as_array().cloned().unwrap_or_default();
        Said {
            tokens: of("tokens").iter().map(|token| token.as_str().unwrap().to_owned()).collect(),
            likely: of("top_logprobs")
                .iter()
                .map(|likely| serde_json::from_value(likely.clone()).expect("numbers"))
                .collect(),
            finish_reason: choice["finish_reason"].as_str().expect("a reason").to_owned(),
        }
    });
    let said = said.collect();
    (output, said)
}

fn line(index: usize, more: &Value) -> Value {
    let mut line = json!({"custom_id": index.to_string(), "prompt": [5 + index, 40, 41, 40],
        "max_tokens": 30, "logprobs": 20, "ignore_eos": true});
    let more = more.as_object().expect("fields").clone();
    line.as_object_mut().expect("fields").extend(more);
    line
}

/// Each token is the most likely one after the penalties for earlier tokens are subtracted;
/// log-probabilities are reported without penalties.
#[test]
fn presence_and_frequency_are_taken_from_what_was_said() {
    let place = Place::new();
    let (presence, frequency) = (0.7, 0.45);
    let more = json!({"presence_penalty": presence, "frequency_penalty": frequency});
    let lines: Vec<Value> = (0..6).map(|index| line(index, &more)).collect();
    let (_, with) = answers(&place, &lines, &["--batches", "2x2"]);
    let plain: Vec<Value> = (0..6).map(|index| line(index, &json!({}))).collect();
    let (_, without) = answers(&place, &plain, &["--batches", "2x2"]);
    let mut changed = 0;
    for said in &with {
        let mut before: HashMap<&str, u32> = HashMap::new();
        for (token, likely) in said.tokens.iter().zip(&said.likely) {
            let less = |name: &str| match before.get(name) {
                Some(count) => presence + frequency * f64::from(*count),
                None => 0.0,
            };
            let of = |name: &str| likely.get(name).map(|logprob| logprob - less(name));
            let mine = of(token).expect("none of the most likely ones");
            let best = likely.keys().filter_map(|name| of(name)).fold(f64::MIN, f64::max);
            assert!(mine > best - 1e-4, "{token}: {mine} where {best} is the most, {likely:?}");
            let first = likely.values().copied().fold(f64::MIN, f64::max);
            changed += usize::from(likely[token] < first - 1e-4);
            *before.entry(token).or_default() += 1;
        }
    }
    assert!(changed > 10, "only {changed} other tokens");
    let kinds = |all: &[Said]| -> usize {
        let of = |said: &Said| said.tokens.iter().collect::<std::collections::HashSet<_>>().len();
        all.iter().map(of).sum()
    };
    assert!(kinds(&with) > kinds(&without), "{} and {}", kinds(&with), kinds(&without));
}

/// An answer is the same with any other requests and in any batch, and repeats less.
#[test]
fn penalties_are_an_answers_own() {
    let place = Place::new();
    let more =
        json!({"repetition_penalty": 1.4, "frequency_penalty": 0.2, "temperature": 0.8, "seed": 5});
    let lines: Vec<Value> = (0..6).map(|index| line(index, &more)).collect();
    let (expected, with) = answers(&place, &lines, &["--batches", "1x6"]);
    for options in [["--batches", "2x2"], ["--batches", "1x1"], ["--prefill-chunk", "2"]] {
        assert_eq!(answers(&place, &lines, &options).0, expected, "{options:?}");
    }
    assert!(with.iter().all(|said| said.tokens.len() == 30 && said.finish_reason == "length"));
}

#[test]
fn no_answer_ends_before_its_least_tokens() {
    let place = Place::new();
    let draws = json!({"ignore_eos": false, "temperature": 2.0, "logprobs": 1});
    let all: Vec<Value> = (0..60).map(|index| line(index, &draws)).collect();
    let short = |said: &Said| said.finish_reason == "stop" && said.tokens.len() < 12;
    let (_, without) = answers(&place, &all, &["--batches", "1x16"]);
    assert!(without.iter().any(short), "no answer is short");
    let mut least = draws.clone();
    least["min_tokens"] = json!(12);
    let all: Vec<Value> = (0..60).map(|index| line(index, &least)).collect();
    let (_, with) = answers(&place, &all, &["--batches", "1x16"]);
    assert!(!with.iter().any(short), "an answer is short");
    assert!(with.iter().any(|said| said.finish_reason == "stop"), "none ends by itself");
}

/// Compares with transformers' greedy answers (`scripts/fixtures_penalties.py`), which include the
/// end-of-sequence token if there is one.
#[test]
fn answers_are_those_of_transformers() {
    let path = fixture("llama").join("penalties.json");
    let cases = std::fs::read_to_string(path).expect("a fixture");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("JSON");
    let place = Place::new();
    let line = |(index, case): (usize, &Value)| {
        let mut line = json!({"custom_id": index.to_string(), "max_tokens": 40, "logprobs": 0});
        for name in ["prompt", "repetition_penalty", "min_tokens"] {
            line[name] = case[name].clone();
        }
        line
    };
    let lines: Vec<Value> = cases.iter().enumerate().map(line).collect();
    for options in [&["--dtype", "f32", "--batches", "2x7"][..], &["--dtype", "f32"]] {
        let (output, _) = answers(&place, &lines, options);
        let mut ended = 0;
        for (line, case) in output.lines().zip(&cases) {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let choice = &line["response"]["body"]["choices"][0];
            let mut said = choice["token_ids"].clone();
            if choice["finish_reason"] == "stop" {
                said.as_array_mut().expect("tokens").push(json!(2));
                ended += 1;
            }
            assert_eq!(said, case["tokens"], "{case}");
        }
        assert!(ended > 10, "only {ended} ended by themselves");
    }
}

/// Biases change what is drawn, and stop tokens end an answer like an end-of-sequence token, in
/// batches and as sequences arrive (`prompt_logprobs`), greedy and sampled.
#[test]
fn biases_choose_tokens_and_stop_tokens_end_answers() {
    let place = Place::new();
    let ids = |fields: &Value| -> (Vec<u64>, String) {
        let mut line = json!({"prompt": [5, 40, 41, 40], "max_tokens": 12, "ignore_eos": true,
            "return_token_ids": true});
        line.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        let (output, _) = answers(&place, &[line], &[]);
        let answer: Value = serde_json::from_str(&output).expect("JSON");
        let choice = &answer["response"]["body"]["choices"][0];
        let tokens = choice["token_ids"].as_array().expect("tokens").iter();
        let tokens = tokens.map(|token| token.as_u64().expect("a token")).collect();
        (tokens, choice["finish_reason"].as_str().expect("a reason").to_owned())
    };
    for engine in [json!({}), json!({"prompt_logprobs": 0})] {
        for drawn in [json!({}), json!({"temperature": 1.0, "seed": 3})] {
            let with = |rules: Value| {
                let mut fields = engine.clone();
                let all = fields.as_object_mut().expect("fields");
                all.extend(drawn.as_object().expect("fields").clone());
                all.extend(rules.as_object().expect("fields").clone());
                ids(&fields)
            };
            let (plain, finish) = with(json!({}));
            assert_eq!((plain.len(), finish.as_str()), (12, "length"));
            let first = plain[0];
            let (banned, _) = with(json!({"logit_bias": {first.to_string(): -100}}));
            assert!(!banned.contains(&first), "{banned:?} without {first}");
            let (wanted, _) = with(json!({"logit_bias": {"17": 100}}));
            assert_eq!(wanted, [17; 12]);
            // A bias that is far too small to change anything.
            assert_eq!(with(json!({"logit_bias": {"17": 1e-30}})).0, plain);

            let end = plain[3];
            let before = plain.iter().position(|token| *token == end).expect("it is there");
            let other = (0..).find(|token| !plain.contains(token)).expect("few are drawn");
            let (ended, finish) = with(json!({"stop_token_ids": [other, end]}));
            let expected = &plain[..before];
            assert_eq!((&ended[..], finish.as_str()), (expected, "stop"), "{plain:?} at {end}");
            let (longer, _) = with(json!({"stop_token_ids": [end], "min_tokens": before + 2}));
            assert!(longer.len() >= before + 2 && !longer[..before + 2].contains(&end));
        }
    }
}
