//! Tests of jobs that use all fields and options together.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, lines, text};

/// Number of tokens that the prompts have in common: more than a page of a stored prompt.
const PREFIX: usize = 300;

/// Copies the fixture `llama`, with more positions, to a folder.
fn long_llama(folder: &Path) {
    std::fs::create_dir(folder).expect("writable");
    for entry in std::fs::read_dir(fixture("llama")).expect("a fixture").flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("writable");
    }
    let path = folder.join("config.json");
    let config = std::fs::read_to_string(&path).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["max_position_embeddings"] = json!(1024);
    std::fs::write(path, config.to_string()).expect("writable");
}

/// Returns requests with every field that changes how an engine computes.
fn bodies() -> Vec<Value> {
    // A prompt with log-probabilities is computed. Such prompts begin in another way, or the others
    // would find their prefix in memory and not read it.
    let prompt = |index: usize, is_computed: bool| -> Vec<usize> {
        let first = if is_computed { 6 } else { 5 };
        (0..PREFIX).chain([PREFIX + index]).map(|i| first + i * 13 % 300).collect()
    };
    let fields = [
        json!({"n": 3, "temperature": 1, "seed": 4}),
        json!({"prompt_logprobs": 2}),
        json!({"echo": true, "logprobs": 2, "n": 2}),
        json!({"echo": true, "logprobs": 1, "max_tokens": 0}),
        json!({"structured_outputs": {"choice": ["red", "green"]}, "n": 2, "logprobs": 1}),
        json!({"logit_bias": {"40": 100}, "stop_token_ids": [41], "repetition_penalty": 1.3}),
        json!({"stop": [" a", "e"], "min_tokens": 2}),
    ];
    let body = |(index, fields): (usize, Value)| {
        let fields = fields.as_object().expect("fields").clone();
        let is_computed = fields.contains_key("prompt_logprobs") || fields.contains_key("echo");
        let mut body = json!({"prompt": prompt(index, is_computed), "max_tokens": 6,
            "temperature": 0, "custom_id": index.to_string()});
        body.as_object_mut().expect("a body").extend(fields);
        body
    };
    fields.into_iter().enumerate().map(body).collect()
}

/// Answers the lines of `in.jsonl`; returns the choices of each answer.
fn answers(place: &Place, options: &[&str]) -> Vec<Value> {
    let output = place.path("out.jsonl");
    let mut command = coordinator();
    command.arg("--model").arg(place.path("model")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(&output).args(["--force", "--device", "none"]).args(options);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
    lines(&output).iter().map(|line| line["response"]["body"]["choices"].clone()).collect()
}

fn json_of(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// A job whose lines ask for everything, with `--report`, `--trace` and `--prompt-cache`, has the
/// answers of jobs of a line each, whether its prompts are computed or read.
#[test]
fn fields_and_options_of_a_job_combine() {
    let place = Place::new();
    long_llama(&place.path("model"));
    let write = |bodies: &[Value]| {
        let input: String = bodies.iter().map(|body| format!("{body}\n")).collect();
        std::fs::write(place.path("in.jsonl"), input).expect("writable");
    };
    let mut alone = BTreeMap::new();
    for (index, body) in bodies().into_iter().enumerate() {
        write(&[body]);
        alone.insert(index, answers(&place, &["--quiet"]).remove(0));
    }
    write(&bodies());
    let paths = ["report.json", "trace.json", "store"].map(|name| place.path(name));
    let [report, trace, store] = paths.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let options = ["--report", report, "--trace", trace, "--prompt-cache", store];
    let options = [&options[..], &["--prompt-cache-min", "16", "--batches", "1x4"]].concat();
    let prompt_tokens: u64 =
        bodies().iter().map(|body| (PREFIX as u64 + 1) * body["n"].as_u64().unwrap_or(1)).sum();
    let mut computed = Vec::new();
    for run in 0..2 {
        for (index, found) in answers(&place, &options).iter().enumerate() {
            assert_eq!(found, &alone[&index], "run {run}, line {index}");
        }
        let report = json_of(report);
        let count = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(report["requests"]["answered"], 7);
        assert!(count("groups") > 0 && count("generated_tokens") > 0);
        // The last token of a prompt of which only log-probabilities are wanted is not computed.
        assert_eq!(count("prefill_tokens") + count("shared_prompt_tokens"), prompt_tokens - 1);
        assert!(report["prefill_s"].as_f64() > Some(0.0) && report["load_s"].as_f64() > Some(0.0));
        assert!(
            report["lanes"]["cpu.compute"]["busy_s"].as_f64() > Some(0.0),
            "{}",
            report["lanes"]
        );
        assert!(report["peak_pss_bytes"]["sum"].as_u64() > Some(0));
        assert_eq!(count("lost_spans"), 0);
        let events = json_of(trace)["traceEvents"].as_array().expect("events").clone();
        let spans = events.iter().filter(|event| event["ph"] == "X").count();
        assert!(spans > 100, "{spans} spans");
        computed.push(count("prefill_tokens"));
    }
    assert!(computed[1] < computed[0], "no prompt was read: {computed:?}");
}
