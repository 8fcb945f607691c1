//! Conversations with models whose layers overwrite what they keep of a sequence: each turn
//! computes only what follows the last page end of the turns before it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::command::{Place, fixture, runs_all_cases};
use crate::serve::Served;

/// Positions per page.
const PAGE: usize = 256;

/// Copies a fixture with a context of several thousand positions and windows of a few pages.
pub(crate) fn long_model(place: &Place, name: &str) -> PathBuf {
    let (from, to) = (fixture(name), place.path(name));
    std::fs::create_dir(&to).expect("a folder");
    for file in std::fs::read_dir(&from).expect("a fixture").flatten() {
        if file.file_name() != "model.gguf" {
            std::fs::copy(file.path(), to.join(file.file_name())).expect("space");
        }
    }
    let path = to.join("config.json");
    let text = std::fs::read(&path).expect("a configuration");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["max_position_embeddings"] = json!(8192);
    if config.get("sliding_window").is_some_and(Value::is_number) {
        config["sliding_window"] = json!(300);
    }
    std::fs::write(&path, config.to_string()).expect("writable");
    to
}

fn serve(model: &Path, options: &[&str]) -> Served {
    let model = model.to_str().expect("UTF-8");
    let with = ["--model", model, "--device", "none", "--slots", "2", "--context", "5120"];
    Served::of(&[&with[..], options].concat())
}

/// Returns the new tokens with their log-probabilities, and the number of cached tokens.
fn ask(served: &Served, prompt: &[u64]) -> (Value, usize) {
    let body = json!({"prompt": prompt, "max_tokens": 60, "temperature": 0.7, "seed": 4,
                      "ignore_eos": true, "logprobs": 2});
    let (status, reply) = served.post("/v1/completions", &body);
    assert_eq!(status, 200, "{reply}");
    let mut answer: Value = serde_json::from_str(&reply).expect("JSON");
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    let cached = cached.as_u64().expect("a number") as usize;
    (answer["choices"][0].take(), cached)
}

fn tokens(seed: usize, count: usize) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| 5 + ((seed * 7919 + i * i * 31 + i * 13) % 250) as u64)
}

/// Five turns of 4,000 tokens, and a sixth one in another process.
#[test]
fn turns_compute_what_is_new_in_them() {
    let place = Place::new();
    let all =
        &["gpt_oss", "qwen35", "gemma3", "qwen3_next", "lfm2", "granite_hybrid", "step3p5"][..];
    for name in if runs_all_cases() { all } else { &all[..2] } {
        let model = long_model(&place, name);
        let store = place.path(&format!("{name}.prompts"));
        let with = ["--prompt-cache", store.to_str().expect("UTF-8")];
        let served = serve(&model, &with);
        let (mut prompt, mut history, mut last) = (Vec::new(), Vec::<u64>::new(), Value::Null);
        for turn in 0..5 {
            prompt = history.iter().copied().chain(tokens(turn, 770)).collect();
            let (answer, cached) = ask(&served, &prompt);
            // The last token of an answer is not computed.
            let expected = history.len().saturating_sub(1) / PAGE * PAGE;
            assert_eq!(cached, expected, "{name}, turn {turn}");
            let new = answer["token_ids"].as_array().expect("tokens");
            let new = new.iter().map(|token| token.as_u64().expect("a token"));
            history = prompt.iter().copied().chain(new).collect();
            last = answer;
        }
        assert!(history.len() > 4000, "{} tokens", history.len());
        assert_eq!(served.end(), "", "{name}");
        let fresh = serve(&model, &[]);
        assert_eq!(ask(&fresh, &prompt), (last, 0), "{name}: from scratch");
        let next: Vec<u64> = history.iter().copied().chain(tokens(9, 100)).collect();
        fresh.end();
        let fresh = serve(&model, &[]);
        let (expected, _) = ask(&fresh, &next);
        fresh.end();
        let again = serve(&model, &with);
        // The last prompt was stored, not its answer.
        let stored = (prompt.len() - 1) / PAGE * PAGE;
        assert_eq!(ask(&again, &next), (expected, stored), "{name}: in another process");
        assert_eq!(again.end(), "", "{name}");
    }
}
