//! Tests of prompts with a common prefix: computed together, with the answers of prompts that are
//! computed whole.

use serde_json::json;

use crate::command::Place;

/// Number of tokens that all prompts share.
const COMMON: u32 = 40;

/// Returns 13 prompts of an instruction and their own tokens, some of which are repeated, and the
/// number of tokens.
fn input() -> (String, u64) {
    let (mut lines, mut tokens) = (String::new(), 0);
    for i in 0..13 {
        let own = if i % 4 == 3 { i - 1 } else { i };
        let prompt: Vec<u32> =
            (0..COMMON).chain((0..1 + own * 5 % 9).map(|j| 50 + own + j)).collect();
        tokens += prompt.len() as u64;
        let mut body = json!({"prompt": prompt, "max_tokens": 3 + i % 4, "ignore_eos": true});
        if i % 3 == 1 {
            body["temperature"] = json!(0.9);
        }
        let line = json!({"custom_id": format!("p{i}"), "method": "POST", "url": "/v1/completions", "body": body});
        lines += &format!("{line}\n");
    }
    (lines, tokens)
}

#[test]
fn what_prompts_begin_with_is_computed_once() {
    let place = Place::new();
    let (lines, tokens) = input();
    std::fs::write(place.path("in.jsonl"), lines).expect("writable");
    let run = |options: &[&str]| {
        let (answers, report) = place.reported(options);
        let count = |field: &str| report[field].as_u64().expect("a number");
        (answers, (count("prefill_tokens"), count("shared_prompt_tokens")))
    };
    for compress in ["none", "kv4"] {
        let (whole, counts) = run(&["--compress", compress, "--no-prefix-sharing"]);
        assert_eq!(counts, (tokens, 0), "each computed whole");
        for placement in [&[][..], &["--device", "emulated", "--split", "k:up"]] {
            for batches in ["1x13", "2x4"] {
                let options = ["--compress", compress, "--batches", batches];
                let (answers, (computed, shared)) = run(&[&options[..], placement].concat());
                assert_eq!(answers, whole, "{compress} {batches} {placement:?}");
                assert_eq!(computed + shared, tokens);
                if batches == "1x13" {
                    // Repeated prompts share all but their last token.
                    assert!(shared > 12 * u64::from(COMMON), "{shared} of {tokens}");
                } else {
                    assert!(shared > 0, "{batches}");
                }
            }
        }
    }
}
