//! Tests of 4-bit weights and quantised KV caches with real processes: the CPU and the device read
//! them directly and give the same answers to the last token.

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
    let report = |compress: &str, placement: &[&str]| -> serde_json::Value {
        let path = place.path(&format!("{compress}{}.json", placement.concat()));
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
        command.arg(&path).args(["--device", "emulated"]).args(placement);
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
    let gpu = ["--policy", "gpu-only"];
    let (plain, both) = (report("none", &gpu), report("w4kv4", &gpu));
    let bytes = |report: &serde_json::Value, form: &str| {
        report["weight_bytes_by_format"][form].as_f64().unwrap_or(0.0)
    };
    assert_eq!(
        (plain["kv_format"].as_str(), both["kv_format"].as_str()),
        (Some("bf16"), Some("4-bit"))
    );
    assert_eq!(bytes(&plain, "4-bit in groups of 64"), 0.0);
    // Two layers of 12 * 768^2 weights at 4.5 bits, and their biases.
    let weights = 2.0 * 12.0 * 768.0 * 768.0;
    let four_bit = bytes(&both, "4-bit in groups of 64") / (weights * 4.5 / 8.0);
    assert!((1.0..1.02).contains(&four_bit), "{four_bit}");
    // Bytes over the link shrink by the same factor: 16 bits to 4.5, except for data that stays
    // uncompressed.
    let streamed = |report: &serde_json::Value, key: &str| report[key].as_f64().expect("bytes");
    let weights =
        streamed(&plain, "streamed_weight_bytes") / streamed(&both, "streamed_weight_bytes");
    println!("streamed weights {weights:.2} times smaller");
    assert!((1.2..3.6).contains(&weights), "{weights}");
    let split = ["--split", "scores:out"];
    let [plain, eight, four] = ["none", "kv8", "kv4"].map(|compress| report(compress, &split));
    let smaller = |other: &serde_json::Value| {
        streamed(&plain, "streamed_kv_bytes") / streamed(other, "streamed_kv_bytes")
    };
    // 64 elements of 2 bytes become 64 nibbles, a scale and a minimum.
    assert_eq!(smaller(&four), 128.0 / 36.0);
    // They become 64 bytes and two scales.
    assert_eq!(smaller(&eight), 128.0 / 68.0);
    assert_eq!(eight["kv_format"], "8-bit");
}

#[test]
fn a_quantised_kv_cache_answers_the_same_from_every_placement() {
    let emulated = ["--device", "emulated"];
    for (model, compress) in [("llama", "kv4"), ("llama", "kv8"), ("opt", "w4kv4")] {
        let place = Place::new();
        let input = place.requests("in.jsonl", &prompts(), 16);
        let run = |compress: &str, extra: &[&str]| {
            place.answers(&fixture(model), &input, &[&["--compress", compress], extra].concat())
        };
        let without = compress.trim_end_matches("kv4").trim_end_matches("kv8").to_owned();
        let without = if without.is_empty() { "none".to_owned() } else { without };
        let cpu = run(compress, &["--batches", "1x6"]);
        assert_ne!(
            cpu,
            run(&without, &["--batches", "1x6"]),
            "{model}: {compress} changed nothing"
        );
        let gpu = ["--policy", "gpu-only", "--batches", "2x3"];
        assert_eq!(run(compress, &[&emulated[..], &gpu].concat()), cpu, "{model} gpu-only");
        for split in [
            &["--split", "k:out", "--batches", "2x2"][..],
            &["--split", "scores:out", "--no-fuse", "--batches", "1x3"],
            &["--split", "scores.1:out", "--split-chunks", "scores=2", "--batches", "2x2"],
        ] {
            assert_eq!(run(compress, &[&emulated[..], split].concat()), cpu, "{model} {split:?}");
        }
    }
}
