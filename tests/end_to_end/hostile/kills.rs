//! Tests of servers under load whose processes are killed at random: every answer equals that of an
//! undisturbed batch job.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::from_environment;
use super::mutate::Random;
use crate::command::Place;
use crate::serve::{Served, ask_all, bodies, expected, processes_of_any};

/// Default number of servers.
const CASES: u64 = 10;
/// Maximum number of kills of a server's workers: a sequence fails with the third loss that affects
/// it.
const KILLS_MAX: usize = 2;
/// Number of requests to a server: about as many as it answers while processes are killed.
const REQUESTS: usize = 40;

const OWNERS: [&str; 10] = [
    "--device",
    "emulated",
    "--slots",
    "10",
    "--device-slots",
    "1",
    "--context",
    "96",
    "--prefill-chunk",
    "32",
];

/// Returns the options of a server, and the subset that changes its answers.
fn options(which: usize, place: &Place) -> (Vec<String>, Vec<&'static str>) {
    let strings = |options: &[&str]| options.iter().map(|one| (*one).to_owned()).collect();
    let path = |name: &str| place.path(name).display().to_string();
    match which {
        0 => (strings(&["--slots", "5", "--step-ms", "1"]), Vec::new()),
        1 => (strings(&["--slots", "4", "--compress", "kv4"]), vec!["--compress", "kv4"]),
        2 => (strings(&[&OWNERS[..], &["--host-attention", "neo"]].concat()), Vec::new()),
        3 => (strings(&[&OWNERS[..], &["--host-attention", "apex"]].concat()), Vec::new()),
        4 => (strings(&["--slots", "5", "--device", "emulated"]), Vec::new()),
        5 => {
            let store = path("prompts");
            let with = ["--slots", "5", "--prompt-cache", &store, "--prompt-cache-min", "16"];
            (strings(&with), Vec::new())
        }
        _ => {
            let drive = path("drive");
            std::fs::create_dir_all(place.path("drive")).expect("a writable folder");
            (strings(&["--slots", "5", "--nvme", &drive, "--nvme-ops", "all"]), Vec::new())
        }
    }
}

/// Returns true for processes that a server depends on.
fn is_victim(name: &str) -> bool {
    name.contains("worker")
}

#[test]
fn processes_of_a_server_under_load() {
    let cases = from_environment("TANDEM_FUZZ_CASES").map_or(CASES, |cases| cases.div_ceil(200));
    let seed = from_environment("TANDEM_FUZZ_SEED").unwrap_or(1);
    let bodies = bodies(REQUESTS);
    let plain = expected(&bodies, &[]);
    for case in 0..cases {
        let mut random = Random(seed.wrapping_add(case));
        let place = Place::on_drive();
        let (options, changing) = options(case as usize % 7, &place);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let of_case = (!changing.is_empty()).then(|| expected(&bodies, &changing));
        let served = Served::start(&options);
        let found = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask_all(&served, &bodies));
            for _ in 0..=random.below(KILLS_MAX) {
                std::thread::sleep(Duration::from_micros(random.next() % 150_000));
                let mut victims = processes_of_any(served.id());
                victims.retain(|(_, name)| is_victim(name));
                if victims.is_empty() {
                    // The workers are being started.
                    continue;
                }
                let (pid, _) = random.pick(&victims);
                let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
                // The process may have exited already.
                let _ = kill_process(pid, Signal::KILL);
            }
            asking.join().expect("all answers")
        });
        let expected = of_case.as_ref().unwrap_or(&plain);
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "seed {seed}, case {case}, {options:?}: {}", bodies[i]);
        }
        let said = served.end();
        assert!(!said.contains("panicked") && !said.contains("the server ends"), "{said}");
    }
}
