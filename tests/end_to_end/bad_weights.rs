//! Tests that model files that cannot give an answer are refused by name before anything is
//! computed.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, text};

/// Overwrites the last value of a tensor with an infinity or a NaN of its type.
fn spoil(file: &Path, tensor: &str, nan: bool) {
    let mut bytes = std::fs::read(file).expect("a fixture");
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
    let end = 8 + header_len + header[tensor]["data_offsets"][1].as_u64().expect("an end") as usize;
    match (header[tensor]["dtype"].as_str(), nan) {
        (Some("F32"), true) => bytes[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes()),
        (Some("F32"), false) => bytes[end - 4..end].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        (Some("BF16"), true) => bytes[end - 2..end].copy_from_slice(&[0xc0, 0x7f]),
        (Some("BF16"), false) => bytes[end - 2..end].copy_from_slice(&[0x80, 0xff]),
        (Some("F16"), true) => bytes[end - 2..end].copy_from_slice(&[0x00, 0x7e]),
        (Some("F16"), false) => bytes[end - 2..end].copy_from_slice(&[0x00, 0xfc]),
        (other, _) => panic!("a fixture of type {other:?}"),
    }
    std::fs::write(file, bytes).expect("writable");
}

/// Copies the fixture `llama`.
fn copy_of_llama(place: &Place) -> PathBuf {
    let model = place.path("model");
    std::fs::create_dir(&model).expect("writable");
    for entry in std::fs::read_dir(fixture("llama")).expect("a fixture").flatten() {
        std::fs::copy(entry.path(), model.join(entry.file_name())).expect("writable");
    }
    model
}

#[test]
fn absurd_counts_and_endless_templates_end_in_a_sentence() {
    let place = Place::new();
    let model = copy_of_llama(&place);
    let path = model.join("config.json");
    let config: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a fixture")).expect("JSON");
    let run = |extra: &[&str]| {
        place.requests("in.jsonl", &[vec![5, 6]], 2);
        let mut command = coordinator();
        command.arg("--model").arg(&model).args(extra);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        (done.status.code(), text(&done.stderr))
    };
    for (field, value) in [
        ("num_hidden_layers", 2_147_483_647_u32),
        ("num_hidden_layers", 65_536),
        ("num_hidden_layers", 65_540),
        ("vocab_size", 2_147_483_647),
        ("intermediate_size", 2_147_483_647),
    ] {
        let mut changed = config.clone();
        changed[field] = value.into();
        std::fs::write(&path, changed.to_string()).expect("writable");
        for extra in [&["--dummy-weights"][..], &[]] {
            let (code, said) = run(extra);
            assert_eq!(code, Some(1), "{field} {value} {extra:?}: {said}");
            assert!(said.contains(&value.to_string()) && said.contains("at most"), "{said}");
        }
    }
    std::fs::write(&path, config.to_string()).expect("writable");
    let settings = model.join("tokenizer_config.json");
    let mut changed: Value =
        serde_json::from_slice(&std::fs::read(&settings).expect("a fixture")).expect("JSON");
    changed["chat_template"] = "{% for a in range(99999) %}{% for b in range(99999) %}\
        {% endfor %}{% endfor %}"
        .into();
    std::fs::write(&settings, changed.to_string()).expect("writable");
    let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n{\"prompt\": [5, 6]}\n";
    let (input, output) = (place.path("chat.jsonl"), place.path("chat.out.jsonl"));
    std::fs::write(&input, line).expect("writable");
    let arguments =
        ["--input", &input.display().to_string(), "--output", &output.display().to_string()];
    let (code, said) = run(&arguments);
    assert_eq!(code, Some(3), "the other line is answered: {said}");
    assert!(said.contains("more steps than a conversation may need"), "{said}");
}

/// Overwrites all values of a tensor of type F32 with `value`.
fn fill(file: &Path, tensor: &str, value: f32) {
    let mut bytes = std::fs::read(file).expect("a fixture");
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
    assert_eq!(header[tensor]["dtype"], "F32");
    let offset = |i: usize| header[tensor]["data_offsets"][i].as_u64().expect("an offset") as usize;
    for four in bytes[8 + header_len..][offset(0)..offset(1)].as_chunks_mut::<4>().0 {
        *four = value.to_le_bytes();
    }
    std::fs::write(file, bytes).expect("writable");
}

#[test]
fn numbers_that_overflow_are_an_error_and_no_answer() {
    let place = Place::new();
    let model = copy_of_llama(&place);
    fill(&model.join("model.safetensors"), "model.norm.weight", 3.3e38);
    let input = place.requests("in.jsonl", &[vec![5, 6], vec![7, 8, 9]], 4);
    let output = place.path("out.jsonl");
    for options in [&["--dtype", "f32"][..], &["--device", "emulated", "--policy", "gpu-only"]] {
        let mut command = coordinator();
        command.arg("--model").arg(&model).arg("--input").arg(&input);
        command.arg("--output").arg(&output).arg("--force").args(options);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(3), "{options:?}: {said}");
        for line in crate::command::lines(&output) {
            let choice = &line["response"]["body"]["choices"][0];
            assert_eq!(choice["finish_reason"], "error", "{line}");
            assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(0), "{line}");
            let error = choice["error"].as_str().unwrap_or_default();
            assert!(error.contains("infinities or NaN"), "{line}");
        }
    }
}

#[test]
fn a_weight_that_is_not_finite_is_refused_with_its_tensor() {
    let tensors = [("model.layers.1.mlp.up_proj.weight", "Up"), ("model.norm.weight", "FinalNorm")];
    for ((tensor, word), nan) in tensors.into_iter().flat_map(|t| [(t, true), (t, false)]) {
        for options in [&["--dtype", "f32"][..], &["--dtype", "bf16"], &["--compress", "w4"]] {
            let place = Place::new();
            let model = copy_of_llama(&place);
            spoil(&model.join("model.safetensors"), tensor, nan);
            place.requests("in.jsonl", &[vec![5, 6]], 2);
            let mut command = coordinator();
            command.arg("--model").arg(&model).arg("--input").arg(place.path("in.jsonl"));
            command.arg("--output").arg(place.path("out.jsonl")).args(options);
            let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
            let said = text(&done.stderr);
            assert_eq!(done.status.code(), Some(1), "{tensor} {options:?}: {said}");
            assert!(said.contains("an infinity or NaN") && said.contains(word), "{said}");
            assert!(!place.path("out.jsonl").exists(), "{options:?}");
        }
    }
}
