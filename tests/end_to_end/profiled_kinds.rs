//! Tests of profiles of models whose layers have experts, windows or sinks: all costs that such a
//! run needs are measured, and its tokens equal those of transformers with policies that use them.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{
    Place, coordinator, finish, fixture, golden, ids, runs_all_cases, text, token_ids,
};

/// Number of prompts, which fill two batches.
const PROMPTS: usize = 8;
const NEW_TOKENS: u32 = 12;
/// Policies of every run, and those that `make fuzz` adds.
const POLICIES: [&str; 2] = ["auto", "lia"];
const MORE_POLICIES: [&str; 2] = ["two-split", "gpu-only"];
/// Seconds that a profile takes instead of those of a user's.
const PROFILE_S: &str = "2";

/// Runs `coordinator` with the test's own cache and returns its messages.
fn run(place: &Place, arguments: &[&str]) -> String {
    let mut command = coordinator();
    command.env("XDG_CACHE_HOME", place.path("cache"));
    command.env("TANDEM_PROFILE_S", PROFILE_S).args(arguments);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    text(&done.stderr)
}

/// Profiles a fixture, runs it with every policy and returns the reports.
fn reports(name: &str) -> Vec<Value> {
    let golden = golden(name);
    let lists = |key: &str| -> Vec<Vec<u32>> {
        golden[key].as_array().expect("lists").iter().take(PROMPTS).map(ids).collect()
    };
    let prompts = lists("prompts");
    let mut expected = lists("tokens");
    expected.iter_mut().for_each(|tokens| tokens.truncate(NEW_TOKENS as usize));
    let place = Place::new();
    let at = |file: &str| place.path(file).to_string_lossy().into_owned();
    let input = place.requests("in.jsonl", &prompts, NEW_TOKENS);
    let longest = prompts.iter().map(Vec::len).max().expect("prompts").to_string();
    let model = fixture(name).to_string_lossy().into_owned();
    let workload =
        ["--model", &model, "--dtype", "f32", "--batches", "2x4", "--device", "emulated"];
    let lengths = ["--prompt-len", &longest, "--gen-len", &NEW_TOKENS.to_string()];
    let said = run(&place, &[&["profile"], &workload[..], &lengths].concat());
    assert!(said.contains("measured this machine"), "{said}");
    let (input, output, report) = (input.to_string_lossy(), at("out.jsonl"), at("report.json"));
    let files = ["--input", &*input, "--output", &output, "--report", &report, "--force"];
    let one = |policy: &&str| -> Value {
        run(&place, &[&workload[..], &files, &["--policy", policy]].concat());
        assert_eq!(token_ids(output.as_ref()), expected, "{name}, {policy}");
        let report = std::fs::read_to_string(&report).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["predicted"]["source"], "profile", "{name}, {policy}");
        report
    };
    let more = if runs_all_cases() { &MORE_POLICIES[..] } else { &[] };
    POLICIES.iter().chain(more).map(one).collect()
}

/// Asserts that all reports of a model agree about its routing, which depends on its tokens alone.
fn says_how_skewed(name: &str, experts: u64, per_token: f64) {
    let reports = reports(name);
    for report in &reports {
        let routing = &report["routing"];
        let of = |field: &str| routing[field].as_f64().unwrap_or_else(|| panic!("{report}"));
        assert_eq!(routing["experts"], experts, "{name}");
        let rows = of("rows_per_step");
        assert_eq!(rows, 4.0, "all answers are as long: {routing}");
        let used = of("used_per_step");
        assert!((per_token..=(rows * per_token).min(experts as f64)).contains(&used), "{routing}");
        let busiest = of("busiest_share");
        assert!((of("busiest_share_if_even")..1.0).contains(&busiest), "{routing}");
        assert_eq!(routing, &reports[0]["routing"], "{name}");
    }
}

#[test]
fn experts_are_profiled_and_their_routing_told() {
    says_how_skewed("qwen3_moe", 16, 4.0);
}

#[test]
fn experts_in_a_latent_are_profiled_too() {
    says_how_skewed("nemotron_h_latent", 16, 5.0);
}

#[test]
fn experts_with_sinks_and_windows_are_profiled_too() {
    says_how_skewed("gpt_oss", 5, 2.0);
}

#[test]
fn windows_and_four_norms_are_profiled() {
    assert!(reports("gemma3").iter().all(|report| report["routing"].is_null()));
}

#[test]
fn weights_of_few_bits_are_profiled_as_their_file_holds_them() {
    let place = Place::new();
    let model = fixture("gpt_oss_mxfp4").join("model.gguf");
    let prompt: Vec<u32> = (1..=16).collect();
    let input = place.requests("in.jsonl", &[prompt], 4);
    let at = |file: &str| place.path(file).to_string_lossy().into_owned();
    let (model, input) = (model.to_string_lossy(), input.to_string_lossy());
    let (output, report) = (at("out.jsonl"), at("report.json"));
    let workload = ["--model", &*model, "--batches", "1x1", "--device", "none"];
    run(&place, &[&["profile"], &workload[..], &["--prompt-len", "16", "--gen-len", "4"]].concat());
    let files = ["--input", &*input, "--output", &output, "--report", &report];
    run(&place, &[&workload[..], &files, &["--policy", "cpu-only"]].concat());
    let report = std::fs::read_to_string(&report).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["predicted"]["source"], "profile", "{report}");
}
