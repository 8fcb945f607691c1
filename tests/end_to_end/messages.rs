//! Tests of the messages of a run: brief on the screen, complete in the report.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, real_model, text};

/// Lanes and their overlap are shown on request only.
#[test]
fn lanes_are_told_with_v_and_always_in_the_report() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![5, 9, 11]], 4);
    let said = |extra: &[&str]| {
        let mut run = coordinator();
        run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input).arg("--report");
        run.arg(place.path("report.json")).args(extra);
        let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(run.spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let report = || -> Value {
        let text = std::fs::read_to_string(place.path("report.json")).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    };
    let plain = said(&[]);
    assert!(!plain.contains("cpu.compute") && !plain.contains("time outside"), "{plain}");
    assert!(plain.contains("decode") && plain.contains("peak memory"), "{plain}");
    assert!(report()["lanes"]["cpu.compute"]["busy_s"].as_f64().expect("a time") > 0.0);
    let verbose = said(&["-v"]);
    assert!(verbose.contains("cpu.compute") && verbose.contains("time outside"), "{verbose}");
}

#[test]
fn the_report_counts_requests_by_how_they_ended() {
    let place = Place::new();
    let input = place.path("in.jsonl");
    let lines = [
        json!({"prompt": [5, 9, 11], "max_tokens": 2}),
        json!({"prompt": [5, 9], "max_tokens": 2}),
        json!({"prompt": [5], "max_tokens": 0}),
    ];
    let lines: String = lines.iter().map(|line| line.to_string() + "\n").collect();
    std::fs::write(&input, lines).expect("writable");
    let mut run = coordinator();
    run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input);
    run.arg("--output").arg(place.path("out.jsonl")).args(["--report", "-"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(run.spawn().expect("starts"));
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    let report: Value = serde_json::from_slice(&done.stdout).expect("only the report");
    let expected = json!({"answered": 2, "failed": 1, "cut": 2, "not_run": 0});
    assert_eq!(report["requests"], expected);
}

/// Automatic decisions are printed before the run and recorded in its report; the table at the end
/// does not repeat them.
#[test]
fn a_note_is_said_once() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![5, 9, 11]], 2);
    let drive = place.path("drive");
    std::fs::create_dir(&drive).expect("writable");
    let drive = drive.to_string_lossy().into_owned();
    let cases: [(&[&str], &str); 2] = [
        (&["--kv-select", "alpha=8,max=0.2"], "New tokens attend to selected positions"),
        (&["--nvme", &drive], "All weights fit in memory"),
    ];
    for (options, note) in cases {
        let mut run = coordinator();
        run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input).args(options);
        run.arg("--output").arg(place.path("out.jsonl")).args(["--force", "--report"]);
        run.arg(place.path("report.json")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(run.spawn().expect("starts"));
        let said = text(&done.stdout) + &text(&done.stderr);
        assert!(done.status.success(), "{said}");
        assert_eq!(said.matches(note).count(), 1, "{said}");
        let report = std::fs::read_to_string(place.path("report.json")).expect("a report");
        assert!(report.contains(note), "{report}");
    }
}

/// For a request of three answers, progress and the last line count answers and requests
/// consistently.
#[test]
fn answers_and_requests_are_told_apart() {
    let place = Place::new();
    let input = place.path("in.jsonl");
    let line = json!({"prompt": [5, 9, 11], "n": 3, "max_tokens": 2, "ignore_eos": true});
    std::fs::write(&input, format!("{line}\n")).expect("writable");
    let mut run = coordinator();
    run.arg("--model").arg(fixture("llama")).arg("--input").arg(&input);
    let run = run.arg("--output").arg(place.path("out.jsonl")).stderr(Stdio::piped());
    let done = finish(run.spawn().expect("starts"));
    let said = text(&done.stderr);
    assert!(said.contains("3 of 3 answers: 6 new tokens"), "{said}");
    assert!(said.ends_with("1 answered with 3 answers, 0 failed\n"), "{said}");
}

#[test]
fn weights_that_grow_in_memory_are_named_with_both_sizes() {
    let Some(model) = real_model() else {
        println!("SKIP expanded weights: the model is not there; scripts/model.sh fetches it");
        return;
    };
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![5, 9, 11]], 2);
    let said = |extra: &[&str]| {
        let mut run = coordinator();
        run.arg("--model").arg(&model).arg("--input").arg(&input).args(extra);
        let run = run.args(["--report", "-", "--output"]).arg(place.path("out.jsonl"));
        let run = run.arg("--force").stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(run.spawn().expect("starts"));
        let report: Value = serde_json::from_slice(&done.stdout).expect("a report");
        (text(&done.stderr), report["note"].as_str().unwrap_or_default().to_owned())
    };
    let (said_direct, note) = said(&["--quantized", "direct"]);
    assert!(!said_direct.contains("expanded") && note.is_empty(), "{said_direct} {note}");
    let (said_expanded, note) = said(&["--quantized", "expand"]);
    assert!(note.contains("Q4_1") && note.contains("are expanded to bf16: 0."), "{note}");
    assert!(said_expanded.contains(&note), "{said_expanded}");
    let (_, note) = said(&["--quantized", "expand", "--compress", "w4"]);
    assert!(note.contains("rounded a second time"), "{note}");
}

#[test]
fn formats_are_told_by_the_program() {
    let mut formats = coordinator();
    let done = finish(formats.arg("formats").stdout(Stdio::piped()).spawn().expect("starts"));
    let stderr = text(&done.stdout);
    assert!(done.status.success());
    for section in ["# File formats", "## Input", "## Report", "custom_id"] {
        assert!(stderr.contains(section), "{section}: {stderr}");
    }
    // The text refers to no source file.
    assert!(!stderr.contains(".rs"), "{stderr}");
}
