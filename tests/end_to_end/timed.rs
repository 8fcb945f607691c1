//! Tests of timed emulation from a user's perspective: its report compared with the plan's, the
//! order of the trace, and one sentence for what it cannot run.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, text};

/// Returns exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = coordinator();
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// Writes a table of the paper with every time divided by 40, so that a test takes a moment;
/// returns its path.
fn quick(place: &Place, name: &str) -> String {
    let path = format!("{}/../scripts/tables/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a table that comes with the project");
    let mut table: Value = serde_json::from_str(&text).expect("JSON");
    for op in table["ops"].as_array_mut().expect("operations") {
        for field in ["cpu_ms", "gpu_ms", "h2d_ms"] {
            if let Some(ms) = op[field].as_f64() {
                op[field] = json!(ms / 40.0);
            }
        }
    }
    let path = place.path(&format!("{name}.json"));
    std::fs::write(&path, table.to_string()).expect("writable");
    path.to_string_lossy().into_owned()
}

const TIMED: [&str; 6] = ["--device", "emulated:timed", "--layers", "6", "--gen-len", "7"];

#[test]
fn the_report_stands_beside_the_plan() {
    let place = Place::new();
    for (name, batches) in [("park-egger-6a", 1), ("park-egger-7a-scores8", 2)] {
        let table = quick(&place, name);
        let (code, planned, _) = run(&["plan", "--tables", &table, "--json"]);
        assert_eq!(code, Some(0));
        let planned: Value = serde_json::from_str(&planned).expect("JSON");
        let file = place.path("r.json");
        let report = file.to_string_lossy();
        let arguments = [&["--tables", &table, "--report", &report, "--json"], &TIMED[..]].concat();
        let (code, stderr, said) = run(&arguments);
        assert_eq!(code, Some(0), "{said}");
        let stderr: Value = serde_json::from_str(&stderr).expect("JSON");
        let written = std::fs::read_to_string(file).expect("a report");
        assert_eq!(serde_json::from_str::<Value>(&written).expect("JSON"), stderr);
        let timed = &stderr["timed"];
        assert_eq!(timed["gpu_interval"], planned["gpu_interval"]);
        assert_eq!(timed["gpu_ops"], planned["gpu_ops"]);
        assert_eq!(timed["planned_layer_ms"], planned["latency_ms"]);
        assert_eq!(
            (&stderr["device"], &stderr["batches"]),
            (&json!("emulated:timed"), &json!(batches))
        );
        assert_eq!(stderr["generated_tokens"], json!(batches * 7));
        let layer_ms = |side: &str| timed[side]["layer_ms"].as_f64().expect(side);
        // A busy machine may be slower than the simulation, but nothing is faster.
        assert!(layer_ms("simulated") > 0.0 && layer_ms("measured") > 0.9 * layer_ms("simulated"));
        for side in ["simulated", "measured"] {
            let overlap = timed[side]["overlap"].as_f64().expect("transfers");
            assert!((0.0..=1.0).contains(&overlap), "{side} {overlap}");
            let shape = (&timed[side]["steps"], &timed[side]["layers_of_each_step"]);
            assert_eq!(shape, (&json!(4), &json!(2)));
        }
        // Nothing was loaded, computed or moved, and the lanes allocated nothing.
        assert_eq!(
            (&stderr["streamed_weight_bytes"], &stderr["streamed_kv_bytes"]),
            (&json!(0), &json!(0))
        );
        for worker in ["cpu worker", "gpu worker", "transfer worker"] {
            assert_eq!(stderr["kernel_variants"][worker], "timed");
            assert_eq!(stderr["allocations_after_ready"][worker], 0, "{worker}");
        }
    }
}

