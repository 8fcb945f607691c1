//! Tests of prompts in chunks with real processes: the same bytes as with whole prompts, in less
//! memory.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, lines, text};

/// Writes prompts of different lengths, many of which share a prefix.
fn requests(place: &Place) -> std::path::PathBuf {
    let line = |index: usize| {
        let common = (0..20).map(|i| 5 + i * 3 % 50);
        let own = (0..1 + index * 7 % 19).map(|i| 4 + (index + i * 11) % 90);
        let prompt: Vec<usize> = common.skip(index / 5 * 20).chain(own).collect();
        json!({"custom_id": format!("p{index}"), "prompt": prompt, "max_tokens": 6, "logprobs": 2})
    };
    let lines: String = (0..8).map(|index| line(index).to_string() + "\n").collect();
    let path = place.path("in.jsonl");
    std::fs::write(&path, lines).expect("writable");
    path
}

#[test]
fn prompts_in_chunks_have_the_answers_of_whole_ones() {
    let place = Place::new();
    let input = requests(&place);
    let answers = |extra: &[&str]| {
        let mut run = coordinator();
        run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input);
        run.arg("--output").arg(place.path("out.jsonl")).args(["--force", "--batches", "2x3"]);
        let done = finish(run.args(extra).stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{extra:?}: {}", text(&done.stderr));
        let answers = std::fs::read_to_string(place.path("out.jsonl")).expect("answers");
        let without_time = |line: &str| -> Value {
            let mut line: Value = serde_json::from_str(line).expect("JSON");
            line["response"]["body"]["created"] = Value::Null;
            line
        };
        answers.lines().map(without_time).collect::<Vec<_>>()
    };
    let whole = answers(&[]);
    assert_eq!(whole.len(), 8);
    let device = ["--device", "emulated", "--policy", "gpu-only", "--dtype", "bf16"];
    for chunk in ["1", "5", "16", "4096"] {
        let chunked = ["--prefill-chunk", chunk];
        assert_eq!(answers(&chunked), whole, "in {chunk}");
        let apart = [&chunked[..], &["--no-prefix-sharing"]].concat();
        assert_eq!(answers(&apart), whole, "in {chunk}, each whole");
        let on_device = [&chunked[..], &device[..]].concat();
        assert_eq!(answers(&on_device), whole, "in {chunk} on the device");
        for [split, parts] in [["scores.1:up", "scores=2"], ["scores.1:gate", "attention=2"]] {
            let split = ["--device", "emulated", "--split", split, "--split-chunks", parts];
            let split = [&chunked[..], &["--dtype", "bf16"], &split].concat();
            assert_eq!(answers(&split), whole, "in {chunk}, attention in {parts}");
        }
    }
}

/// The search leaves out placements that do not support the requested chunks.
#[test]
fn a_placement_is_searched_for_prompts_in_chunks() {
    let place = Place::new();
    let input = requests(&place);
    let tokens = |extra: &[&str]| {
        let mut run = coordinator();
        run.env("XDG_CACHE_HOME", place.path("cache"));
        run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input);
        run.arg("--output").arg(place.path("out.jsonl")).args(["--force", "--batches", "1x8"]);
        let done = finish(run.args(extra).stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{extra:?}: {}", text(&done.stderr));
        let answers = lines(&place.path("out.jsonl"));
        let of = |line: &Value| line["response"]["body"]["choices"][0]["token_ids"].clone();
        answers.iter().map(of).collect::<Vec<_>>()
    };
    let whole = tokens(&[]);
    let device = ["--device", "emulated", "--dtype", "bf16"];
    for policy in ["auto", "two-split"] {
        let searched = [&device[..], &["--policy", policy, "--prefill-chunk", "5"]].concat();
        assert_eq!(tokens(&searched), whole, "{policy}");
    }
}
