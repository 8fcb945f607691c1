//! Tests of the profile of the machine: it is kept, measured again once when the machine changes,
//! and survives any death; and of plans made with it: every policy gives the same answers, and
//! predicts how long it will take.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, text};

const WORKLOAD: [&str; 4] = ["--batches", "2x2", "--device", "emulated"];

/// Returns a command for the binary with its own cache.
fn alone(place: &Place) -> Command {
    let mut command = coordinator();
    command.env("XDG_CACHE_HOME", place.path("cache")).stderr(Stdio::piped());
    command
}

fn profile(place: &Place, extra: &[&str]) -> Command {
    let mut command = alone(place);
    let workload = ["--batches", "2x2", "--prompt-len", "16", "--gen-len", "4"];
    command.arg("profile").arg("--model").arg(fixture("llama")).args(workload).args(extra);
    command.stdout(Stdio::piped());
    command
}

/// Returns the first message of `coordinator profile`: if it measured, and why.
fn said(place: &Place) -> String {
    let done = finish(profile(place, &[]).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let all = text(&done.stderr);
    let found = all.lines().find(|line| line.contains("measured"));
    found.unwrap_or_else(|| panic!("{all}")).to_owned()
}

/// Returns the only profile in the cache.
fn kept(place: &Place) -> PathBuf {
    let folder = place.path("cache/tandem");
    let files = std::fs::read_dir(&folder).expect("a cache").map(|entry| entry.expect("entry"));
    let paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths[0].clone()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a profile")
}

#[test]
fn a_changed_machine_is_named_and_measured_once() {
    let place = Place::new();
    assert!(said(&place).contains("measured this machine"));
    assert!(said(&place).contains("measured before"));
    let path = kept(&place);
    let mut edited: Value = serde_json::from_str(&read(&path)).expect("JSON");
    edited["fingerprint"]["machine"]["CPU model"] = "An abacus".into();
    std::fs::write(&path, edited.to_string()).expect("writable");
    let again = said(&place);
    assert!(again.contains("CPU model An abacus ->"), "{again}");
    assert!(said(&place).contains("measured before"));
    // Edited figures, and half a file.
    edited = serde_json::from_str(&read(&path)).expect("JSON");
    edited["measurements"]["work"][0]["mean_ns"] = 1.0.into();
    let half = read(&path);
    for (damaged, why) in [(edited.to_string(), "checksum"), (half[..400].to_owned(), "complete")] {
        std::fs::write(&path, damaged).expect("writable");
        let redone = said(&place);
        assert!(redone.contains("measured this machine") && redone.contains(why), "{redone}");
        assert!(said(&place).contains("measured before"));
    }
}

#[test]
fn a_death_while_measuring_leaves_the_profile() {
    let place = Place::new();
    said(&place);
    let path = kept(&place);
    let mut before = read(&path);
    let mut killed = 0;
    for delay_ms in [1, 20, 40, 60, 80, 120, 160, 200] {
        let mut child = profile(&place, &["--force"]).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(delay_ms));
        let measuring = child.try_wait().expect("a child").is_none();
        let pid = Pid::from_child(&child);
        // Fails if the process has already ended, which is detected below.
        let _ = kill_process(pid, Signal::KILL);
        finish(child);
        let after = read(&path);
        killed += u32::from(measuring && after == before);
        // The old profile or, after the last moment, the new one, and complete in either case.
        assert!(said(&place).contains("measured before"), "after {delay_ms} ms");
        before = after;
    }
    assert!(killed > 0, "every run had ended before it was killed");
}

/// Returns the answers, the report and the messages of a run with its own cache.
fn run(place: &Place, input: &Path, extra: &[&str]) -> (String, Value, String) {
    let (output, report) = (place.path("out.jsonl"), place.path("report.json"));
    let mut command = alone(place);
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(input);
    command.arg("--output").arg(&output).arg("--report").arg(&report).arg("--force").args(extra);
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{extra:?}: {}", text(&done.stderr));
    let answers = crate::command::token_ids(&output);
    let report = serde_json::from_str(&read(&report)).expect("JSON");
    (format!("{answers:?}"), report, text(&done.stderr))
}

