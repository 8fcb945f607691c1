//! Tests of the script of the GPU bundle: its correctness stages with the stand-in driver, and its
//! table on a machine without a device. Its figures for the stand-in do not indicate performance.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::command::{Place, finish, text};
use crate::cuda::folder;
use crate::nvme::direct::libraries;

fn stages(place: &Place, what: &str, set: &[(&str, &str)]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new("sh");
    command
        .arg(root.join("scripts/gpu_run.sh"))
        .arg(what)
        .env("COORDINATOR", env!("CARGO_BIN_EXE_coordinator"))
        .env("FIXTURES", root.join("tests/fixtures"))
        .env("OUT", place.path("out"))
        .env("LD_LIBRARY_PATH", folder())
        .env("RUNS", "2")
        .env("SPLITS", "scores:norm1 q: norm0:down")
        .envs(set.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    finish(command.spawn().expect("a shell"))
}

/// Returns the name, status and description of each stage.
fn rows(place: &Place) -> Vec<(String, String, String)> {
    let results = std::fs::read_to_string(place.path("out").join("results.json")).expect("results");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    let stages = results["stages"].as_array().expect("stages").iter();
    let part = |row: &Value, name: &str| row[name].as_str().expect("a text").to_owned();
    stages.map(|row| (part(row, "stage"), part(row, "status"), part(row, "what"))).collect()
}

#[test]
fn correctness_runs_through_the_stand_in() {
    let place = Place::new();
    let with_cufile = libraries(&place, true).to_str().expect("a plain path").to_owned();
    let done = stages(&place, "test", &[("LD_LIBRARY_PATH", &with_cufile)]);
    let said = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("stand-in"), "labelled as what it is: {said}");
    let rows = rows(&place);
    let status = |name: &str| {
        let row = rows.iter().find(|(stage, ..)| stage == name);
        row.unwrap_or_else(|| panic!("{name}: {rows:?}")).1.as_str()
    };
    for name in ["golden tokens", "placement invariance", "direct reads", "no leak"] {
        assert_eq!(status(name), "ok", "{said}");
    }
    assert_eq!(rows.len(), 5, "{rows:?}");
    let direct = rows.iter().find(|(stage, ..)| stage == "direct reads").expect("a row");
    assert!(direct.2.contains("read by cuFile"), "{direct:?}");
}

#[test]
fn a_wrong_token_fails_its_stage_and_the_script() {
    let place = Place::new();
    // After a fault in the middle the first stage reports what happened, and the others that they
    // depend on it.
    let done = stages(&place, "test", &[("STANDIN_CUDA_FAIL", "cuLaunchKernel:40:719")]);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stdout));
    let rows = rows(&place);
    assert_eq!(rows[0].1, "failed");
    assert!(rows[0].2.contains("cuLaunchKernel"), "{rows:?}");
}

#[test]
fn without_a_device_every_row_is_skipped_with_the_reason() {
    let place = Place::new();
    let done = stages(&place, "bench", &[("STANDIN_CUDA_DEVICES", "0")]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
    let rows = rows(&place);
    assert!(rows.len() > 15, "{rows:?}");
    for (stage, status, what) in &rows {
        assert_eq!(status, "skipped", "{stage}");
        assert!(what.contains("no device"), "{stage}: {what}");
    }
    let stages: Vec<&str> = rows.iter().map(|(stage, ..)| stage.as_str()).collect();
    let place_of = |name: &str| stages.iter().position(|stage| *stage == name).expect(name);
    let order = ["golden tokens", "1x50", "FlexGen's schedule 1x50", "compressed 4x60", "1x100"];
    assert!(order.map(place_of).is_sorted(), "{stages:?}");
}
