//! Tests of Ctrl-C while a group runs: the run ends soon, finished answers are kept, and the next
//! run computes the rest.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::command::{Place, coordinator, finish, fixture, lines, text};

/// Device with a link so slow that a step takes a tenth of a second or more, and the long answer
/// more than ten seconds.
const DEVICE: [&str; 6] =
    ["--device", "emulated:link=1MB/s", "--split", "scores:norm1", "--batches", "1x4"];
const LONG: u32 = 120;
/// Time limit from the signal to the exit, which takes a second or less; this is only a watchdog.
const WATCHDOG: Duration = Duration::from_secs(30);

#[test]
fn finished_answers_outlive_an_interrupted_group() {
    let place = Place::new();
    let line = |i: u32, max_tokens: u32| {
        let body = json!({"prompt": [5 + i, 9, 11], "max_tokens": max_tokens, "ignore_eos": true});
        let url = "/v1/completions";
        json!({"custom_id": format!("p{i}"), "method": "POST", "url": url, "body": body})
    };
    let input = [line(0, LONG), line(1, 2), line(2, 3), line(3, 2)].map(|line| line.to_string());
    std::fs::write(place.path("in.jsonl"), input.join("\n") + "\nnot json\n").expect("writable");
    let output = place.path("out.jsonl");
    let start = |extra: &[&str]| {
        let mut command = coordinator();
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
        command.arg("--output").arg(&output).args(extra).stderr(Stdio::piped());
        command.spawn().expect("starts")
    };
    let child = start(&DEVICE);
    // Three answers and the error are on disk while the long one runs.
    let until = Instant::now() + Duration::from_secs(60);
    let written = || std::fs::read_to_string(&output).unwrap_or_default();
    while written().lines().count() < 4 {
        assert!(Instant::now() < until, "only {}", written());
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, Signal::INT).expect("it runs");
    let at = Instant::now();
    let done = finish(child);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(at.elapsed() < WATCHDOG, "{:?}: {said}", at.elapsed());
    assert!(said.contains("3 answered, 1 failed (line 5), 1 not run"), "{said}");
    let ids = |lines: &[serde_json::Value]| -> Vec<String> {
        lines.iter().map(|line| line["custom_id"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(ids(&lines(&output))[..3], ["p1", "p2", "p3"], "in input order");
    // Without the slow link, and in other groups.
    let done = finish(start(&["--resume", "--batches", "1x1"]));
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    assert_eq!(ids(&lines(&output))[..4], ["p0", "p1", "p2", "p3"]);
    let resumed = written();
    let done = finish(start(&["--force", "--batches", "1x3"]));
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    assert_eq!(written(), resumed, "as if nothing had happened");
}