fn prompts() -> Vec<Vec<u32>> {
    (0..4u32).map(|i| (0..5 + i).map(|j| 7 + 9 * i + j).collect()).collect()
}

#[test]
fn every_policy_answers_the_same_and_predicts_first() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts(), 6);
    let (expected, ..) = run(&place, &input, &["--policy", "cpu-only", "--device", "none"]);
    for policy in [
        "auto",
        "two-split",
        "one-split",
        "gpu-only",
        "cpu-only",
        "lia",
        "lia:spread",
        "flexgen",
        "flexgen:spread",
    ] {
        let (answers, report, stderr) =
            run(&place, &input, &[&WORKLOAD[..], &["--policy", policy]].concat());
        assert_eq!(answers, expected, "{policy}");
        let predicted = &report["predicted"];
        assert_eq!(predicted["source"], "profile", "{policy}: {predicted}");
        for time in ["prefill_s", "decode_s"] {
            assert!(predicted[time].as_f64().is_some_and(|s| s > 0.0), "{policy}: {predicted}");
        }
        let (first, then) = (stderr.find("predicted: prefill"), stderr.find("group 1 of 1"));
        assert!(first.is_some() && (then.is_none() || first < then), "{policy}: {stderr}");
    }
    // All of them use two measurements: with the device, and with all cores without it. If fewer
    // threads were found to be faster, which may also happen on a busy machine, either was measured
    // with these as well.
    let cached = || {
        let files = std::fs::read_dir(place.path("cache/tandem")).expect("a cache");
        let paths = files.map(|file| file.expect("entry").path());
        // The cache also has a file about weight files.
        let profiles = paths.filter(|path| !path.ends_with("weights.json"));
        let parsed = profiles.map(|path| serde_json::from_str::<Value>(&read(&path)));
        parsed.map(|profile| profile.expect("JSON")).collect::<Vec<_>>()
    };
    let count = |profiles: &[Value], what: &str| -> usize {
        let of = |profile: &Value| profile["measurements"][what].as_array().map_or(0, Vec::len);
        profiles.iter().map(of).sum()
    };
    let before = cached();
    assert!((2..=4).contains(&before.len()), "{} profiles", before.len());
    // Rehearsals are kept with them: the same run again measures nothing. Measured and predicted
    // times are kept, too. Two runs count here if `auto` chose this placement.
    let (.., stderr) = run(&place, &input, &[&WORKLOAD[..], &["--policy", "two-split"]].concat());
    assert!(stderr.contains("two-split: as its last run"), "{stderr}");
    let after = cached();
    for what in ["work", "rehearsals"] {
        let of = |profiles: &[Value]| {
            let texts = profiles.iter().map(|profile| profile["measurements"][what].to_string());
            texts.collect::<BTreeSet<_>>()
        };
        assert_eq!(of(&after), of(&before), "{what}");
    }
    assert_eq!(count(&after, "finished"), count(&before, "finished") + 1);
    for finished in after
        .iter()
        .flat_map(|profile| profile["measurements"]["finished"].as_array().expect("a list").iter())
    {
        for (who, phase) in [
            ("simulated", "prefill_ns"),
            ("simulated", "decode_ns"),
            ("measured", "prefill_ns"),
            ("measured", "decode_ns"),
        ] {
            assert!(finished[who][phase].as_f64().is_some_and(|ns| ns > 0.0), "{finished}");
        }
    }
}

/// Returns the cells of each row in the table of placements.
fn rows(stderr: &str) -> Vec<Vec<String>> {
    let head = stderr.lines().position(|line| line.contains("gpu in decode")).expect("a table");
    let rows = stderr.lines().skip(head + 2).take_while(|line| !line.starts_with('─'));
    let cells = |line: &str| line.split("  ").map(str::trim).map(str::to_owned).collect();
    rows.map(cells)
        .map(|cells: Vec<String>| cells.into_iter().filter(|c| !c.is_empty()).collect())
        .collect()
}

