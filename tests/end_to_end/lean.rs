//! Tests of what a run does not do: allocate on the step path, pad, or involve the coordinator in
//! each layer.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, text};
use crate::serve::{Served, allocations, ask_all, bodies};

fn json(path: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

fn run(place: &Place, arguments: &[&str]) {
    let mut command = coordinator();
    command.args(arguments).arg("--report").arg(place.path("report.json"));
    command.arg("--trace").arg(place.path("trace.json")).arg("--quiet");
    let done =
        finish(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
}

#[test]
fn workers_allocate_nothing_from_ready_to_drain() {
    let place = Place::new();
    let prompts: Vec<Vec<u32>> = (1..9).map(|i| (0..5 * i).map(|j| 3 + i + j).collect()).collect();
    let input = place.requests("in.jsonl", &prompts, 8);
    let (input, output) = (input.to_string_lossy().into_owned(), place.path("out.jsonl"));
    let output = output.to_string_lossy();
    for (model, split) in [
        ("llama", &["--policy", "ellm"][..]),
        ("llama", &["--device", "emulated", "--split", "k:up"]),
        ("llama", &["--compress", "kv4"]),
        ("llama", &["--kv-select", "alpha=0.1,max=0.1"]),
        ("llama", &["--compress", "w4kv4", "--device", "emulated", "--split", "k:up"]),
        ("gemma3", &["--device", "emulated", "--split", "k:up"]),
        ("gpt_oss", &["--policy", "cpu-only"]),
        ("llama_dynamic", &["--policy", "cpu-only"]),
        ("phi3_longrope", &["--policy", "cpu-only"]),
        ("qwen3_moe", &["--device", "emulated", "--split", "router:expert_down"]),
        ("nemotron_h_latent", &["--device", "emulated", "--split", "router:expert_down"]),
    ] {
        let model = fixture(model).to_string_lossy().into_owned();
        let files = ["--model", &model, "--input", &input, "--output", &output, "--force"];
        run(&place, &[&files[..], &["--batches", "2x2"], split].concat());
        let report = json(&place.path("report.json"));
        let allocations = report["allocations_after_ready"].as_object().expect("by worker");
        assert!(!allocations.is_empty());
        for (worker, count) in allocations {
            assert_eq!(count, 0, "{worker} {model} {split:?}");
        }
    }
}

#[test]
fn nothing_is_padded() {
    let place = Place::new();
    let prompts = vec![vec![7u32], (0..512).map(|i| 3 + i % 900).collect()];
    let input = place.requests("in.jsonl", &prompts, 2);
    let input = input.to_string_lossy();
    let output = place.path("out.jsonl");
    let output = output.to_string_lossy();
    let model = ["--model", "smollm2-135m", "--dummy-weights", "--layers", "2"];
    let rest = ["--input", &input, "--output", &output, "--batches", "1x2"];
    let device = ["--device", "emulated", "--split", "scores:out"];
    run(&place, &[&model[..], &rest[..], &device[..]].concat());
    let trace = json(&place.path("trace.json"));
    let events = trace["traceEvents"].as_array().expect("events");
    let sum = |name: &str, phase: &str, what: &str| -> u64 {
        events
            .iter()
            .filter(|event| {
                event["name"].as_str().is_some_and(|n| n.starts_with(name))
                    && event["cat"].as_str() == Some(phase)
            })
            .map(|event| event["args"][what].as_u64().expect("a number"))
            .sum()
    };
    assert_eq!(sum("embed", "prefill", "rows"), 513);
    // 3 KV heads of 64 elements in bf16.
    let row_bytes = 3 * 64 * 2;
    assert_eq!(sum("append to K cache, layer 0", "prefill", "bytes"), 513 * row_bytes);
    // The only decode step streams the cached positions, not the reserved maximum.
    assert_eq!(sum("copy of K cache, layer 0", "decode", "bytes"), 513 * row_bytes);
}

#[test]
fn processes_use_little_more_than_the_plan() {
    let place = Place::new();
    let model = ["--model", "opt-1.3b", "--dummy-weights", "--layers", "1", "--batches", "2x2"];
    let lengths = ["--prompt-len", "8", "--gen-len", "2"];
    for device in [&["--device", "none"][..], &["--device", "emulated", "--split", "scores:fc0"]] {
        run(&place, &[&model[..], &lengths, device].concat());
        let report = json(&place.path("report.json"));
        let budget = |name: &str| report["budget_bytes"][name].as_u64().expect("bytes");
        let planned = budget("weights") + budget("kv") + budget("device");
        let used = report["peak_pss_bytes"]["sum"].as_u64().expect("bytes");
        // The plan is small compared with the code and stacks of its processes, for which 10% would
        // not suffice.
        let allowed = planned + planned / 10 + (32 << 20);
        assert!(used <= allowed, "{used} bytes used, {planned} planned, {device:?}");
        assert!(used > budget("weights") / 2, "{used} bytes used cannot be all of it");
    }
}

/// Weights that stay on the device have no copy on the host, so that both memories add up, and the
/// answers are those of the host.
#[test]
fn resident_weights_are_in_device_memory_alone() {
    let place = Place::new();
    let prompts: Vec<Vec<u32>> = (1..4).map(|i| (0..9 * i).map(|j| 3 + i + j).collect()).collect();
    let input = place.requests("in.jsonl", &prompts, 4).to_string_lossy().into_owned();
    let output = place.path("out.jsonl");
    let files = ["--input", &input, "--output", &output.to_string_lossy(), "--force"];
    let model = ["--model", "smollm2-135m", "--dummy-weights", "--batches", "1x3"];
    let answers = |options: &[&str]| {
        run(&place, &[&model[..], &files[..], &["--compress", "none"], options].concat());
        let answers = std::fs::read_to_string(&output).expect("answers");
        (answers, json(&place.path("report.json")))
    };
    // 30 layers of 7.08 MB and the head, which is the embedding of 56.6 MB, are on the device. A
    // host copy of the layers would exceed this limit, which is of both memories.
    let device = ["--device", "emulated", "--policy", "resident", "--dram", "560MiB"];
    let (of_device, report) = answers(&device);
    assert_eq!(of_device, answers(&["--device", "none"]).0);
    let bytes = |name: &str, of: &str| report[name][of].as_u64().expect("bytes");
    let embedding = 49_152 * 576 * 2;
    let weights = bytes("budget_bytes", "weights");
    assert!((embedding..=embedding + embedding / 20).contains(&weights), "{weights}");
    // The arena of the device is populated whole, and its pages are counted once.
    let device = bytes("budget_bytes", "device");
    for state in ["load_peak_pss_bytes", "peak_pss_bytes"] {
        let all = bytes(state, "sum");
        let host = all.saturating_sub(device);
        // Code, stacks, and staging buffers of the load; the layers are 212 MB.
        let allowed = weights + bytes("budget_bytes", "kv") + (96 << 20);
        assert!(host <= allowed, "{state}: {host} of {all} bytes, {allowed} allowed");
        assert!(all <= 560 << 20, "{state}: {all} bytes exceed the limit");
    }
}

#[test]
fn ellm_is_the_cpu_alone_with_contiguous_caches() {
    let output = |arguments: &[&str]| {
        let mut command = coordinator();
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    let run = ["--model", "opt-6.7b", "--batches", "1x2", "--policy", "ellm"];
    let (code, answer) = output(&[&["plan", "--machine", "spr-a100"], &run[..]].concat());
    assert_eq!(code, Some(0), "{answer}");
    for words in ["ellm", "contiguous for each sequence, allocated once for the maximum shape"] {
        assert!(answer.contains(words), "{words}: {answer}");
    }
    assert!(answer.contains("device memory 0.00 of"), "{answer}");

    // Pages of a store are the opposite of a contiguous cache.
    let place = Place::new();
    let (model, store) = (fixture("llama"), place.path("store"));
    let serve = ["serve", "--port", "0", "--policy", "ellm", "--model", &model.to_string_lossy()];
    let stored = ["--prompt-cache", &store.to_string_lossy()];
    let (code, refusal) = output(&[&serve[..], &stored[..]].concat());
    assert_eq!(code, Some(2), "{refusal}");
    assert!(refusal.contains("--policy ellm"), "{refusal}");

    let body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 8, "ignore_eos": true});
    // `created` is the time at which the input was written, which each run repeats.
    let answered = |options: &[&str]| {
        let answers = place.answered(std::slice::from_ref(&body), options);
        answers[0]["response"]["body"]["choices"].clone()
    };
    assert_eq!(answered(&["--policy", "ellm"]), answered(&["--policy", "cpu-only"]));
}

/// System calls of one check of the only worker here, and of the wait before it.
const CALLS_OF_A_LOOK: f64 = 6.0;

#[test]
fn the_coordinators_system_calls_do_not_grow_with_layers() {
    let strace = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    if !strace.is_ok_and(|status| status.success()) {
        println!(
            "SKIP the_coordinators_system_calls_do_not_grow_with_layers: strace is not installed"
        );
        return;
    }
    let place = Place::new();
    let calls = |layers: &str, gen_len: &str| -> Option<f64> {
        let counts = place.path("strace.txt");
        let begun = Instant::now();
        // -c without -f: only the coordinator's own threads that exist at its start are counted.
        let done = Command::new("strace")
            .args(["-c", "-U", "calls,name", "-o"])
            .arg(&counts)
            .arg(env!("CARGO_BIN_EXE_coordinator"))
            .args(["--model", "smollm2-135m", "--dummy-weights", "--layers", layers])
            .args(["--prompt-len", "4", "--gen-len", gen_len, "--batches", "1x1", "--quiet"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .ok()?;
        let text = std::fs::read_to_string(counts).ok()?;
        let total = text.lines().find(|line| line.trim_end().ends_with("total"))?;
        let total: f64 = total.split_whitespace().next()?.parse().ok()?;
        // It checks its workers ten times per second, however long a step takes.
        let looks = begun.elapsed().as_secs_f64() * 10.0;
        done.success().then_some(total - looks * CALLS_OF_A_LOOK)
    };
    let Some(first) = calls("2", "16") else {
        println!(
            "SKIP the_coordinators_system_calls_do_not_grow_with_layers: strace may not trace here"
        );
        return;
    };
    let per_step = |layers: &str, short: f64| -> f64 {
        (calls(layers, "66").expect("strace works") - short) / 50.0
    };
    let few = per_step("2", first);
    let many = per_step("12", calls("12", "16").expect("strace works"));
    println!("system calls per decode step: {few:.1} with 2 layers, {many:.1} with 12");
    // No system call depends on the number of layers.
    assert!(many < few + 7.0, "{few} with 2 layers, {many} with 12");
}

#[test]
fn workers_that_serve_allocate_nothing_but_for_forms() {
    let (with_forms, without): (Vec<Value>, Vec<Value>) =
        bodies(50).into_iter().partition(|body| body.get("structured_outputs").is_some());
    let served = Served::start(&["--slots", "5"]);
    ask_all(&served, &without);
    assert_eq!(allocations(&served), 0.0);
    let rules = json!({"repetition_penalty": 1.2, "frequency_penalty": 0.5, "min_tokens": 1,
        "logit_bias": {"7": 2, "8": -1}, "stop_token_ids": [9]});
    let with_rules = without.iter().cloned().map(|mut body| {
        let fields = body.as_object_mut().expect("a body");
        fields.extend(rules.as_object().expect("fields").clone());
        body
    });
    ask_all(&served, &with_rules.collect::<Vec<_>>());
    assert_eq!(allocations(&served), 0.0);
    ask_all(&served, &with_forms);
    assert!(allocations(&served) > 0.0, "what is measured is not nothing");
}
