//! Tests that any process of a server may be killed at any time during a batch: the output and
//! error files have the same bytes as if nothing had been killed, and nothing is left over.
//!
//! The times are seeded numbers of generated tokens, read from the server's metrics, so that they
//! fall into the whole duration of a batch; the first one falls into its validation. `make fuzz`
//! runs all of [`SEEDS`], `make test` a sample.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::batches::{Batch, input, parse};
use crate::command::{Place, WATCHDOG, runs_all_cases};
use crate::hostile::Random;
use crate::serve::{Served, processes_of_any};

/// Seeds of the times at which each kind of process is killed.
const SEEDS: u64 = 20;
/// Seeds in `make test`.
const SAMPLED_SEEDS: u64 = 3;

/// Options of a server, and the number of requests with which a batch takes some seconds.
struct Server {
    options: &'static [&'static str],
    requests: usize,
}

const ON_CPU: Server = Server { options: &["--slots", "3", "--step-ms", "1"], requests: 600 };
const ON_DEVICE: Server = Server {
    options: &["--slots", "3", "--step-ms", "1", "--device", "emulated", "--split", "scores:norm1"],
    requests: 100,
};
/// Weights are read from two drives, whose names begin with `DRIVE`.
const ON_DRIVES: Server = Server {
    options: &["--slots", "3", "--nvme", "DRIVE0", "--nvme", "DRIVE1", "--nvme-ops", "all"],
    requests: 60,
};

/// Results of a batch during which nothing is killed.
struct Undisturbed {
    results: (String, String),
    /// Number of generated tokens.
    tokens: u64,
}

/// Returns lines with token ids and, at the end, some with text for the tokenizer.
fn mixed_input(requests: usize) -> String {
    let text_line = |i: usize| {
        let prompt = "Once upon a time ".repeat(1 + i % 40);
        let body = json!({"prompt": prompt, "max_tokens": 2 + i % 5, "ignore_eos": true});
        let (id, url) = (format!("text-{i}"), "/v1/completions");
        format!("{}\n", json!({"custom_id": id, "method": "POST", "url": url, "body": body}))
    };
    input(requests) + &(0..requests / 4).map(text_line).collect::<String>()
}

fn start(server: &Server) -> (Batch, Served) {
    // Weights on drives need a file system with direct reads.
    let place = Place::on_drive();
    let drives = ["drive0", "drive1"].map(|name| place.path(name).display().to_string());
    let options: Vec<&str> = server
        .options
        .iter()
        .map(|option| match *option {
            "DRIVE0" => &*drives[0],
            "DRIVE1" => &*drives[1],
            other => other,
        })
        .collect();
    Batch::start_with(place, mixed_input(server.requests), &options)
}