#[test]
fn what_is_explained_is_what_runs() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts(), 6);
    let (_, report, stderr) = run(&place, &input, &WORKLOAD);
    let rows = rows(&stderr);
    let chosen: Vec<&Vec<String>> =
        rows.iter().filter(|row| row.last().is_some_and(|cell| cell == "chosen")).collect();
    assert_eq!(chosen.len(), 1, "{stderr}");
    assert_eq!(chosen[0][0], report["policy"].as_str().expect("a name"), "{stderr}");
    // Policy, prefill, decode and resident data distinguish any two rows.
    let distinct: BTreeSet<&[String]> = rows.iter().map(|row| &row[..4]).collect();
    assert_eq!(distinct.len(), rows.len(), "{stderr}");
}

#[test]
fn batches_and_forms_are_chosen_aloud() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts(), 6);
    let (_, report, _) =
        run(&place, &input, &["--batches", "auto", "--compress", "auto", "--device", "emulated"]);
    // The fastest number of batches depends on measurements, so that the number of groups is
    // derived from it.
    let of = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name}: {report}"));
    let in_a_group = of("batches") * of("batch_size");
    assert_eq!(of("groups"), 4u64.div_ceil(in_a_group), "{report}");
    assert_eq!(report["requests"]["answered"], 4);
    // Nothing is compressed if it fits, and no note mentions compression.
    assert_eq!(report["kv_format"], "bf16");
    assert!(report["note"].is_null(), "{report}");
}

/// For the profiled model and shape the exported machine file gives the same predictions as the
/// machine itself.
#[test]
fn an_exported_machine_predicts_what_this_one_does() {
    let place = Place::new();
    let file = place.path("machine.toml").to_string_lossy().into_owned();
    let plan = |on: &[&str]| -> Value {
        let mut command = alone(&place);
        command.args(["plan", "--json", "--model"]).arg(fixture("llama"));
        command.args(["--prompt-len", "16", "--gen-len", "4"]).args(on);
        if !on.contains(&"--batches") {
            command.args(["--batches", "2x2"]);
        }
        let done = finish(command.stdout(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{on:?}: {}", text(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let policies = ["cpu-only", "two-split", "gpu-only", "lia", "flexgen", "auto"];
    // Both know how much device memory there is.
    let device = ["--device", "emulated:vram=1GiB"];
    let here = policies.map(|policy| plan(&[device[0], device[1], "--policy", policy]));
    let export = [device[0], device[1], "--export", &file];
    let done = finish(profile(&place, &export).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    for (policy, here) in policies.into_iter().zip(&here) {
        let there = plan(&["--machine", &file, "--policy", policy]);
        for field in ["prefill_ms", "decode_ms", "decode_step_ms", "total_ms", "tokens_per_s"] {
            let of = |answer: &Value| answer[field].as_f64().expect("a number");
            let error = of(&there) / of(here) - 1.0;
            assert!(error.abs() < 1e-3, "{policy}: {field} {} and {}", there[field], here[field]);
        }
        assert_eq!(there["device_map"], here["device_map"], "{policy}");
    }
    // For another shape the file's rates are used, so that they suffice without the measurements.
    let wide = ["--machine", &file, "--policy", "two-split", "--batches", "2x64"];
    let whole = read(Path::new(&file));
    let (rates, _) = whole.split_once("[profile]").expect("measurements");
    let cut = place.path("rates.toml");
    std::fs::write(&cut, rates).expect("writable");
    let by_rates = ["--machine", &cut.to_string_lossy(), "--policy", "two-split"];
    assert_eq!(plan(&wide)["tokens_per_s"], {
        let by_rates = [&by_rates[..], &["--batches", "2x64"]].concat();
        plan(&by_rates)["tokens_per_s"].clone()
    });
    let edited = whole.replacen("\"mean_ns\": ", "\"mean_ns\": 1", 1);
    std::fs::write(&file, edited).expect("writable");
    let mut command = alone(&place);
    command.args(["plan", "--machine", &file, "--model"]).arg(fixture("llama"));
    let done = finish(command.spawn().expect("starts"));
    assert!(text(&done.stderr).contains("checksum"), "{}", text(&done.stderr));
}
