//! Tests of profiling a CUDA device and choosing a placement, with the stand-in driver. The times
//! are those of a CPU in place of a GPU: the tests only check that they exist and lead to a plan.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, text};
use crate::cuda::folder;

/// Runs the binary with the stand-in and its own cache.
fn done(cache: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = coordinator();
    command.env("LD_LIBRARY_PATH", folder()).env("XDG_CACHE_HOME", cache);
    command.env("STANDIN_CUDA_SEED", "5").env("TANDEM_PROFILE_S", "3").args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{arguments:?}: {}", text(&done.stderr));
    (text(&done.stdout), text(&done.stderr))
}

#[test]
fn a_cuda_device_is_profiled_and_decides_a_placement() {
    let place = Place::new();
    let (model, cache) = (fixture("llama"), place.path("cache"));
    let model = model.to_str().expect("a plain path");
    let shape = ["--model", model, "--batches", "1x2", "--prompt-len", "8", "--gen-len", "4"];
    let profile =
        [&["profile"][..], &shape, &["--device", "cuda:0", "--cpu-threads", "1"]].concat();
    let (table, said) = done(&cache, &profile);
    // Every operation of the layer has a time on the device, and the streamed ones on the link.
    for op in ["norm0", "q", "up", "down"] {
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(op));
        let cells: Vec<&str> = row.expect(op).split_whitespace().skip(1).collect();
        assert!(cells.len() >= 4 && cells[0] != "-" && cells[2] != "-", "{op}: {table}");
    }
    assert!(said.contains("measured this machine"), "{said}");
    let (_, again) = done(&cache, &profile);
    assert!(again.contains("measured before"), "{again}");

    // The fingerprint names the device and its link.
    let kept = cache.join("tandem");
    let file = std::fs::read_dir(&kept).expect("a cache").flatten().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("profile-").then(|| std::fs::read_to_string(entry.path()).ok())?
    });
    let file = file.expect("a profile");
    for field in ["stand-in", "GPU-7374616e", "525.00 stand-in", "4.0 x8"] {
        assert!(file.contains(field), "{field}");
    }

    let report = place.path("report.json");
    let report = report.to_str().expect("a plain path");
    let run = [&shape[..], &["--dummy-weights", "--cpu-threads", "1", "--report", report]].concat();
    let (_, said) = done(&cache, &run);
    let report = std::fs::read_to_string(report).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert!(report["predicted"]["decode_s"].as_f64().is_some_and(|s| s > 0.0), "{said}");
    // `auto` may well find that the stand-in does not help.
    let policy = report["policy"].as_str().expect("a policy");
    assert!(!policy.is_empty(), "{said}");
}