/// Returns the number of tokens that a server has generated.
fn generated(served: &Served) -> u64 {
    let metrics = served.get("/metrics").1;
    let count =
        metrics.lines().find_map(|line| line.strip_prefix("tandem_generation_tokens_total"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
}

/// Computes a batch while nothing is killed, and asserts that every request of its input has one
/// line in one of the files.
fn undisturbed(server: &Server) -> Undisturbed {
    let (batch, served) = start(server);
    let results = batch.results(&served);
    let lines = results.0.lines().chain(results.1.lines()).map(parse);
    let mut found: Vec<String> = lines.map(|line| custom_id(&line)).collect();
    let input = mixed_input(server.requests);
    let mut requested: Vec<String> =
        input.lines().map(parse).map(|line| custom_id(&line)).collect();
    found.sort_unstable();
    requested.sort_unstable();
    assert_eq!(found, requested);
    let undisturbed = Undisturbed { results, tokens: generated(&served) };
    assert_eq!(served.end(), "");
    undisturbed
}

fn custom_id(line: &Value) -> String {
    line["custom_id"].as_str().expect("an id").to_owned()
}

/// Waits for the time that a seed gives: during validation, after a number of tokens, or, with the
/// last seed, while the results are written. `seeds` is the number of all seeds.
fn wait_for_time(batch: &Batch, served: &Served, seed: u64, seeds: u64, tokens: u64) {
    let mut random = Random(seed);
    if seed == 0 {
        std::thread::sleep(Duration::from_micros(random.next() % 30_000));
        return;
    }
    if seed + 1 == seeds {
        drop(batch.wait(served, |batch| !batch["finalizing_at"].is_null()));
        return;
    }
    // One random number in each of equal parts of the duration.
    let part = tokens / (seeds - 1);
    let target = part * (seed - 1) + random.next() % part.max(1);
    let until = Instant::now() + WATCHDOG;
    while generated(served) < target {
        assert!(Instant::now() < until, "{target} tokens are never generated");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a process of the server whose name contains `name`; returns false if there is none.
fn kill(served: &Served, name: &str, random: &mut Random) -> bool {
    let mut victims = processes_of_any(served.id());
    victims.retain(|(_, victim)| victim.contains(name));
    if victims.is_empty() {
        return false;
    }
    let pid = Pid::from_raw(random.pick(&victims).0.cast_signed()).expect("a process id");
    kill_process(pid, Signal::KILL).is_ok()
}

/// Returns the number of seeds.
fn seed_count() -> u64 {
    if runs_all_cases() { SEEDS } else { SAMPLED_SEEDS }
}

/// Kills processes whose name contains `name` while batches are computed.
fn batches_survive(name: &str, server: &Server) {
    let expected = undisturbed(server);
    let (seeds, mut struck) = (seed_count(), 0);
    for seed in 0..seeds {
        let (batch, served) = start(server);
        let mut random = Random(seed);
        let mut killed = 0;
        // A sequence fails with the third loss of workers that affects it.
        for _ in 0..1 + seed % 2 {
            wait_for_time(&batch, &served, seed, seeds, expected.tokens);
            let is_open = batch.get(&served)["completed_at"].is_null();
            killed += u64::from(kill(&served, name, &mut random) && is_open);
        }
        struck += u64::from(killed > 0);
        assert_eq!(batch.results(&served), expected.results, "{name}, seed {seed}");
        let messages = served.end();
        let has_failed = messages.contains("panicked") || messages.contains("the server ends");
        assert!(!has_failed, "{messages}");
        assert_eq!(batch.names().len(), 8, "{name}, seed {seed}: {:?}", batch.names());
    }
    println!("{name}: killed during {struck} of {seeds} batches");
    assert!(struck > seeds / 2, "{name}: killed during {struck} batches only");
}

#[test]
fn a_batch_survives_the_death_of_its_server() {
    let expected = undisturbed(&ON_CPU);
    let (seeds, mut struck) = (seed_count(), 0);
    for seed in 0..seeds {
        let (batch, mut served) = start(&ON_CPU);
        for _ in 0..1 + seed % 2 {
            let remaining = expected.tokens / (1 + seed % 2);
            wait_for_time(&batch, &served, seed, seeds, remaining);
            struck += u64::from(batch.get(&served)["completed_at"].is_null());
            let children: BTreeSet<u32> =
                processes_of_any(served.id()).into_iter().map(|(pid, _)| pid).collect();
            drop(served);
            crate::death::nothing_left(&children);
            served = batch.serve();
        }
        if seed == 0 {
            assert_eq!(expected.results, batch.job_results(&[]));
        }
        assert_eq!(batch.results(&served), expected.results, "seed {seed}");
        served.end();
        assert_eq!(batch.names().len(), 8, "seed {seed}: {:?}", batch.names());
    }
    println!("server: killed {struck} times during {seeds} batches");
    assert!(struck >= seeds, "the server was killed {struck} times only");
}

#[test]
fn a_batch_survives_the_death_of_its_cpu_worker() {
    batches_survive("cpu worker", &ON_CPU);
}

#[test]
fn a_batch_survives_the_death_of_its_gpu_worker() {
    batches_survive("gpu worker", &ON_DEVICE);
}

#[test]
fn a_batch_survives_the_death_of_its_transfer_worker() {
    batches_survive("transfer worker", &ON_DEVICE);
}

#[test]
fn a_batch_survives_the_death_of_a_storage_worker() {
    batches_survive("storage worker", &ON_DRIVES);
}

#[test]
fn a_batch_survives_the_death_of_a_tokenizer() {
    batches_survive("tokenizer", &ON_CPU);
}
