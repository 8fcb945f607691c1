//! Tests that an interrupted run, resumed, ends in the same bytes as an undisturbed one.

use std::process::Stdio;

use crate::command::{Place, coordinator, finish, fixture, text};

fn run(place: &Place, output: &str, extra: &[&str]) -> std::process::Output {
    run_model("llama", place, output, extra)
}

fn run_model(name: &str, place: &Place, output: &str, extra: &[&str]) -> std::process::Output {
    let mut command = coordinator();
    command
        .arg("--model")
        .arg(fixture(name))
        .arg("--input")
        .arg(place.path("in.jsonl"))
        .arg("--output")
        .arg(place.path(output))
        .args(["--batches", "1x2", "--quiet"])
        .args(extra)
        .stderr(Stdio::piped());
    finish(command.spawn().expect("starts"))
}

fn requests(place: &Place) {
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| (0..=i).map(|j| 5 + 9 * i + j).collect()).collect();
    place.requests("in.jsonl", &prompts, 6);
}

#[test]
fn a_torn_output_is_completed_to_the_same_bytes() {
    completed("llama", &[]);
}

#[test]
fn a_torn_output_of_layers_that_share_caches_is_completed_to_the_same_bytes() {
    completed("gemma4_shared", &["--dtype", "f32"]);
}

#[test]
fn a_torn_output_of_layers_with_other_heads_is_completed_to_the_same_bytes() {
    completed("step3p5", &["--dtype", "f32"]);
}

#[test]
fn a_torn_output_of_a_residual_of_streams_is_completed_to_the_same_bytes() {
    completed("deepseek_v4_windows", &["--dtype", "f32"]);
}

#[test]
fn a_torn_output_of_layers_with_entries_is_completed_to_the_same_bytes() {
    completed("deepseek_v4", &["--dtype", "f32"]);
}

#[test]
fn a_torn_output_of_experts_in_a_latent_is_completed_to_the_same_bytes() {
    completed("nemotron_h_latent", &["--dtype", "f32"]);
}

#[test]
fn a_torn_output_of_a_quantised_kv_cache_is_completed_to_the_same_bytes() {
    completed("llama", &["--compress", "kv4"]);
    completed("llama", &["--compress", "kv8"]);
}

fn completed(name: &str, form: &[&str]) {
    let place = Place::new();
    requests(&place);
    assert!(run_model(name, &place, "whole.jsonl", form).status.success());
    let whole = std::fs::read(place.path("whole.jsonl")).expect("output");
    // In the middle of a line, at a line's end, and with nothing written.
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(i, _)| i + 1).collect();
    for cut in [0, ends[1] - 7, ends[1], ends[3], ends[4] + 1] {
        std::fs::write(place.path("torn.jsonl"), &whole[..cut]).expect("writable");
        let done = run_model(name, &place, "torn.jsonl", &[form, &["--resume"]].concat());
        assert!(done.status.success(), "cut at {cut}: {}", text(&done.stderr));
        let resumed = std::fs::read(place.path("torn.jsonl")).expect("output");
        assert_eq!(text(&resumed), text(&whole), "cut at {cut}");
    }
}

#[test]
fn an_output_is_never_overwritten_or_mixed_by_accident() {
    let place = Place::new();
    requests(&place);
    assert!(run(&place, "out.jsonl", &[]).status.success());
    let before = std::fs::read(place.path("out.jsonl")).expect("output");
    let refused = run(&place, "out.jsonl", &[]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("--resume"), "{}", text(&refused.stderr));
    let compressed = ["w4", "kv4", "kv8"].map(|form| ["--compress", form]);
    for other in [["--seed", "7"], ["--dtype", "f32"]].iter().chain(&compressed) {
        let mixed = run(&place, "out.jsonl", &[&["--resume"], &other[..]].concat());
        assert!(!mixed.status.success(), "{other:?}");
    }
    assert_eq!(std::fs::read(place.path("out.jsonl")).expect("output"), before);
}
