//! Tests of runs that read weights from drives, and of runs that do not need to.

use super::{Drives, Ran, SMALL, WHOLE, model, strs};

const TWO: [&str; 2] = ["--batches", "2x2"];
const ALL: [&str; 2] = ["--nvme-ops", "all"];
/// Memory for half of the weights of the layers of `WHOLE`.
const HALF: [&str; 4] = ["--dram", "350MiB", "--compress", "none"];

#[test]
fn drives_give_the_answers_of_memory() {
    let emulated = ["--device", "emulated"];
    for name in ["llama", "opt"] {
        let drives = Drives::new();
        drives.requests(6, 8);
        let model = model(name);
        let model = [&strs(&model)[..], &TWO].concat();
        let whole = drives.run(&model).answers;
        let some = if name == "llama" { "q,down" } else { "k,fc0" };
        for placement in [
            &ALL[..],
            &["--nvme-ops", some],
            &[&emulated[..], &ALL, &["--policy", "gpu-only"]].concat(),
            &[&emulated[..], &ALL, &["--split", "k:out"]].concat(),
        ] {
            let ran = drives.run_from(2, &[&model[..], placement].concat());
            assert_eq!(ran.answers, whole, "{name} {placement:?}");
            let (read, step) = (ran.read_bytes(), ran.step_bytes());
            assert_eq!((read.len(), step.len()), (2, 2), "{}", ran.report["storages"]);
            // Prefill reads as much as a decode step, and there are eight steps including it.
            let (read, step): (u64, u64) = (read.iter().sum(), step.iter().sum());
            assert!(step > 0 && read >= 8 * step, "{read} bytes, {step} in a step");
        }
        let w4 = [&model[..], &["--compress", "w4"]].concat();
        let whole = drives.run(&w4).answers;
        let ran = drives.run_from(2, &[&w4[..], &ALL].concat());
        assert_eq!(ran.answers, whole, "{name} in 4 bits");
        assert!(ran.read_bytes().iter().sum::<u64>() > 0);
        // Each weight format has its own staging.
        assert_eq!(drives.stagings(0).len(), 2);
    }
}

/// Experts without and with biases and in a latent, read whole, as rows are routed to them, and
/// from a cache.
#[test]
fn experts_on_drives_give_the_answers_of_memory() {
    const GATED: &str = "expert_gate,expert_up,expert_down";
    let models = [
        ("qwen3_moe", GATED, "64KiB"),
        ("gpt_oss", GATED, "64KiB"),
        ("nemotron_h_latent", "expert_up,expert_down", "8KiB"),
    ];
    for (name, ops, min_cache) in models {
        let drives = Drives::new();
        drives.requests(6, 8);
        let model = model(name);
        let model = [&strs(&model)[..], &["--batches", "1x2", "--device", "none"]].concat();
        let whole = drives.run(&model).answers;
        let of = |experts: &[&str]| {
            let stored = ["--nvme-ops", ops];
            let ran = drives.run_from(2, &[&model[..], &stored, experts].concat());
            assert_eq!(ran.answers, whole, "{name} {experts:?}");
            let of_step = |field: &str| ran.report["routing"][field].as_f64();
            let share = of_step("missing_per_step").zip(of_step("used_per_step"));
            (ran.read_bytes().iter().sum::<u64>(), share.map(|(missing, used)| missing / used))
        };
        let (all, none) = of(&["--nvme-experts", "all"]);
        assert!(all > 0 && none.is_none(), "{name}: {none:?}");
        let (routed, none) = of(&["--nvme-experts", "routed"]);
        assert!(routed > 0 && none.is_none(), "{name}: {none:?}");
        // Memory for one expert or two, and for less than the experts of a step.
        for cache in [min_cache, "200KiB", "512KiB"] {
            of(&["--nvme-experts", "routed", "--expert-cache", cache]);
        }
        let cached = of(&["--nvme-experts", "routed", "--expert-cache", "64MiB"]).1;
        let read = cached.expect("some experts were found in the cache");
        assert!(read < 0.7, "{name}: {read} of the experts that were needed are read");
    }
}

