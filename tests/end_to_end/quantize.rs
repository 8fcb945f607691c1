//! Tests of `coordinator quantize`: its files answer as the models that they are made of.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, lines, text};

fn quantize(model: &Path, output: &Path, options: &[&str]) -> Output {
    let mut command = coordinator();
    command.arg("quantize").arg(model).arg(output).args(options).stderr(Stdio::piped());
    finish(command.spawn().expect("starts"))
}

fn quantized(model: &Path, output: &Path, options: &[&str]) -> Vec<u8> {
    let done = quantize(model, output, options);
    assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
    std::fs::read(output).expect("there")
}

/// Returns the texts of a model's answers to prompts and chats.
fn answers(place: &Place, model: &Path) -> Vec<Value> {
    let questions = [
        json!({"prompt": "Once upon a time"}),
        json!({"prompt": "WE'RE 12345 camelCase  ()\n"}),
        json!({"messages": [{"role": "user", "content": "Hello"}]}),
    ];
    // Files also end answers at tokens that are spelled like ends.
    let questions = questions.map(|mut question| {
        question["max_tokens"] = json!(12);
        question["ignore_eos"] = json!(true);
        question
    });
    let input: String = questions.iter().map(|question| format!("{question}\n")).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
    let mut command = coordinator();
    command.arg("--model").arg(model).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl"));
    command.args(["--dtype", "f32", "--force", "--quiet"]).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{}: {}", model.display(), text(&done.stderr));
    let body = |line: &Value| line["response"]["body"].clone();
    let answer = |line: &Value| json!([body(line)["choices"], body(line)["usage"]]);
    lines(&place.path("out.jsonl")).iter().map(answer).collect()
}

#[test]
fn a_file_without_loss_answers_as_its_checkpoint() {
    let place = Place::new();
    let file = place.path("llama.gguf");
    quantized(&fixture("llama"), &file, &["--type", "f32"]);
    let expected = answers(&place, &fixture("llama"));
    assert!(expected.iter().all(|answer| answer[1]["prompt_tokens"].as_u64() > Some(1)));
    assert_eq!(answers(&place, &file), expected);
}

/// Returns a model with a tokenizer and with rows that blocks divide.
fn model_of_whole_blocks(place: &Place) -> PathBuf {
    let folder = place.path("model");
    std::fs::create_dir(&folder).expect("a writable folder");
    let files = [
        ("qwen3_tied", "config.json"),
        ("qwen3_tied", "generation_config.json"),
        ("qwen3_tied", "model.safetensors"),
        ("llama", "tokenizer.json"),
        ("llama", "tokenizer_config.json"),
    ];
    for (model, file) in files {
        std::fs::copy(fixture(model).join(file), folder.join(file)).expect("copied");
    }
    folder
}

#[test]
fn calibration_weighs_what_a_search_rounds() {
    let place = Place::new();
    let model = model_of_whole_blocks(&place);
    let calibration = place.path("text.txt");
    std::fs::write(&calibration, "The quick brown fox, 42 times.\n".repeat(60)).expect("writable");
    let calibration = calibration.to_string_lossy().into_owned();
    let file = |name: &str, options: &[&str]| {
        quantized(&model, &place.path(name), &[&["--quiet"], options].concat())
    };
    let plain = file("plain.gguf", &["--type", "q5_0"]);
    let options = ["--type", "q5_0", "--calibrate", &calibration];
    let weighted = file("weighted.gguf", &options);
    assert_eq!(plain.len(), weighted.len());
    assert!(plain != weighted, "the importance had no effect");
    // The inputs do not depend on the number of threads, so neither do the files.
    let again = file("again.gguf", &[&options[..], &["--threads", "1"]].concat());
    assert!(weighted == again, "the number of threads changed the file");
    answers(&place, &place.path("weighted.gguf"));
}

#[test]
fn mistakes_are_named_and_leave_no_file() {
    let place = Place::new();
    let output = place.path("out.gguf");
    let short = place.path("short.txt");
    std::fs::write(&short, "too short").expect("writable");
    let short = short.to_string_lossy().into_owned();
    let cases: [(&str, &[&str], &str); 3] = [
        ("llama", &["--type", "q9"], "q4_k_m"),
        ("opt", &["--type", "q8_0"], "cannot be converted to GGUF"),
        ("llama", &["--type", "q8_0", "--calibrate", &short], "at least 512"),
    ];
    for (model, options, named) in cases {
        let done = quantize(&fixture(model), &output, options);
        assert!(!done.status.success(), "{options:?}");
        assert!(text(&done.stderr).contains(named), "{options:?}: {}", text(&done.stderr));
        assert!(!output.exists(), "{options:?}");
    }
    std::fs::write(&output, "mine").expect("writable");
    let done = quantize(&fixture("llama"), &output, &["--type", "q8_0"]);
    assert!(text(&done.stderr).contains("--force"), "{}", text(&done.stderr));
    assert_eq!(std::fs::read(&output).expect("there"), b"mine");
    quantized(&fixture("llama"), &output, &["--type", "q8_0", "--force"]);
}
