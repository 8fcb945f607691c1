//! Tests of sequences that take over the slots of finished ones while others continue: the same
//! answers in fewer steps.

use serde_json::json;

use crate::command::Place;

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
    for (form, compress) in [("plain", "none"), ("4-bit", "kv4")] {
        let (alone, _) = place.reported(&["--compress", compress, "--batches", "1x1"]);
        for placement in [
            &[][..],
            &["--device", "emulated", "--split", "k:up"],
            &["--device", "emulated", "--split", "scores:norm1", "--split-chunks", "attention=2"],
        ] {
            for batches in ["2x2", "1x4", "4x1", "1x7"] {
                let options = ["--compress", compress, "--batches", batches];
                let (answers, report) = place.reported(&[&options[..], placement].concat());
                assert_eq!(answers, alone, "{form} {batches} {placement:?}");
                // All others are answered while the long one runs.
                assert_eq!(report["decode_steps"], LONG - 1, "{form} {batches} {placement:?}");
                assert!(report["groups"].as_u64() >= Some(2), "{form} {batches} {placement:?}");
            }
        }
    }
}