#[test]
fn a_table_for_people_and_a_trace_in_order() {
    let place = Place::new();
    let table = quick(&place, "park-egger-7a");
    let file = place.path("t.json");
    let trace = file.to_string_lossy();
    let (code, stderr, said) =
        run(&[&["--tables", &table, "--trace", &trace], &TIMED[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    for part in
        ["2 batches", "6 layers", "measured", "simulated", "h2d overlapped", "waited for its time"]
    {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(file).expect("a trace")).expect("JSON");
    let mut last: std::collections::HashMap<(u64, u64), f64> = std::collections::HashMap::new();
    for event in trace["traceEvents"].as_array().expect("events") {
        let (Some(start), Some(length)) = (event["ts"].as_f64(), event["dur"].as_f64()) else {
            continue;
        };
        let lane = (event["pid"].as_u64().expect("pid"), event["tid"].as_u64().expect("tid"));
        let end = last.entry(lane).or_insert(0.0);
        assert!(start + 1e-3 >= *end, "{event} before {end}");
        *end = start + length;
    }
    assert!(last.len() >= 5, "{last:?}");
    let (code, stderr, _) = run(&[&["--tables", &table, "--quiet"], &TIMED[..]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

/// A described machine and a few layers of a known model.
const DESCRIBED: [&str; 14] = [
    "--device",
    "emulated:timed",
    "--machine",
    "ryzen7950x-a4000",
    "--model",
    "opt-1.3b",
    "--layers",
    "4",
    "--batches",
    "2x8",
    "--prompt-len",
    "16",
    "--gen-len",
    "7",
];

#[test]
fn a_described_machines_step_stands_beside_its_simulation() {
    for policy in ["flexgen", "resident"] {
        let arguments = [&DESCRIBED[..], &["--policy", policy, "--json"]].concat();
        let (code, stdout, said) = run(&arguments);
        assert_eq!(code, Some(0), "{policy}: {said}");
        let report: Value = serde_json::from_str(&stdout).expect("JSON");
        let timed = &report["timed"];
        assert_eq!(
            (&report["device"], &report["model"]),
            (&json!("emulated:timed"), &json!("opt-1.3b"))
        );
        assert_eq!(
            (&timed["machine"], &timed["policy"], &timed["batch_size"], &timed["layers"]),
            (&json!("ryzen7950x-a4000"), &json!(policy), &json!(8), &json!(4))
        );
        let step_ms = |side: &str| timed[side]["step_ms"].as_f64().expect(side);
        let planned_ms = timed["planned_step_ms"].as_f64().expect("planned");
        // The plan of the model agrees with the simulation of the small model's programs.
        assert!((step_ms("simulated") / planned_ms - 1.0).abs() < 0.01, "{policy}: {timed}");
        let error = step_ms("measured") / step_ms("simulated") - 1.0;
        let same = timed["error"].as_f64().is_some_and(|one| (one - error).abs() < 1e-9);
        assert!(same && step_ms("measured") > 0.0, "{policy}: {timed}");
        // Six decode steps, of which the first two are left out.
        assert_eq!(
            (&timed["measured"]["steps"], &timed["simulated"]["steps"]),
            (&json!(4), &json!(4))
        );
        for worker in ["cpu worker", "gpu worker"] {
            assert_eq!(report["kernel_variants"][worker], "timed", "{policy}");
        }
    }
    let (code, stdout, said) = run(&[&DESCRIBED[..], &["--compress", "w4kv4"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let machine = "opt-1.3b · ryzen7950x-a4000 · 2x8";
    for part in [machine, "w4kv4", "steady step", "in the description"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

/// More requests than the device has caches for, on a few layers.
const REPLAYED: &str = "plan --serve --machine g4dn-4xlarge --model llama-2-7b --layers 2 \
                        --requests 6 --input-len 60 --output-len 3 --step-rows 128 \
                        --device-slots 2 --rate 400";

#[test]
fn a_replay_has_the_iterations_that_are_simulated() {
    let place = Place::new();
    let file = place.path("c.json");
    let chart = file.to_string_lossy();
    let arguments: Vec<&str> = REPLAYED.split_whitespace().collect();
    let more = ["--timed", "auto", "--json", "--chart", &chart];
    let (code, stdout, said) = run(&[&arguments[..], &more].concat());
    assert_eq!(code, Some(0), "{said}");
    let answer: Value = serde_json::from_str(&stdout).expect("JSON");
    let timed = &answer["timed"];
    assert_eq!(timed["same_iterations"], true, "{timed}");
    let iterations = timed["iterations"].as_array().expect("a list");
    let shapes: BTreeSet<&str> =
        iterations.iter().filter_map(|one| one["shape"].as_str()).collect();
    assert!(shapes.contains("gpu") && shapes.contains("async"), "{shapes:?}");
    let all = |of: &str| iterations.iter().filter_map(|one| one[of].as_f64()).sum::<f64>();
    // A busy machine may be slower than the simulation, but nothing is much faster.
    assert!(all("measured_ms") > 0.9 * all("simulated_ms"), "{timed}");
    let chart = std::fs::read_to_string(&file).expect("a chart");
    let chart: Value = serde_json::from_str(&chart).expect("JSON");
    let spans = chart["spans"].as_array().expect("a list");
    assert!(spans.iter().any(|span| span["lane"] == "gpu"), "{chart}");
    let (code, stdout, said) = run(&[&arguments[..], &["--timed", "neo"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for part in ["neo in timed emulation", "pipelined", "within 5%", "are as simulated"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

#[test]
fn what_cannot_run_is_refused_in_one_sentence() {
    let place = Place::new();
    let refused = |table: Value, code: i32, word: &str| {
        let path = place.path("bad.json");
        std::fs::write(&path, table.to_string()).expect("writable");
        let (found, stderr, said) =
            run(&[&["--tables", &path.to_string_lossy()], &TIMED[..]].concat());
        assert_eq!(found, Some(code), "{said}");
        assert!(said.contains(word) && stderr.is_empty(), "{word}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    };
    let op = |field: &str, value: Value| json!({"ops": [{"name": "q", field: value}]});
    refused(op("cpu_ms", json!(-1)), 1, "cannot be negative");
    refused(op("cpu_ms", json!(1e300)), 1, "more than a day");
    refused(op("cpu_ms", json!(3e6)), 1, "instruction");
    refused(op("cpu_ms", json!(null)), 1, "invalid type");
    refused(op("cpu", json!(1)), 1, "unknown field");
    refused(json!({"ops": [{"name": "mlp", "cpu_ms": 1}]}), 1, "ln0 q k v");
    refused(json!({"ops": []}), 1, "at least one");
    let (code, _, said) = run(&["--tables", "/nowhere.json", "--device", "emulated:timed"]);
    assert!(code == Some(1) && said.contains("/nowhere.json"), "{said}");
    for (arguments, word) in [
        (&["--tables", "t.json"][..], "--device emulated:timed"),
        (&["--device", "emulated:timed", "--model", "opt-125m"][..], "--tables"),
        (&["--tables", "t.json", "--device", "emulated:timed", "--model", "x"][..], "--model"),
        (&["--json", "--model", "opt-125m"][..], "--tables"),
        (&["--machine", "spr-a100", "--model", "opt-125m"][..], "--device emulated:timed"),
        (&["--machine", "spr-a100", "--device", "emulated:timed"][..], "--model"),
        (
            &["--machine", "nowhere", "--model", "opt-125m", "--device", "emulated:timed"][..],
            "ryzen7950x-a4000",
        ),
        (&["--machine", "spr-a100", "--tables", "t.json", "--model", "x"][..], "--tables"),
    ] {
        let (code, _, said) = run(arguments);
        assert!(code == Some(2) && said.contains(word), "{arguments:?}: {said}");
    }
}
