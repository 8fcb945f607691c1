//! Tests that any process may die at any time: an error names it, nothing is left over, and no
//! answer is lost.
//!
//! The times are seeded values of a lane's timeline, read from the run's own control segment, so
//! that they fall into load, prefill, decode and the writing between groups.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use shm::Control;

use crate::command::{Place, coordinator, finish, fixture, runs_all_cases, text};

const WORKERS: [(&str, usize); 3] = [("cpu worker", 0), ("gpu worker", 2), ("transfer worker", 3)];
/// Time limit from a death to the exit of the coordinator. The design bound is 2 s; this is only a
/// watchdog.
const WATCHDOG: Duration = Duration::from_secs(30);

struct Run {
    child: Child,
    output: PathBuf,
}

fn requests(place: &Place) {
    let prompts: Vec<Vec<u32>> =
        (0..12u32).map(|i| (0..3 + i % 5).map(|j| 5 + 7 * i + j).collect()).collect();
    place.requests("in.jsonl", &prompts, 24);
}

fn start(place: &Place, output: &str, extra: &[&str]) -> Run {
    start_model("llama", place, output, extra)
}

fn start_model(model: &str, place: &Place, output: &str, extra: &[&str]) -> Run {
    let output = place.path(output);
    let mut command = coordinator();
    command
        .arg("--model")
        .arg(fixture(model))
        .arg("--input")
        .arg(place.path("in.jsonl"))
        .arg("--output")
        .arg(&output)
        .args(["--batches", "2x2", "--device", "emulated", "--split", "scores:norm1", "--quiet"])
        .args(extra)
        .stderr(Stdio::piped());
    Run { child: command.spawn().expect("starts"), output }
}

/// Returns the worker processes of a coordinator with their names.
pub fn workers_of(coordinator: u32) -> Vec<(u32, String)> {
    let mut processes = processes_of(coordinator);
    processes.retain(|(_, name)| name.contains("worker"));
    processes
}

/// Returns all child processes of a coordinator with their names.
fn processes_of(coordinator: u32) -> Vec<(u32, String)> {
    let path = format!("/proc/{coordinator}/task/{coordinator}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            Some((pid.parse().ok()?, name.split('\0').next()?.to_owned()))
        })
        .collect()
}

/// Opens the control segment of a running coordinator, found among its descriptors.
pub fn control_of(coordinator: u32) -> Option<Control> {
    for entry in std::fs::read_dir(format!("/proc/{coordinator}/fd")).ok()?.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().contains("tandem-control") {
            let file = File::options().read(true).write(true).open(entry.path()).ok()?;
            let size = usize::try_from(file.metadata().ok()?.len()).ok()?;
            return Control::attach(file.into(), size).ok();
        }
    }
    None
}

/// Sends `signal` to the worker once its lane's timeline has reached `value`, possibly during load
/// if `value` is 0; returns the process ID, or `None` if the run ended first.
fn strike(run: &mut Run, worker: (&str, usize), value: u32, signal: Signal) -> Option<u32> {
    let coordinator = run.child.id();
    let mut control = None;
    loop {
        if run.child.try_wait().expect("a child").is_some() {
            return None;
        }
        let target = workers_of(coordinator).into_iter().find(|(_, name)| name.contains(worker.0));
        control = control.or_else(|| control_of(coordinator));
        if let (Some((pid, _)), Some(control)) = (target, &control)
            && control.lane(worker.1).timeline.value() >= value
        {
            let target = Pid::from_raw(pid.cast_signed()).expect("a process id");
            return kill_process(target, signal).is_ok().then_some(pid);
        }
        std::thread::yield_now();
    }
}

pub fn nothing_left(pids: &BTreeSet<u32>) {
    let until = Instant::now() + WATCHDOG;
    for pid in pids {
        let alive = || {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
        };
        while alive() {
            assert!(Instant::now() < until, "process {pid} is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let objects = std::fs::read_dir("/dev/shm").map(|entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().contains("tandem"))
            .count()
    });
    assert_eq!(objects.unwrap_or(0), 0, "shared-memory objects left");
}

/// Returns the number of times at which each worker is struck.
fn instant_count() -> u32 {
    if runs_all_cases() { 20 } else { 7 }
}

/// Returns `count` seeded timeline values over the whole duration of the run.
fn instants(last: u32, count: u32, seed: u64) -> Vec<u32> {
    let mut state = seed;
    (0..count)
        .map(|i| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // One random value in each of equal parts of the duration; the first is during load.
            let part = u64::from(last) * u64::from(i) / u64::from(count);
            let within = (state >> 33) % (u64::from(last) / u64::from(count)).max(1);
            if i == 0 { 0 } else { (part + within) as u32 }
        })
        .collect()
}

/// Runs undisturbed; returns the output, and the last timeline value of each worker's lane.
fn undisturbed(model: &str, place: &Place) -> (String, Vec<u32>) {
    let mut run = start_model(model, place, "whole.jsonl", &[]);
    let mut last = vec![0; WORKERS.len()];
    let mut control = None;
    while run.child.try_wait().expect("a child").is_none() {
        control = control.or_else(|| control_of(run.child.id()));
        if let Some(control) = &control {
            for ((_, lane), last) in WORKERS.iter().zip(&mut last) {
                *last = control.lane(*lane).timeline.value().max(*last);
            }
        }
    }
    let done = finish(run.child);
    assert!(done.status.success(), "{}", text(&done.stderr));
    (std::fs::read_to_string(&run.output).expect("output"), last)
}

