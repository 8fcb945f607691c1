//! 4-bit weights through real processes: the device decompresses, the CPU does not, and the answers are
//! the same to the last token.

use crate::command::{Place, coordinator, finish, fixture, text};

fn prompts() -> Vec<Vec<u32>> {
    (0..6u32).map(|i| (0..3 + 9 * i).map(|j| 3 + (29 * i + 5 * j) % 250).collect()).collect()
}

#[test]
fn placements_agree_and_compression_is_real() {
    let emulated = ["--device", "emulated"];
    for model in ["llama", "opt"] {
        let place = Place::new();
        let input = place.requests("in.jsonl", &prompts(), 16);
        let plain = place.answers(&fixture(model), &input, &["--batches", "1x6"]);
        let run = |extra: &[&str]| {
            place.answers(&fixture(model), &input, &[&["--compress", "w4"], extra].concat())
        };
        let cpu = run(&["--batches", "1x6"]);
        assert_ne!(cpu, plain, "{model}: 4 bits changed nothing");
        let gpu = run(&[&emulated[..], &["--policy", "gpu-only", "--batches", "2x3"]].concat());
        assert_eq!(gpu, cpu, "{model} gpu-only");
        let split = ["--split", "k:out", "--batches", "2x2"];
        assert_eq!(run(&[&emulated[..], &split].concat()), cpu, "{model} split");
    }
}

#[test]
fn the_report_tells_the_forms_and_what_they_weigh() {
    let place = Place::new();
    let report = |compress: &str| -> serde_json::Value {
        let path = place.path(&format!("{compress}.json"));
        let mut command = coordinator();
        command.args([
            "--model",
            "opt-125m",
            "--dummy-weights",
            "--layers",
            "2",
            "--batches",
            "1x2",
        ]);
        command.args(["--prompt-len", "16", "--gen-len", "4", "--compress", compress, "--report"]);
        command.arg(&path).args(["--device", "emulated", "--policy", "gpu-only"]);
        let child = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let done = finish(child);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let text = std::fs::read_to_string(path).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    };
    let (plain, both) = (report("none"), report("w4"));
    let bytes = |report: &serde_json::Value, form: &str| {
        report["weight_bytes_by_form"][form].as_f64().unwrap_or(0.0)
    };
    assert_eq!((plain["kv_form"].as_str(), both["kv_form"].as_str()), (Some("bf16"), Some("bf16")));
    assert_eq!(bytes(&plain, "4-bit in groups of 64"), 0.0);
    // Two layers of 12 * 768^2 weights at 4.5 bits, and their biases.
    let weights = 2.0 * 12.0 * 768.0 * 768.0;
    let four_bit = bytes(&both, "4-bit in groups of 64") / (weights * 4.5 / 8.0);
    assert!((1.0..1.02).contains(&four_bit), "{four_bit}");
    // Bytes over the link shrink by as much: 16 bits to 4.5 and what stays as it is.
    let streamed = |report: &serde_json::Value, key: &str| report[key].as_f64().expect("bytes");
    let weights =
        streamed(&plain, "streamed_weight_bytes") / streamed(&both, "streamed_weight_bytes");
    println!("streamed weights {weights:.2} times smaller");
    assert!((1.2..3.6).contains(&weights), "{weights}");
}

#[test]
fn a_4_bit_kv_cache_is_refused_before_anything_starts() {
    for compress in ["kv4", "w4kv4"] {
        let mut command = coordinator();
        command.args(["--model", "opt-125m", "--dummy-weights", "--compress", compress]);
        let done = finish(command.stderr(std::process::Stdio::piped()).spawn().expect("starts"));
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains("--compress w4"), "{}", text(&done.stderr));
    }
}
