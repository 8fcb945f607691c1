//! Tests of new tokens that attend to selected positions, with real processes: the messages, the
//! refusals, and that selecting everything gives the answers of a run without selection.

use std::process::{Output, Stdio};

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, lines, text};

fn run(place: &Place, output: &str, extra: &[&str]) -> Output {
    let mut command = coordinator();
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path(output)).args(["--batches", "1x3", "--device", "none"]);
    command.arg("--report").arg(place.path("report.json"));
    finish(command.args(extra).stderr(Stdio::piped()).spawn().expect("starts"))
}

fn requests(place: &Place) {
    let prompt = |i: u32| (0..20 + 13 * i).map(|j| 5 + (9 * i + j * j) % 90).collect();
    let prompts: Vec<Vec<u32>> = (0..4).map(prompt).collect();
    place.requests("in.jsonl", &prompts, 12);
}

fn bodies(place: &Place, output: &str) -> Vec<Value> {
    lines(&place.path(output)).into_iter().map(|line| line["response"]["body"].clone()).collect()
}

fn share_read(place: &Place) -> f64 {
    let report = std::fs::read_to_string(place.path("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    report["kv_select"]["share_read"].as_f64().expect("a share")
}

#[test]
fn everything_selected_answers_as_a_run_without_and_says_that_it_selects() {
    let place = Place::new();
    requests(&place);
    assert!(run(&place, "whole.jsonl", &[]).status.success());
    let done = run(&place, "all.jsonl", &["--kv-select", "alpha=1000,max=1"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("--kv-select"), "{}", text(&done.stderr));
    assert!(share_read(&place) > 0.999);
    let (whole, all) = (bodies(&place, "whole.jsonl"), bodies(&place, "all.jsonl"));
    assert_eq!(whole.len(), 4);
    for (whole, all) in whole.iter().zip(&all) {
        assert_eq!(whole["choices"], all["choices"]);
        assert_ne!(whole["system_fingerprint"], all["system_fingerprint"]);
    }
}

#[test]
fn what_is_read_is_reported_and_other_settings_do_not_resume() {
    let place = Place::new();
    requests(&place);
    let few = ["--kv-select", "alpha=0.2,max=0.1"];
    let done = run(&place, "few.jsonl", &few);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let share = share_read(&place);
    assert!(share > 0.3 && share < 0.999, "{share}");
    let before = std::fs::read(place.path("few.jsonl")).expect("answers");
    let others: [&[&str]; 3] = [
        &["--resume"],
        &["--resume", "--kv-select", "alpha=0.3,max=0.1"],
        &["--resume", "--kv-select", "alpha=0.2,max=0.2"],
    ];
    for other in others {
        assert!(!run(&place, "few.jsonl", other).status.success(), "{other:?}");
    }
    assert_eq!(std::fs::read(place.path("few.jsonl")).expect("answers"), before);
    let resumed = run(&place, "few.jsonl", &[&few[..], &["--resume"]].concat());
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
}

#[test]
fn what_cannot_select_is_refused_by_name() {
    let place = Place::new();
    requests(&place);
    let select = ["--kv-select", "alpha=4,max=0.2"];
    for (extra, word) in [
        (&["--device", "emulated"][..], "--device none"),
        (&["--no-fuse"], "--no-fuse"),
        (&["--kv-select-text", "/no/such/text"], "cannot be read"),
    ] {
        let mut command = coordinator();
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
        command.arg("--output").arg(place.path("out.jsonl")).args(select).args(extra);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(!done.status.success(), "{extra:?}");
        assert!(text(&done.stderr).contains(word), "{extra:?}: {}", text(&done.stderr));
    }
    let mut command = coordinator();
    command.arg("--model").arg(fixture("gpt_oss")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl")).args(select);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(!done.status.success());
    assert!(text(&done.stderr).contains("window"), "{}", text(&done.stderr));
}