fn dies(model: &str, signal: Signal, count: u32, seed: u64) {
    let place = Place::new();
    requests(&place);
    let (whole, last) = undisturbed(model, &place);
    for (index, worker) in WORKERS.iter().enumerate() {
        let (mut struck, mut kept_answers) = (0, 0);
        let mut slowest = Duration::ZERO;
        for value in instants(last[index], count, seed + index as u64) {
            let mut run = start_model(model, &place, "out.jsonl", &["--force"]);
            let hit = strike(&mut run, *worker, value, signal);
            let at = Instant::now();
            let mut pids: BTreeSet<u32> =
                workers_of(run.child.id()).into_iter().map(|(pid, _)| pid).collect();
            pids.extend(hit);
            let done = finish(run.child);
            slowest = slowest.max(at.elapsed());
            assert!(at.elapsed() < WATCHDOG, "{} at {value}", worker.0);
            nothing_left(&pids);
            let said = text(&done.stderr);
            if hit.is_some() && !done.status.success() {
                struck += 1;
                assert!(said.contains(worker.0), "{signal:?} {} at {value}: {said}", worker.0);
            } else {
                // The run ended before the signal arrived.
                assert!(done.status.success(), "{signal:?} {} at {value}: {said}", worker.0);
            }
            let kept = std::fs::read_to_string(&run.output).unwrap_or_default();
            assert!(whole.starts_with(&kept), "{} at {value}: finished groups changed", worker.0);
            if hit.is_some() && !done.status.success() {
                kept_answers += kept.lines().count();
            }
            let resumed = finish(start_model(model, &place, "out.jsonl", &["--resume"]).child);
            assert!(resumed.status.success(), "{}", text(&resumed.stderr));
            let bytes = std::fs::read_to_string(&run.output).expect("output");
            assert_eq!(bytes, whole, "{} at {value}", worker.0);
        }
        println!(
            "{model} {signal:?} {}: {struck} of {count} struck, {kept_answers} answers kept, \
             slowest exit {slowest:?}",
            worker.0
        );
        // Groups end long before the last signals, so a run that keeps nothing is detected here.
        assert!(kept_answers > 0, "{}: no answer was kept", worker.0);
        assert!(struck > count / 2, "{}: only {struck} struck", worker.0);
    }
}

#[test]
fn a_killed_worker_ends_the_run_and_loses_nothing() {
    dies("llama", Signal::KILL, instant_count(), 1);
}

/// Layers with states that decay by channel, and layers that differ in heads, with gates of heads.
#[test]
fn a_killed_worker_of_layers_that_differ_ends_the_run_and_loses_nothing() {
    for (model, seed) in [("kimi_linear", 3), ("step3p5", 4)] {
        dies(model, Signal::KILL, instant_count().div_ceil(2), seed);
    }
}

#[test]
fn a_stopped_worker_ends_the_run_and_loses_nothing() {
    dies("llama", Signal::STOP, instant_count(), 2);
}

#[test]
fn workers_do_not_outlive_the_coordinator() {
    let place = Place::new();
    requests(&place);
    for value in [0, 10, 60] {
        let mut run = start(&place, "out.jsonl", &["--force"]);
        let coordinator = run.child.id();
        let mut control = None;
        let pids = loop {
            let workers = workers_of(coordinator);
            control = control.or_else(|| control_of(coordinator));
            if workers.len() == 3
                && control.as_ref().is_some_and(|c: &Control| c.lane(0).timeline.value() >= value)
            {
                let all = processes_of(coordinator);
                assert!(all.iter().any(|(_, name)| name.contains("tokenizer")), "{all:?}");
                break all.into_iter().map(|(pid, _)| pid).collect();
            }
            assert!(run.child.try_wait().expect("a child").is_none(), "ended too early");
        };
        run.child.kill().expect("a child");
        run.child.wait().expect("a child");
        nothing_left(&pids);
    }
}

/// Returns the memory map of the GPU worker after its lane has signalled, when all of its mappings
/// exist; `None` if the run ended before it could be read.
fn gpu_worker_maps(place: &Place) -> Option<String> {
    let mut run = start(place, "out.jsonl", &["--force"]);
    let mut control = None;
    let mut maps = None;
    while maps.is_none() && run.child.try_wait().expect("a child").is_none() {
        control = control.or_else(|| control_of(run.child.id()));
        let gpu = workers_of(run.child.id()).into_iter().find(|(_, name)| name.contains("gpu"));
        if let (Some(control), Some((pid, _))) = (&control, gpu)
            && control.lane(WORKERS[1].1).timeline.value() > 0
        {
            let read = std::fs::read_to_string(format!("/proc/{pid}/maps"));
            maps = read.ok().filter(|maps| maps.contains("tandem-control"));
        }
    }
    assert!(finish(run.child).status.success());
    maps
}

#[test]
fn the_gpu_worker_maps_no_host_weight_kv_or_activation() {
    let place = Place::new();
    requests(&place);
    let maps = (0..20).find_map(|_| gpu_worker_maps(&place)).expect("one run is seen");
    assert!(maps.contains("tandem-device"), "{maps}");
    for host in ["tandem-weights", "tandem-kv", "tandem-activations"] {
        assert!(!maps.contains(host), "{maps}");
    }
}