/// Experts that a device multiplies are gathered from their records, without and with biases and in
/// a latent, as stored and in 4 bits, also if other weights are read directly to the device.
#[test]
fn experts_on_drives_reach_a_device() {
    for name in ["qwen3_moe", "gpt_oss", "nemotron_h_latent"] {
        let drives = Drives::new();
        drives.requests(4, 6);
        let model = model(name);
        for compress in ["none", "w4"] {
            let device = ["--device", "emulated", "--policy", "gpu-only", "--compress", compress];
            let model = [&strs(&model)[..], &TWO, &device].concat();
            let whole = drives.run(&model).answers;
            for direct in ["off", "on"] {
                let ran =
                    drives.run_from(2, &[&model[..], &ALL, &["--nvme-direct", direct]].concat());
                assert_eq!(ran.answers, whole, "{name} {compress} {direct}");
                assert!(ran.read_bytes().iter().all(|bytes| *bytes > 0), "{name} {compress}");
            }
        }
    }
}

/// The routing that a run counted keeps experts in the cache of another one from the start, and
/// changes no answer.
#[test]
fn counted_routing_changes_no_answer() {
    let drives = Drives::new();
    drives.requests(6, 8);
    let model = model("qwen3_moe");
    let model = [&strs(&model)[..], &["--batches", "1x2", "--device", "none"]].concat();
    let whole = drives.run(&model).answers;
    let experts = ["--nvme-ops", "expert_gate,expert_up,expert_down", "--nvme-experts", "routed"];
    let cached = [&model[..], &experts, &["--expert-cache", "512KiB"]].concat();
    let first = drives.run_from(2, &cached);
    let counted = drives.place.path("counted.json").display().to_string();
    std::fs::copy(drives.place.path("report.json"), &counted).expect("a report");
    let second = drives.run_from(2, &[&cached[..], &["--routing", &counted]].concat());
    let cache = |ran: &Ran, field: &str| {
        let value = ran.report["routing"]["cache"][field].as_u64();
        value.unwrap_or_else(|| panic!("{field}: {}", ran.report["routing"]))
    };
    for ran in [&first, &second] {
        assert_eq!(ran.answers, whole);
        assert!(cache(ran, "uses") > cache(ran, "max_hits"), "{}", ran.report["routing"]);
        assert!(cache(ran, "max_hits") >= cache(ran, "hits"));
        assert!(cache(ran, "min_read_bytes") <= cache(ran, "read_bytes"));
    }
    assert_eq!(cache(&first, "uses"), cache(&second, "uses"));
    // The best rule has the pinned experts from the start, too.
    assert!(cache(&second, "max_hits") >= cache(&first, "max_hits"));

    let other = drives.place.path("other.json");
    std::fs::write(&other, r#"{"routing": {"rows_of_experts": [[1, 2, 3]]}}"#).expect("writable");
    let other = other.display().to_string();
    let nvme = drives.arguments(2);
    let wrong = [&cached[..], &strs(&nvme), &["--routing", &other]].concat();
    let refused = drives.run_with(&wrong, "");
    assert_ne!(refused.code, Some(0));
    assert!(refused.said.contains("counted for 3 experts"), "{}", refused.said);
}

#[test]
fn both_drives_are_read_and_reported() {
    let drives = Drives::new();
    drives.requests(4, 6);
    let model = [SMALL, &TWO].concat();
    let whole = drives.run(&model).answers;
    drives.staged(2, SMALL);
    let nvme = drives.arguments(2);
    let ran = drives.run(&[&model[..], &ALL, &strs(&nvme)].concat());
    assert_eq!(ran.answers, whole);
    assert!(!ran.said.contains("is not staged"), "{}", ran.said);
    // Two layers of 12 * 768^2 weights in bf16, and their biases.
    let layers = 2 * 12 * 768 * 768 * 2;
    let step: u64 = ran.step_bytes().iter().sum();
    assert!((layers..layers + layers / 100).contains(&step), "{step} and not {layers}");
    assert!(ran.step_bytes().iter().all(|bytes| *bytes > 0), "{:?}", ran.step_bytes());
    for (drive, name) in ["nvme0", "nvme1"].into_iter().enumerate() {
        let storage = &ran.report["storages"][name];
        let path = drives.staging(drive);
        assert_eq!(storage["path"].as_str(), Some(&*path.to_string_lossy()));
        assert!(storage["busy_s"].as_f64().expect("seconds") > 0.0);
        assert!(storage["lost"].is_null(), "{storage}");
        let how = storage["how"].as_str().expect("how it was read");
        assert!(how.contains("io_uring") || how.contains("pread"), "{how}");
        assert!(ran.said.contains(how) && ran.said.contains(name), "{}", ran.said);
    }
}

#[test]
fn a_run_stages_what_is_missing() {
    let drives = Drives::new();
    drives.requests(2, 4);
    drives.staged(1, SMALL);
    let before = std::fs::metadata(drives.staging(0).join("index.json")).expect("an index");
    let run = || drives.run_from(2, &[SMALL, &ALL].concat());
    let first = run();
    let (kept, missing) = (drives.directory(0), drives.directory(1));
    let (kept, missing) = (kept.display(), missing.display());
    let takes = format!("is not staged in {missing}: staging it takes 0.04 GiB");
    assert!(first.said.contains(&takes), "{}", first.said);
    assert!(!first.said.contains(&format!("is not staged in {kept}")), "{}", first.said);
    let after = std::fs::metadata(drives.staging(0).join("index.json")).expect("an index");
    assert_eq!(after.modified().expect("a time"), before.modified().expect("a time"));
    let second = run();
    assert!(!second.said.contains("is not staged"), "{}", second.said);
    assert_eq!(second.answers, first.answers);
}

#[test]
fn nothing_is_read_where_memory_has_room() {
    let drives = Drives::new();
    drives.requests(2, 4);
    let ran = drives.run_from(2, SMALL);
    let note = "All weights fit in memory, so nothing is read from --nvme.";
    assert!(ran.said.contains(note), "{}", ran.said);
    assert!(ran.read_bytes().is_empty(), "{}", ran.report["storages"]);
    assert!(drives.stagings(0).is_empty(), "nothing needed to be staged");
}

#[test]
fn a_model_larger_than_memory_runs_and_reads_only_what_is_missing() {
    let drives = Drives::new();
    drives.requests(4, 4);
    let whole = drives.run(&[WHOLE, &TWO].concat()).answers;
    let half = [WHOLE, &TWO, &HALF].concat();
    let refused = drives.run_with(&half, "");
    assert_eq!(refused.code, Some(1), "{}", refused.said);
    assert!(refused.said.contains("but 0.34 GiB are available"), "{}", refused.said);
    let ran = drives.run_from(2, &half);
    assert_eq!(ran.answers, whole);
    let layers = 12 * 12 * 768 * 768 * 2;
    let step: u64 = ran.step_bytes().iter().sum();
    let part = step as f64 / layers as f64;
    println!("{part:.2} of the layers' weights are read in a step");
    assert!((0.3..0.7).contains(&part), "{step} of {layers} bytes");
    let used = ran.report["peak_pss_bytes"]["sum"].as_u64().expect("bytes");
    assert!(used < 350 << 20, "{used} bytes were used");
    let little =
        drives.run_with(&[WHOLE, &["--dram", "200MiB"], &strs(&drives.arguments(2))].concat(), "");
    assert_eq!(little.code, Some(1), "{}", little.said);
    let even_so = "even where weights are read from storages in every step";
    assert!(little.said.contains(even_so), "{}", little.said);
}

#[test]
fn an_operation_that_the_model_lacks_is_refused_with_those_it_has() {
    let drives = Drives::new();
    drives.requests(1, 1);
    let nvme = drives.arguments(1);
    let ran = drives.run_with(&[SMALL, &["--nvme-ops", "q,gate"], &strs(&nvme)].concat(), "");
    assert_eq!(ran.code, Some(2), "{}", ran.said);
    let said = "--nvme-ops gate: opt-125m has no such weights; it has q, k, v, out, fc0, fc1.";
    assert!(ran.said.contains(said), "{}", ran.said);
    let without = drives.run_with(&[SMALL, &ALL].concat(), "");
    assert_eq!(without.code, Some(2), "{}", without.said);
    assert!(without.said.contains("--nvme <DIR>"), "{}", without.said);
}

#[test]
fn another_staging_is_not_used() {
    let drives = Drives::new();
    drives.requests(2, 4);
    // Other weights under the same name, another number format, fewer layers.
    let others = [
        [SMALL, &["--seed", "7"]].concat(),
        [SMALL, &["--dtype", "f32"]].concat(),
        ["--model", "opt-125m", "--dummy-weights", "--layers", "1"].to_vec(),
    ];
    for other in &others {
        drives.staged(1, other);
    }
    let there = drives.stagings(0);
    assert_eq!(there.len(), others.len());
    let whole = drives.run(SMALL).answers;
    let ran = drives.run_from(1, &[SMALL, &ALL].concat());
    assert_eq!(ran.answers, whole);
    assert!(ran.said.contains("opt-125m (bf16) is not staged"), "{}", ran.said);
    let mut now = drives.stagings(0);
    assert_eq!(now.len(), there.len() + 1);
    now.retain(|path| there.contains(path));
    assert_eq!(now, there, "the others are as they were");
}
