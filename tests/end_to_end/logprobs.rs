//! Tests of log-probabilities and of several answers to a prompt, with the whole program.

use serde_json::{Value, json};

use crate::command::{Place, golden, ids};

/// Returns the choices of all answers in input order.
fn choices(place: &Place, bodies: &[Value], options: &[&str]) -> Vec<Value> {
    choices_of("llama", place, bodies, options)
}

/// Returns [`choices`] of a fixture.
fn choices_of(name: &str, place: &Place, bodies: &[Value], options: &[&str]) -> Vec<Value> {
    let answers = place.answered_by(name, bodies, options);
    let of =
        |line: &Value| line["response"]["body"]["choices"].as_array().expect("choices").clone();
    answers.iter().flat_map(of).collect()
}

/// Returns the log-probabilities of all tokens by torch's logits, in descending order.
fn expected(logits: &[f64]) -> Vec<(usize, f64)> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let mut all: Vec<(usize, f64)> =
        logits.iter().map(|logit| logit - sum.ln()).enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[test]
fn log_probabilities_are_those_of_the_reference() {
    has_log_probabilities_of_the_reference("llama");
}

/// Greedy tokens do not depend on the cap of logits.
#[test]
fn log_probabilities_of_capped_logits_are_those_of_the_reference() {
    has_log_probabilities_of_the_reference("gemma4");
}

fn has_log_probabilities_of_the_reference(name: &str) {
    let golden = golden(name);
    let numbers = golden["logits"].as_array().expect("logits").iter();
    let logits: Vec<f64> = numbers.map(|logit| logit.as_f64().expect("a number")).collect();
    let prompt = ids(&golden["prompts"][0]);
    let place = Place::new();
    let body = json!({"prompt": prompt, "max_tokens": 3, "logprobs": 20, "ignore_eos": true});
    for options in [&[][..], &["--device", "emulated", "--policy", "gpu-only"]] {
        let options = [&["--dtype", "f32"], options].concat();
        let all = choices_of(name, &place, std::slice::from_ref(&body), &options);
        assert_eq!(ids(&all[0]["token_ids"])[..], ids(&golden["tokens"][0])[..3]);
        let found = &all[0]["logprobs"];
        let top = found["top_logprobs"][0].as_object().expect("the most likely tokens");
        assert_eq!(top.len(), 20, "{top:?}");
        let expected = expected(&logits);
        let mut ranks = expected.iter().map(|(_, logprob)| *logprob);
        for (text, logprob) in top {
            let logprob = logprob.as_f64().expect("a number");
            assert!(ranks.any(|rank| (rank - logprob).abs() < 1e-4), "{text} {logprob}");
        }
        let own = found["token_logprobs"][0].as_f64().expect("a number");
        assert!((own - expected[0].1).abs() < 1e-4, "{own} {:?}", expected[0]);
        assert_eq!(found["token_logprobs"].as_array().map(Vec::len), Some(3));
    }
}

#[test]
fn what_is_asked_of_one_changes_no_other_and_no_placement_changes_it() {
    let place = Place::new();
    let prompt = |i: u32| (0..1 + i * 7 % 13).map(|j| 3 + i * 11 + j).collect::<Vec<u32>>();
    let bodies: Vec<Value> = (0..9)
        .map(|i| {
            // IDs derived from the lines would change with their content, and sampling with the
            // IDs.
            let mut body = json!({"custom_id": format!("p{i}"), "prompt": prompt(i),
                "max_tokens": 2 + i % 4, "ignore_eos": true});
            if i % 2 == 1 {
                body["temperature"] = json!(1.3);
                body["top_k"] = json!(5);
                body["n"] = json!(3);
            }
            if i % 3 > 0 {
                body["logprobs"] = json!(i % 3 * 4);
            }
            body
        })
        .collect();
    let alone = choices(&place, &bodies, &["--batches", "1x1"]);
    assert_eq!(alone.len(), 9 + 2 * 4);
    let bare: Vec<Value> = bodies
        .iter()
        .cloned()
        .map(|mut body| {
            body.as_object_mut().expect("an object").remove("logprobs");
            body
        })
        .collect();
    let tokens = |all: &[Value]| -> Vec<Value> {
        all.iter().map(|choice| choice["token_ids"].clone()).collect()
    };
    assert_eq!(tokens(&choices(&place, &bare, &["--batches", "1x1"])), tokens(&alone));
    for options in [
        &["--batches", "2x3"][..],
        &["--batches", "1x4", "--device", "emulated", "--split", "k:up"],
        &["--batches", "3x2", "--device", "emulated", "--policy", "gpu-only"],
    ] {
        assert_eq!(choices(&place, &bodies, options), alone, "{options:?}");
    }
    for choice in alone.iter().filter(|choice| !choice["logprobs"].is_null()) {
        let count = ids(&choice["token_ids"]).len();
        for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let entries = choice["logprobs"][field].as_array().map(Vec::len);
            assert_eq!(entries, Some(count), "{field} {choice}");
        }
    }
}
