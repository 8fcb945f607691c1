//! Tests of invalid input: one sentence with the error and advice, a documented exit code, and
//! nothing left behind.

use std::path::Path;
use std::process::Stdio;

use crate::command::{Place, coordinator, finish, fixture, lines, text};

struct Said {
    code: Option<i32>,
    stderr: String,
}

fn run(arguments: &[&str]) -> Said {
    let mut command = coordinator();
    command.args(arguments).env("HF_HUB_CACHE", "/nonexistent/hub").env_remove("HF_HOME");
    let done =
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
    Said { code: done.status.code(), stderr: text(&done.stderr) }
}

/// Asserts that the run exits with `code`, and that its few lines contain each of `words` and no
/// backtrace.
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let said = run(arguments);
    assert_eq!(said.code, Some(code), "{arguments:?}: {}", said.stderr);
    for word in words {
        assert!(said.stderr.contains(word), "{arguments:?} should say {word:?}: {}", said.stderr);
    }
    assert!(
        !said.stderr.contains("panicked") && !said.stderr.contains("backtrace"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.lines().count() < 20, "{}", said.stderr);
}

fn llama() -> String {
    fixture("llama").to_string_lossy().into_owned()
}

fn copy_model(to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(fixture("llama")).expect("fixture").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[test]
fn arguments() {
    let llama = llama();
    let tiny = ["--model", &llama, "--prompt-len", "4", "--gen-len", "2"];
    let with = |extra: &[&'static str]| [&tiny[..], extra].concat();
    for batches in ["0x5", "4", "4x", "x4", "-1x2", "axb"] {
        refused(&[&tiny[..], &["--batches", batches]].concat(), 2, &["batches", "4x15"]);
    }
    refused(&with(&["--device", "emulated", "--split", "fc0:out"]), 2, &["fc0", "norm0"]);
    refused(&with(&["--device", "emulated", "--split", "out:q"]), 2, &["after"]);
    refused(&with(&["--device", "emulated", "--split", "scores.3:"]), 2, &["--split-chunks"]);
    let long = ["--model", &llama, "--prompt-len", "4294967295", "--gen-len", "8"];
    refused(&long, 2, &["--prompt-len", "128 positions"]);
    refused(&with(&["--device", "cuda:0"]), 1, &["CUDA"]);
    refused(&with(&["--policy", "gpu-only"]), 2, &["--device"]);
    refused(
        &["--model", &llama, "--input", "/nonexistent/in.jsonl", "--output", "/tmp/x"],
        1,
        &["/nonexistent/in.jsonl"],
    );
}

/// Drafts of layers for multi-token prediction are refused where there is no such layer.
#[test]
fn prediction_layers() {
    let place = Place::new();
    let path = |name: &str| fixture(name).to_string_lossy().into_owned();
    let (input, output) = (place.requests("in.jsonl", &[vec![5, 6]], 2), place.path("out.jsonl"));
    let [input, output] = [input, output].map(|file| file.to_string_lossy().into_owned());
    let refused = |model: &str, extra: &[&str], words: &[&str]| {
        let files = ["--input", &input, "--output", &output];
        let arguments = ["--model", model, "--speculate", "mtp"];
        refused(&[&arguments[..], &files, extra].concat(), 2, words);
    };
    let (gguf, mtp) = (path("glm4_moe/model.gguf"), path("glm4_moe_mtp"));
    refused(&llama(), &[], &["--speculate mtp", "no layer for multi-token", "--draft-model"]);
    refused(&gguf, &[], &["--speculate mtp", "GGUF", "--speculate ngram"]);
    refused(&mtp, &["--draft-model", "x"], &["--speculate", "--draft-model"]);
    refused(&mtp, &["--layers", "1"], &["--speculate mtp", "--layers 1", "all layers"]);
    let select = ["--kv-select", "alpha=4,max=0.2"];
    refused(&mtp, &select, &["--speculate mtp", "--kv-select"]);
    // Converted files often leave the layer out.
    let model = place.path("model");
    std::fs::create_dir(&model).expect("a folder");
    for (from, name) in [("deepseek_v3_mtp", "config.json"), ("deepseek_v3", "model.safetensors")] {
        std::fs::copy(fixture(from).join(name), model.join(name)).expect("copied");
    }
    let model = model.to_string_lossy();
    refused(&model, &[], &["--speculate mtp", "lacks", "layers.3.eh_proj", "--draft-model"]);
}

#[test]
fn models() {
    refused(&["--model", "no/such-model"], 1, &["no/such-model", "coordinator pull"]);
    refused(
        &["--model", "opt-125m"],
        1,
        &["coordinator pull facebook/opt-125m", "--dummy-weights"],
    );
    refused(&["--model", "/nonexistent/model"], 1, &["/nonexistent/model"]);
    refused(&["--model", "opt-350m", "--dummy-weights"], 1, &["opt-350m"]);
    let place = Place::new();
    let model = place.path("model");
    let folder = model.to_string_lossy().into_owned();
    let short = ["--model", &folder, "--prompt-len", "4", "--gen-len", "2"];

    copy_model(&model);
    let weights = model.join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("weights");
    for keep in [0, 4, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&weights, &bytes[..keep]).expect("writable");
        refused(&short, 1, &["model.safetensors"]);
    }
    std::fs::remove_file(&weights).expect("there");
    refused(&short, 1, &["safetensors"]);
    std::fs::write(model.join("pytorch_model.bin"), "x").expect("writable");
    refused(&short, 1, &["save_pretrained"]);

    copy_model(&model);
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).expect("config");
    for (from, to, word) in [
        ("LlamaForCausalLM", "GPTNeoXForCausalLM", "GPTNeoXForCausalLM"),
        ("\"intermediate_size\": ", "\"intermediate_size\": 1", "shape"),
        ("{", "{\"quantization_config\": {\"quant_method\": \"gptq\"},", "quant"),
        ("{", "{ not json", "config.json"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        std::fs::write(&config, changed).expect("writable");
        refused(&short, 1, &[word]);
    }
}

#[test]
fn a_model_larger_than_memory_is_refused_before_loading() {
    let large = ["--model", "opt-175b", "--dummy-weights", "--batches", "1x1"];
    refused(&[&large[..], &["--dram", "8GiB"]].concat(), 1, &["GiB", "weights"]);
}

#[test]
fn bad_lines_fail_alone() {
    let place = Place::new();
    let input = place.path("in.jsonl");
    let mut bytes = Vec::new();
    let long: Vec<u32> = vec![5; 5000];
    for line in [
        r#"{"prompt": [5, 6, 7], "max_tokens": 2}"#,
        r#"{"prompt": [5, 6, 7"#,
        "",
        r#"{"prompt": ""}"#,
        r#"{"prompt": [5, 999999]}"#,
        r#"{"prompt": [5], "best_of": 3}"#,
        &format!(r#"{{"prompt": {long:?}}}"#),
        r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"prompt": [5]}}"#,
        r#"{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5], "max_tokens": 2}}"#,
        r#"{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5], "max_tokens": 2}}"#,
        r#"{"prompt": [5, 6], "max_tokens": 100000}"#,
    ] {
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"{\"prompt\": \"\xff\"}\n");
    std::fs::write(&input, bytes).expect("writable");
    let output = place.path("out.jsonl");
    let paths = [input.to_string_lossy(), output.to_string_lossy()];
    let said = run(&["--model", &llama(), "--input", &paths[0], "--output", &paths[1]]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let answers = lines(&output);
    let failed: Vec<bool> = answers.iter().map(|line| line["response"].is_null()).collect();
    let expected = [false, true, true, true, true, true, true, false, true, false, true];
    assert_eq!(failed, expected, "{}", said.stderr);
    assert_eq!(answers[9]["response"]["body"]["choices"][0]["finish_reason"], "length");
    let last = said.stderr.trim_end().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("3 answered, 8 failed (lines 2, 4, 5, 6, 7, 8, 10, 12"), "{last}");
}

#[test]
fn an_output_that_cannot_be_written() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![5, 6]], 2);
    let input = input.to_string_lossy();
    let llama = llama();
    let to = |output: &str, words: &[&str]| {
        refused(&["--model", &llama, "--input", &input, "--output", output], 1, words);
    };
    to("/nonexistent/folder/out.jsonl", &["/nonexistent/folder/out.jsonl"]);
    to("/dev/full", &["/dev/full"]);
}
