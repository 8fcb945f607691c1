//! Tests of faults of a CUDA device with the stand-in driver and the real coordinator: a sentence
//! with the numbers, finished groups are kept, nothing is left over, and the next run works.

use std::path::Path;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::{Place, finish, lines, text};
use crate::cuda::{command, run};
use crate::death::{control_of, nothing_left, workers_of};

const ON_DEVICE: [&str; 4] = ["--device", "cuda:0", "--policy", "gpu-only"];

/// Writes six prompts, which make three groups with `--batches 1x2`.
fn requests(place: &Place) -> std::path::PathBuf {
    let prompts: Vec<Vec<u32>> = (0..6u32).map(|i| vec![3 + i, 4, 9]).collect();
    place.requests("in.jsonl", &prompts, 4)
}

fn refused(place: &Place, input: &Path, extra: &[&str], set: &[(&str, &str)]) -> String {
    let done = run(place, "llama", input, extra, set);
    assert_eq!(done.status.code(), Some(1), "{set:?}: {}", text(&done.stderr));
    let said = text(&done.stderr);
    assert!(said.trim_end().ends_with('.'), "{said}");
    said
}

/// Returns the bytes of the plan on the device.
fn device_bytes(place: &Place) -> u64 {
    let report = std::fs::read_to_string(place.path("report")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    report["budget_bytes"]["device"].as_u64().expect("bytes")
}

fn succeeded(done: &Output) {
    assert!(done.status.success(), "{}", text(&done.stderr));
}

#[test]
fn a_device_that_cannot_be_used_is_refused_in_a_sentence() {
    let place = Place::new();
    let input = requests(&place);
    for (set, device, words) in [
        (("STANDIN_CUDA_VERSION", "11080"), "cuda:0", ["11.8", "525"]),
        (("STANDIN_CUDA_DEVICES", "0"), "cuda:0", ["no device", "--device none"]),
        (("STANDIN_CUDA_DEVICES", "1"), "cuda:1", ["device 1", "has 1"]),
        (("STANDIN_CUDA_CAPABILITY", "75"), "cuda:0", ["7.5", "8.0"]),
    ] {
        let said = refused(&place, &input, &["--device", device], &[set]);
        assert!(words.iter().all(|word| said.contains(word)), "{set:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
}

#[test]
fn a_device_that_others_have_filled_is_refused_with_the_numbers_and_what_fits() {
    let place = Place::new();
    let input = requests(&place);
    let extra = [&ON_DEVICE[..], &["--batches", "1x6"]].concat();
    succeeded(&run(&place, "llama", &input, &extra, &[]));
    // Enough memory for a smaller batch only; an eighth is reserved for the driver.
    let memory = 8 * device_bytes(&place);
    let memory_text = memory.to_string();
    let with = |others: u64| {
        [("STANDIN_CUDA_MEMORY", memory_text.clone()), ("STANDIN_CUDA_OTHERS", others.to_string())]
    };
    let set = |pairs: &[(&'static str, String); 2]| {
        run(
            &place,
            "llama",
            &input,
            &extra,
            &[(pairs[0].0, &pairs[0].1), (pairs[1].0, &pairs[1].1)],
        )
    };
    succeeded(&set(&with(0)));
    let full = set(&with(memory));
    let said = text(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{said}");
    assert!(said.contains("cuda:0 has 0.00 of") && said.contains("not even one"), "{said}");
    // The more memory other processes take, the less fits: at some point only a smaller batch does.
    let seen = (0..32).any(|part| {
        let done = set(&with(memory - memory / 8 - part * memory / 256));
        text(&done.stderr).contains("--batches 1x")
    });
    assert!(seen, "no step names a smaller batch");
}

#[test]
fn memory_taken_between_plan_and_start_or_in_the_middle_names_what_fits_now() {
    let place = Place::new();
    let input = requests(&place);
    let extra = [&ON_DEVICE[..], &["--batches", "1x2"]].concat();
    for fail in ["cuMemAlloc:1:2", "cuLaunchKernel:60:2"] {
        let said = refused(&place, &input, &extra, &[("STANDIN_CUDA_FAIL", fail)]);
        let words = ["cuda:0 has 1.00 of 1.00 GiB free", "the same run fits"];
        assert!(words.iter().all(|word| said.contains(word)), "{fail}: {said}");
    }
}

#[test]
fn a_sticky_error_names_instruction_and_layer_and_keeps_finished_groups() {
    let place = Place::new();
    let input = requests(&place);
    let extra = [&ON_DEVICE[..], &["--batches", "1x2"]].concat();
    succeeded(&run(&place, "llama", &input, &extra, &[]));
    let whole = std::fs::read_to_string(place.path("out.jsonl")).expect("output");
    let mut kept_some = false;
    for nth in [40, 400, 700] {
        let fail = format!("cuLaunchKernel:{nth}:719");
        let done = run(&place, "llama", &input, &extra, &[("STANDIN_CUDA_FAIL", &fail)]);
        let said = text(&done.stderr);
        if done.status.success() {
            continue;
        }
        let words = ["cuLaunchKernel", "gpu.compute", "layer "];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        let kept = std::fs::read_to_string(place.path("out.jsonl")).unwrap_or_default();
        assert!(whole.starts_with(&kept), "{fail}: finished groups changed");
        kept_some |= !kept.is_empty();
        let resumed = [&extra[..], &["--resume"]].concat();
        succeeded(&run(&place, "llama", &input, &resumed, &[]));
        let bytes = std::fs::read_to_string(place.path("out.jsonl")).expect("output");
        assert_eq!(bytes, whole, "{fail}");
    }
    assert!(kept_some, "no fault came after a finished group");
}

#[test]
fn a_kernel_that_never_ends_ends_the_run() {
    let place = Place::new();
    let input = requests(&place);
    // Half of it is the time limit of a kernel; on a busy machine another lane may be delayed by a
    // second.
    let set = [("STANDIN_CUDA_HANG", "60"), ("TANDEM_WAIT_S", "8")];
    let said = refused(&place, &input, &ON_DEVICE, &set);
    assert!(said.contains("gpu.compute") && said.contains("layer "), "{said}");
    assert!(said.contains("kernel may hang"), "{said}");
    succeeded(&run(&place, "llama", &input, &ON_DEVICE, &[]));
}

/// A device schedules its processes in turn, and a stream that has done nothing yet gets no turn
/// while a stream of another process waits for it. The first work of a lane must therefore not be
/// its stream's first.
#[test]
fn a_stream_that_waits_keeps_no_other_process_from_beginning() {
    let place = Place::new();
    let input = requests(&place);
    let turns = place.path("turns");
    std::fs::create_dir(&turns).expect("a folder");
    let turns = turns.display().to_string();
    for split in ["scores:wv", "gate:"] {
        for seed in ["1", "2", "3"] {
            let set = [
                ("STANDIN_CUDA_TURNS", turns.as_str()),
                ("STANDIN_CUDA_SEED", seed),
                ("TANDEM_WAIT_S", "8"),
            ];
            let extra = ["--device", "cuda:0", "--split", split, "--batches", "2x2"];
            succeeded(&run(&place, "llama", &input, &extra, &set));
        }
    }
}

#[test]
fn a_killed_transfer_worker_ends_the_run_and_leaves_nothing() {
    let place = Place::new();
    let prompts: Vec<Vec<u32>> = (0..12u32).map(|i| vec![3 + i, 4]).collect();
    let input = place.requests("in.jsonl", &prompts, 24);
    let extra = [&ON_DEVICE[..], &["--batches", "2x2"]].concat();
    let mut child = command(&place, "llama", &input, &extra, &[]).spawn().expect("starts");
    let mut control = None;
    let (killed, pids) = loop {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was struck");
        control = control.or_else(|| control_of(child.id()));
        let workers = workers_of(child.id());
        let transfer = workers.iter().find(|(_, name)| name.contains("transfer"));
        // The lane that transfers weights has begun.
        if let (Some((pid, _)), Some(control)) = (transfer, &control)
            && control.lane(program::topology::LaneId::H2D_WEIGHTS.index()).timeline.value() >= 20
        {
            let target = Pid::from_raw(pid.cast_signed()).expect("a process id");
            kill_process(target, Signal::KILL).expect("it lives");
            break (*pid, workers.iter().map(|(pid, _)| *pid).collect());
        }
        std::thread::yield_now();
    };
    let done = finish(child);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("transfer worker") && said.contains(&killed.to_string()), "{said}");
    nothing_left(&pids);
    succeeded(&run(&place, "llama", &input, &extra, &[]));
    assert_eq!(lines(&place.path("out.jsonl")).len(), prompts.len());
}
