//! Tests of `coordinator plan` from a user's perspective: answers, refusals with numbers, and one
//! sentence for each kind of invalid input.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, text};

/// Returns exit code, stdout and stderr.
fn plan(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = coordinator();
    command.arg("plan").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

fn table(place: &Place, value: &Value) -> String {
    let path = place.path("table.json");
    std::fs::write(&path, value.to_string()).expect("writable");
    path.to_string_lossy().into_owned()
}

#[test]
fn a_table_has_one_answer() {
    let place = Place::new();
    // Two batches. The GPU takes `b` and `c`: CPU 2 x 4 ms against transfers of 3 + 3 + the second
    // batch's 2 x 1 ms of compute, 8 ms both; any other interval is longer on one side.
    let op = |name, transfer| json!({"name": name, "cpu_ms": 4, "gpu_ms": 1, "h2d_ms": transfer});
    let ops = json!([op("a", 6), op("b", 3), op("c", 3)]);
    let path = table(&place, &json!({"ops": ops, "batches": 2, "cost": "paper"}));
    let (code, answer, _) = plan(&["--tables", &path, "--json"]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(code, Some(0));
    assert_eq!(answer["gpu_interval"], json!([1, 3]));
    assert_eq!(answer["gpu_ops"], json!(["b", "c"]));
    assert_eq!(answer["terms_ms"], json!({"cpu": 8.0, "h2d": 8.0, "dc": 0.0, "s2d": 0.0}));
    assert_eq!((&answer["latency_ms"], &answer["imbalance_ms"]), (&json!(8.0), &json!(0.0)));
    assert_eq!((&answer["compression"], &answer["nvme"]), (&json!(false), &json!([])));
    let chart = place.path("chart.json");
    let (code, stderr, _) = plan(&["--tables", &path, "--chart", &chart.to_string_lossy()]);
    assert_eq!(code, Some(0));
    assert!(stderr.contains("runner-up") && stderr.contains("h2d"), "{stderr}");
    let chart: Value =
        serde_json::from_str(&std::fs::read_to_string(chart).expect("a chart")).expect("JSON");
    assert!(!chart["spans"].as_array().expect("spans").is_empty());
}

#[test]
fn templates_are_taken_as_they_are() {
    let place = Place::new();
    let template = |flag: &str, name: &str| {
        let (code, text, said) = plan(&[flag]);
        assert_eq!(code, Some(0), "{flag}: {said}");
        let path = place.path(name);
        std::fs::write(&path, text).expect("writable");
        path.to_string_lossy().into_owned()
    };
    let machine = template("--machine-template", "machine.toml");
    let run = ["--model", "opt-30b", "--batches", "4x60", "--policy", "gpu-only"];
    let (code, stderr, said) = plan(&[&["--machine", &machine], &run[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(stderr.contains("my-machine") && stderr.contains("tokens/s"), "{stderr}");
    let (code, stderr, said) = plan(&["--tables", &template("--table-template", "table.json")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(stderr.contains("runner-up"), "{stderr}");
    let (code, _, said) = plan(&["--machine-template", "--model", "opt-30b"]);
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn what_does_not_fit_is_refused_with_numbers_or_compressed_aloud() {
    let machine = ["--machine", "ryzen7950x-a4000", "--model", "opt-30b", "--batches", "4x60"];
    let (code, _, refusal) = plan(&[&machine[..], &["--compress", "none"]].concat());
    assert_eq!(code, Some(1));
    for word in ["GiB", "124.00 GiB", "--batches 4x"] {
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
    // One policy, since each form is searched by itself.
    let machine = [&machine[..], &["--policy", "gpu-only"]].concat();
    let (code, answer, _) = plan(&machine);
    assert_eq!(code, Some(0));
    assert!(answer.contains("--compress w4kv4") && answer.contains("tokens/s"), "{answer}");
    // It is the fastest of the formats that fit.
    let rate = |form: &[&str]| {
        let (code, answer, _) = plan(&[&machine[..], form, &["--json"]].concat());
        let answer = (code == Some(0)).then(|| serde_json::from_str::<Value>(&answer));
        answer.map(|answer| answer.expect("JSON")["tokens_per_s"].as_f64().expect("a rate"))
    };
    let forms = ["w4", "kv4", "w4kv4"].map(|form| rate(&["--compress", form]));
    let best = forms.into_iter().flatten().fold(0.0, f64::max);
    assert_eq!(rate(&[]), Some(best));
}

/// A step gains nearly as much as it has tokens where weights are streamed. A draft model takes
/// time, and needs the model's vocabulary.
#[test]
fn speculative_decoding_is_predicted_with_its_best_number_of_drafts() {
    let machine = ["--machine", "ryzen7950x-a4000", "--batches", "1x1", "--json"];
    let planned = |model: &[&str], drafts: &[&str]| {
        let drafts = [drafts, &["--acceptance", "0.8"]].concat();
        let (code, answer, said) = plan(&[&machine, model, &drafts].concat());
        (code, serde_json::from_str::<Value>(&answer).unwrap_or_default(), said)
    };
    let opt = ["--model", "opt-30b", "--layers", "24", "--policy", "gpu-only"];
    let (code, answer, said) = planned(&opt, &["--speculate", "ngram"]);
    assert_eq!(code, Some(0), "{said}");
    let found = &answer["speculation"];
    let figure = |name| found[name].as_f64().expect("a figure");
    assert_eq!(
        (found["drafts"].as_u64(), found["compared"][0]["drafts"].as_u64()),
        (Some(16), Some(0))
    );
    assert!(figure("gain") > 0.8 * figure("tokens_per_step"), "{found}");
    assert!((figure("tokens_per_step") - (1.0 - 0.8f64.powi(17)) / 0.2).abs() < 1e-9, "{found}");
    let llama = ["--model", "llama-3-8b", "--policy", "gpu-only"];
    let (_, answer, _) = planned(&llama, &["--draft-model", "llama-3.2-1b"]);
    let found = &answer["speculation"];
    assert!((1..16).contains(&found["drafts"].as_u64().expect("drafts")), "{found}");
    let (code, _, said) = planned(&llama, &["--speculate", "mtp"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--speculate mtp") && said.contains("llama-3-8b"), "{said}");
    let (code, _, said) = planned(&llama, &["--draft-model", "opt-125m"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--draft-model opt-125m") && said.contains("50272"), "{said}");
}

/// Layers of DeepSeek V4 have different operations and caches: windows, and parts of entries.
#[test]
fn compressed_caches_are_counted_to_the_byte() {
    let run = ["--model", "deepseek-v4-flash", "--policy", "cpu-only", "--batches", "1x2"];
    let lengths = ["--prompt-len", "5096", "--gen-len", "24", "--json"];
    let (code, answer, said) = plan(&[&["--machine", "spr-a100"], &run[..], &lengths].concat());
    assert_eq!(code, Some(0), "{said}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let (window_bytes, position_bytes) = (24_641_536, 6_880);
    assert_eq!(answer["budget_bytes"]["kv"], 2 * (window_bytes + 5120 * position_bytes));
    assert!(answer["tokens_per_s"].as_f64() > Some(0.0), "{answer}");
}

/// A slow step is announced when it begins, and stdout contains the answer alone.
#[test]
fn measuring_the_machine_for_a_plan_is_announced() {
    let place = Place::new();
    let plan = || {
        let mut command = coordinator();
        command.env("XDG_CACHE_HOME", place.path("cache")).env("TANDEM_PROFILE_S", "1");
        command.arg("plan").arg("--model").arg(fixture("llama")).args(["--device", "emulated"]);
        command.args(["--batches", "1x2", "--prompt-len", "16", "--gen-len", "4", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let answer: Value = serde_json::from_slice(&done.stdout).expect("JSON alone");
        assert_eq!(answer["machine"], "this machine");
        text(&done.stderr)
    };
    let said = plan();
    assert!(said.contains("measuring this machine for "), "{said}");
    assert!(said.contains("measured this machine in "), "{said}");
    let again = plan();
    assert!(!again.contains("measur"), "it was measured before: {again}");
}

#[test]
fn bad_input_is_one_sentence() {
    let place = Place::new();
    let refused = |arguments: &[&str], word: &str| {
        let (code, _, said) = plan(arguments);
        assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {code:?}");
        assert!(said.contains(word), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(&["--tables", "/nowhere.json"], "/nowhere.json");
    refused(&[], "--tables");
    let negative = table(&place, &json!({"ops": [{"name": "a", "cpu_ms": -1}]}));
    refused(&["--tables", &negative], "cpu_ms");
    let unknown = table(&place, &json!({"ops": [{"name": "a", "cpus": 1}]}));
    refused(&["--tables", &unknown], "cpus");
    let cost = table(&place, &json!({"ops": [{"name": "a"}], "cost": "guess"}));
    refused(&["--tables", &cost], "guess");
    refused(&["--machine", "toaster", "--model", "opt-30b"], "spr-a100");
    refused(&["--machine", "spr-a100", "--model", "opt-30b", "--policy", "magic"], "two-split");
    refused(&["--compare", "spr-a100,toaster", "--model", "opt-30b"], "--compare toaster");
    refused(&["--compare", "spr-a100,spr-a100", "--model", "opt-30b"], "twice");
    refused(&["--compare", "spr-a100,", "--model", "opt-30b"], "--compare");
    refused(&["--compare", "spr-a100"], "--model");
    for other in [["--machine", "spr-h100"], ["--tables", "t.json"], ["--device", "none"]] {
        let compare = ["--compare", "spr-a100", "--model", "opt-30b"];
        refused(&[&compare[..], &other[..]].concat(), "cannot be used with");
    }
}

#[test]
fn the_best_batches_of_a_described_machine_are_found() {
    let on = |batches: &str| {
        // One policy, since each is searched by itself.
        let machine = ["--machine", "ryzen7950x-a4000", "--policy", "two-split"];
        let model = ["--model", "opt-1.3b", "--layers", "4"];
        let (code, stderr, said) =
            plan(&[&machine[..], &model, &["--batches", batches, "--json"]].concat());
        assert_eq!(code, Some(0), "{batches}: {said}");
        serde_json::from_str::<Value>(&stderr).expect("JSON")
    };
    // `planner/tests/described/batches.rs` compares the choice with a sweep.
    let found = on("auto");
    let batches = format!("{}x{}", found["batches"], found["batch_size"]);
    assert_eq!(found, on(&batches), "the same as if it had been asked for");
}

/// Returns the answer for a described machine as JSON.
fn answer(arguments: &[&str]) -> Value {
    let (code, answer, said) = plan(&[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {said}");
    serde_json::from_str(&answer).expect("JSON")
}

/// Returns the device of each operation of a streamed layer.
fn devices(answer: &Value) -> BTreeMap<&str, &str> {
    let ops = answer["ops"].as_array().expect("operations").iter();
    ops.map(|op| (op["name"].as_str().expect("a name"), op["device"].as_str().expect("a device")))
        .collect()
}

#[test]
fn experts_are_computed_where_that_wins() {
    let model = ["--machine", "ryzen7950x-a4000", "--model", "qwen3-30b-a3b"];
    let answer = answer(&model);
    let experts = ["expert_gate", "expert_up", "expert_down"];
    let devices = devices(&answer);
    // Experts are three quarters of the bytes that a step reads, and their transfer over the link
    // would take too long.
    assert!(experts.iter().any(|op| devices[op] == "cpu"), "{devices:?}");
    assert_eq!((devices["scores"], devices["router"]), ("gpu", "gpu"), "{devices:?}");
    let considered = answer["considered"].as_array().expect("a list");
    for other in ["cpu-only", "gpu-only"] {
        let other = considered.iter().find(|one| one["policy"] == other).expect("compared");
        let rate = |of: &Value| of["tokens_per_s"].as_f64().expect("a rate");
        assert!(rate(&answer) > 1.5 * rate(other), "{other}");
    }
    assert_eq!((&answer["experts"]["count"], &answer["lia"]), (&128.into(), &Value::Null));
    // 128 (1 - (15/16)^32).
    let expected = answer["experts"]["expected_of_batch"].as_f64().expect("a number");
    assert!((expected - 111.77).abs() < 0.01, "{expected}");
}

#[test]
fn lia_says_at_which_batch_experts_are_left_to_the_cpu() {
    let machine = ["--machine", "spr-h100", "--model", "qwen3-30b-a3b", "--policy", "lia"];
    let large = [&machine[..], &["--batches", "1x1024"]].concat();
    let answer = answer(&large);
    let vector = json!([0, 1, 1, 0, 1, 1]);
    assert_eq!(answer["lia"]["decode"], vector, "{answer}");
    let ranges = answer["lia"]["decode_by_batch"].as_array().expect("ranges");
    let range = ranges.iter().find(|range| range["vector"] == vector).expect("at some batch");
    assert!(range["first"].as_u64() < Some(1024) && range["last"].as_u64() > Some(1024));
    let devices = devices(&answer);
    for (op, device) in [("q", "gpu"), ("scores", "cpu"), ("wv", "cpu"), ("out", "gpu")] {
        assert_eq!(devices[op], device, "{devices:?}");
    }
    let experts = ["router", "expert_gate", "expert_up", "expert_down"];
    assert!(experts.iter().all(|op| devices[op] == "cpu"), "{devices:?}");
    let (_, said, _) = plan(&large);
    assert!(said.contains("(0,0,0,0,0,0) in prefill, (0,1,1,0,1,1) in decode\n"), "{said}");
    let first = range["first"].as_u64().expect("a batch");
    assert!(said.contains(&format!("(0,1,1,0,1,1) from {first} to ")), "{said}");
    // A small batch fits with the whole model.
    let (_, said, _) = plan(&machine);
    assert!(said.contains("none, as every layer stays in device memory\n"), "{said}");
}

#[test]
fn windows_are_planned_and_said() {
    let machine = ["--machine", "ryzen7950x-a4000"];
    for (model, line) in [
        ("gpt-oss-20b", "12 of 24 layers attend to 128 positions at most"),
        ("gemma-3-12b", "40 of 48 layers attend to 1024 positions at most"),
    ] {
        let workload = ["--model", model, "--policy", "gpu-only", "--prompt-len", "1100"];
        let (code, said, error) = plan(&[&machine[..], &workload].concat());
        assert_eq!(code, Some(0), "{error}");
        assert!(said.lines().any(|one| one.starts_with(line)), "{said}");
    }
}

#[test]
fn machines_are_compared_by_their_own_plans() {
    let place = Place::new();
    let (_, template, _) = plan(&["--machine-template"]);
    let (template, _) = template.split_once("[running]").expect("the last section");
    let file = |name: &str, vram_gib: f64, watts: &str| {
        let (before, after) = template.split_once("vram_gib = 16").expect("device memory");
        let path = place.path(name);
        let text = format!("{before}vram_gib = {vram_gib}{after}{watts}");
        std::fs::write(&path, text).expect("writable");
        path.to_string_lossy().into_owned()
    };
    let (small, large) = (file("small.toml", 0.2, ""), file("large.toml", 16.0, RUNNING));
    let both = format!("{small},{large}");
    let workload = ["--model", "opt-1.3b", "--layers", "4", "--batches", "1x8"];
    let on = |machines: &[&str]| plan(&[machines, &workload[..], &["--json"]].concat());
    let read = |(code, answer, said): (Option<i32>, String, String)| {
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str::<Value>(&answer).expect("JSON")
    };
    let compared = read(on(&["--compare", &both]));
    let rows = compared["machines"].as_array().expect("rows");
    for (row, path) in rows.iter().zip([&small, &large]) {
        let alone = read(on(&["--machine", path]));
        for field in ["batches", "batch_size", "policy", "tokens_per_s", "decode_step_ms", "note"] {
            assert_eq!(row[field], alone[field], "{path}: {field}");
        }
        assert_eq!(row["resident"], alone["resident"]["summary"]);
        assert_eq!(row["machine"], format!("my-machine ({path})"), "told apart");
    }
    let rate = |of: &Value| of["tokens_per_s"].as_f64().expect("a rate");
    let twice = &rows[0]["twice"];
    assert!(rate(&twice["device_memory"]) > rate(&rows[0]), "{compared}");
    assert!(rate(&twice["link"]) >= rate(&rows[0]) && rate(&rows[1]) > rate(&rows[0]));
    assert!(rows[0]["kwh_per_million_tokens"].is_null());
    assert!(rows[1]["usd_per_million_tokens"].as_f64().expect("a price") > 0.0);
    let (code, text, said) = plan(&[&["--compare", &both], &workload[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    for word in [&small, &large, "2x device memory", "USD"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

const RUNNING: &str = "\n[running]\nwatts = 450.0\nprice_usd = 3000\n";

/// With `--positions`, more positions than the model supports are planned, on this machine and on a
/// described one, and prompts that are too long to be measured have times.
#[test]
fn prompts_beyond_a_model_s_positions_are_planned_as_if_it_had_them() {
    let place = Place::new();
    let long = ["--model", "smollm2-135m", "--layers", "1", "--prompt-len", "1000000"];
    let shape = ["--gen-len", "8", "--batches", "1x1", "--json"];
    for machine in [&["--device", "none"][..], &["--machine", "ryzen7950x-a4000"]] {
        let arguments = [&long[..], &shape, machine].concat();
        let (code, _, said) = plan(&arguments);
        assert_eq!(code, Some(2));
        assert!(said.contains("8192 positions") && said.contains("--positions"), "{said}");
        let mut command = coordinator();
        command.env("XDG_CACHE_HOME", place.path("cache")).env("TANDEM_PROFILE_S", "1");
        command.arg("plan").args(&arguments).args(["--positions", "1000064"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        assert_eq!(done.status.code(), Some(0), "{machine:?}: {}", text(&done.stderr));
        let answer: Value = serde_json::from_str(&text(&done.stdout)).expect("JSON");
        let prefill_ms = answer["prefill_ms"].as_f64().expect("a time");
        assert!(prefill_ms > 0.0, "{machine:?}: {answer}");
        // 1,000,008 positions, each with K and V of 3 heads of 64 numbers of 2 bytes.
        let kv = answer["budget_bytes"]["kv"].as_u64().filter(|_| machine[0] == "--device");
        let kv_bytes = 1_000_008 * 2 * 3 * 64 * 2;
        assert!(kv.is_none_or(|kv| kv >= kv_bytes && kv < kv_bytes + 4096), "{answer}");
    }
}

#[test]
fn measured_routing_replaces_equally_likely_experts() {
    let place = Place::new();
    // All rows go to the same eight of 128 experts, of which each row takes all.
    let rows: Vec<u64> = (0..128).map(|expert| if expert < 8 { 100 } else { 0 }).collect();
    let skewed = table(&place, &json!({"routing": {"rows_of_experts": vec![rows; 48]}}));
    let machine = ["--machine", "ryzen7950x-a4000", "--model", "qwen3-30b-a3b"];
    let machine = [&machine[..], &["--batches", "1x8", "--policy", "cpu-only"]].concat();
    let of = |routing: &str| answer(&[&machine[..], &["--routing", routing]].concat());
    let (even, skewed) = (of("even"), of(&skewed));
    let number = |answer: &Value, field: &str| answer[field].as_f64().expect("a number");
    let expected = |answer: &Value| number(&answer["experts"], "expected_of_batch");
    // 128 (1 - (15/16)^8).
    assert!((expected(&even) - 51.62).abs() < 0.01, "{}", expected(&even));
    assert!((expected(&skewed) - 8.0).abs() < 1e-3, "{}", expected(&skewed));
    let ratio = number(&skewed, "decode_step_ms") / number(&even, "decode_step_ms");
    assert!((0.2..0.5).contains(&ratio), "{ratio}");
    assert_eq!(number(&even, "decode_step_ms"), number(&answer(&machine), "decode_step_ms"));

    let other = table(&place, &json!({"routing": {"rows_of_experts": [[1, 2, 3]]}}));
    let (code, _, said) = plan(&[&machine[..], &["--routing", &other]].concat());
    assert!(code != Some(0) && said.contains("counted for 3 experts"), "{said}");
    let (code, _, said) = plan(&[&machine[..], &["--routing", "absent.json"]].concat());
    assert!(code == Some(2) && said.contains("absent.json"), "{said}");
}
