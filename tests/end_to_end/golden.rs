//! Tests that greedy f32 tokens equal those of Hugging Face transformers.

use crate::command::{Place, fixture, golden, ids};

fn equals_transformers(name: &str, batches: &str, extra: &[&str]) {
    let golden = golden(name);
    let prompts: Vec<Vec<u32>> =
        golden["prompts"].as_array().expect("prompts").iter().map(ids).collect();
    let expected: Vec<Vec<u32>> =
        golden["tokens"].as_array().expect("tokens").iter().map(ids).collect();
    assert!(prompts.len() >= 8 && expected.iter().all(|tokens| tokens.len() == 32));
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts, 32);
    let mut arguments = vec!["--dtype", "f32", "--batches", batches];
    arguments.extend(extra);
    let found = place.answers(&fixture(name), &input, &arguments);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "{name}, prompt {i} of {} tokens", prompts[i].len());
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn opt() {
    equals_transformers("opt", "1x8", &[]);
}

#[test]
fn llama_with_gqa_and_tied_embeddings() {
    equals_transformers("llama", "2x3", &[]);
}

#[test]
fn llama3_rope_sharded() {
    equals_transformers("llama3", "1x3", &[]);
}

#[test]
fn qwen2_with_biases() {
    equals_transformers("qwen2", "3x2", &[]);
}

#[test]
fn mistral_with_explicit_head_dim() {
    equals_transformers("mistral", "1x8", &[]);
}

#[test]
fn opt_split_on_the_emulated_device() {
    let split = ["--device", "emulated", "--split", "scores:fc0", "--split-chunks", "attention=2"];
    equals_transformers("opt", "2x2", &split);
}

#[test]
fn llama_on_the_emulated_device_alone() {
    equals_transformers("llama", "2x3", &["--device", "emulated", "--policy", "gpu-only"]);
}

#[test]
fn generation_ends_at_an_eos_of_the_model() {
    for name in ["llama", "llama3", "qwen2"] {
        let golden = golden(name);
        let case = &golden["eos_case"];
        let place = Place::new();
        let input = place.path("in.jsonl");
        let line = serde_json::json!({"prompt": case["prompt"], "max_tokens": 32});
        std::fs::write(&input, format!("{line}\n")).expect("writable");
        let found = place.answers(&fixture(name), &input, &["--dtype", "f32"]);
        assert_eq!(found[0], ids(&case["tokens"]), "{name}");
        let line = &crate::command::lines(&place.path("out.jsonl"))[0];
        assert_eq!(line["response"]["body"]["choices"][0]["finish_reason"], "stop");
    }
}

/// Tests prompts of more than 8,192 tokens, in chunks and in pages of a server's caches
/// (`fixtures_long.py` defines them).
#[test]
fn llama_beyond_eight_thousand_positions() {
    let golden = std::fs::read_to_string(fixture("llama").join("long.json")).expect("there");
    let golden: serde_json::Value = serde_json::from_str(&golden).expect("JSON");
    let place = Place::new();
    let model = place.path("model");
    std::fs::create_dir(&model).expect("writable");
    for file in std::fs::read_dir(fixture("llama")).expect("there") {
        let file = file.expect("readable");
        std::fs::copy(file.path(), model.join(file.file_name())).expect("copied");
    }
    let config = std::fs::read_to_string(model.join("config.json")).expect("there");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["max_position_embeddings"] = golden["max_position_embeddings"].clone();
    std::fs::write(model.join("config.json"), config.to_string()).expect("writable");
    let prompt = |n: u32| -> Vec<u32> {
        // Squares of positions exceed 32 bits from 65,536 on, which no prompt here reaches.
        (0..n).map(|i| 4 + (i * i + n * (i / 7)) % 316).collect()
    };
    let prompts: Vec<Vec<u32>> = ids(&golden["lengths"]).into_iter().map(prompt).collect();
    assert!(prompts.iter().all(|prompt| prompt.len() > 8192));
    let input = place.requests("in.jsonl", &prompts, 32);
    let expected: Vec<Vec<u32>> =
        golden["tokens"].as_array().expect("tokens").iter().map(ids).collect();
    let found = place.answers(&model, &input, &["--dtype", "f32", "--batches", "1x2"]);
    assert_eq!(found, expected);
}

/// Compares the real model with transformers loading the same file.
#[test]
fn smollm2() {
    let model = crate::command::real_model();
    let Some(model) = model else {
        println!("SKIP smollm2: the model is not there; scripts/model.sh fetches it");
        return;
    };
    let golden = golden("smollm2");
    let lists = |key: &str| -> Vec<Vec<u32>> {
        golden[key].as_array().expect("lists").iter().map(ids).collect()
    };
    let (prompts, expected) = (lists("prompts"), lists("tokens"));
    assert!(prompts.len() == 8 && expected.iter().all(|tokens| tokens.len() == 48));
    let place = Place::new();
    let split = |split| ["--batches", "2x3", "--device", "emulated", "--split", split];
    // Directly from the file's 4-bit and 8-bit blocks, with the same arithmetic.
    let direct = ["--batches", "1x8", "--quantized", "direct"];
    // A split computes the same tokens as the CPU, so that a few of them suffice.
    for (count, extra) in [
        (32, &["--batches", "1x8"][..]),
        (6, &split("scores:norm1")),
        (16, &direct),
        (6, &[&split("k:up")[..], &direct[2..]].concat()),
    ] {
        let input = place.requests("in.jsonl", &prompts, count);
        let arguments = [&["--dtype", "f32"], extra].concat();
        let found = place.answers(&model, &input, &arguments);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, &expected[..count as usize], "prompt {i}, {extra:?}");
        }
        assert_eq!(found.len(), expected.len());
    }
}
