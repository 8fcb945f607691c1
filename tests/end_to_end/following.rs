//! Sequences that take the places of others while the rest go on: the same answers in fewer steps.

use std::process::Stdio;

use serde_json::json;

use crate::command::{Place, coordinator, finish, fixture, text};

const LONG: u32 = 24;
const SHORT: u32 = 3;

#[test]
fn a_long_answer_holds_nobody_back() {
    let place = Place::new();
    let line = |i: u32| {
        let max_tokens = if i == 5 { LONG } else { SHORT };
        let prompt: Vec<u32> = (0..1 + i * 7 % 13).map(|j| 3 + i * 11 + j).collect();
        let mut body = json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true});
        if i % 3 == 1 {
            body["temperature"] = json!(0.9);
        }
        json!({"custom_id": format!("p{i}"), "method": "POST", "url": "/v1/completions", "body": body})
    };
    let input: String = (0..13).map(|i| format!("{}\n", line(i))).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
    let run = |options: &[&str]| {
        let mut command = coordinator();
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
        command.arg("--output").arg(place.path("out.jsonl")).args(["--force", "--quiet"]);
        command.arg("--report").arg(place.path("report.json")).args(options);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
        let report = std::fs::read_to_string(place.path("report.json")).expect("a report");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        (std::fs::read_to_string(place.path("out.jsonl")).expect("answers"), report)
    };
    for (form, compress) in [("plain", "none"), ("4-bit", "kv4")] {
        let (alone, _) = run(&["--compress", compress, "--batches", "1x1"]);
        for placement in [
            &[][..],
            &["--device", "emulated", "--split", "k:up"],
            &["--device", "emulated", "--split", "scores:norm1", "--split-chunks", "attention=2"],
        ] {
            for batches in ["2x2", "1x4", "4x1", "1x7"] {
                let options = ["--compress", compress, "--batches", batches];
                let (answers, report) = run(&[&options[..], placement].concat());
                assert_eq!(answers, alone, "{form} {batches} {placement:?}");
                // All others are answered beside the long one.
                assert_eq!(report["decode_steps"], LONG - 1, "{form} {batches} {placement:?}");
                assert!(report["groups"].as_u64() >= Some(2), "{form} {batches} {placement:?}");
            }
        }
    }
}
