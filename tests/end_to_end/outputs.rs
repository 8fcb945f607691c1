//! Tests that answers on disk survive whatever happens to a run or to its output, with real
//! processes and real kills.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::command::{Place, coordinator, finish, fixture, lines, text};

/// Device with a link so slow that a long answer takes more than ten seconds.
const SLOW: [&str; 6] =
    ["--device", "emulated:link=1MB/s", "--split", "scores:norm1", "--batches", "1x4"];
/// Time limit of any wait.
const WATCHDOG: Duration = Duration::from_secs(60);

fn command(place: &Place, output: &Path, extra: &[&str]) -> Command {
    let mut command = coordinator();
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(output).args(extra).stderr(Stdio::piped());
    command
}

fn start(place: &Place, extra: &[&str]) -> Child {
    command(place, &place.path("out.jsonl"), extra).spawn().expect("starts")
}

/// Writes requests with these numbers of new tokens.
fn requests(place: &Place, lengths: &[u32]) {
    let line = |(i, length): (usize, &u32)| {
        let body = json!({"custom_id": format!("p{i}"), "prompt": [5 + i, 9, 11],
            "max_tokens": length, "ignore_eos": true});
        body.to_string() + "\n"
    };
    let input: String = lengths.iter().enumerate().map(line).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
}

/// Waits until `count` answers are on disk.
fn wait_for(path: &Path, count: usize) {
    let until = Instant::now() + WATCHDOG;
    let written = || std::fs::read_to_string(path).unwrap_or_default();
    while written().lines().count() < count {
        assert!(Instant::now() < until, "only {}", written());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, signal).expect("it runs");
}

#[test]
fn a_resume_that_asks_for_something_else_changes_nothing() {
    let place = Place::new();
    let prompts: String = (0..8).map(|i| format!("{{\"prompt\": [5, 6, {}]}}\n", 7 + i)).collect();
    std::fs::write(place.path("in.jsonl"), &prompts).expect("writable");
    assert!(finish(start(&place, &[])).status.success());
    let output = place.path("out.jsonl");
    let before = std::fs::read(&output).expect("answers");
    let refused = |extra: &[&str]| {
        let child = start(&place, extra);
        std::thread::sleep(Duration::from_millis(300));
        let _ = kill_process(Pid::from_raw(child.id().cast_signed()).expect("an id"), Signal::INT);
        let done = finish(child);
        let said = text(&done.stderr);
        assert!(!done.status.success(), "{extra:?}: {said}");
        assert_eq!(std::fs::read(&output).expect("answers"), before, "{extra:?}: {said}");
        said
    };
    refused(&["--resume", "--max-tokens", "40"]);
    std::fs::write(place.path("in.jsonl"), "{\"prompt\": [1, 2]}\n").expect("writable");
    refused(&["--resume"]);
    let done = finish(start(&place, &["--resume"]));
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("only 0 of its 8 answers match the input"), "{said}");
    assert!(said.contains("--force"), "{said}");
    // An inserted line does not affect the answers to the others.
    let inserted = format!("{{\"prompt\": [1, 2]}}\n{prompts}");
    std::fs::write(place.path("in.jsonl"), inserted).expect("writable");
    let done = finish(start(&place, &["--resume"]));
    let said = text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("8 answers kept, 1 remaining"), "{said}");
    let after = std::fs::read(&output).expect("answers");
    assert!(after.ends_with(&before), "{}", text(&after));
}

#[test]
fn a_killed_coordinator_leaves_what_was_finished() {
    let place = Place::new();
    requests(&place, &[120, 2, 3, 2]);
    let output = place.path("out.jsonl");
    let mut kept_in_all = 0;
    for kill_after in [1, 3] {
        let _ = std::fs::remove_file(&output);
        let mut child = start(&place, &SLOW);
        wait_for(&output, kill_after);
        signal(&child, Signal::KILL);
        child.wait().expect("a child");
        let kept = lines(&output);
        assert!(kept.len() >= kill_after, "{} of {kill_after}", kept.len());
        assert!(kept.iter().all(|line| line["response"]["status_code"] == 200), "{kept:?}");
        kept_in_all += kept.len();
        let done = finish(start(&place, &["--resume"]));
        let said = text(&done.stderr);
        assert!(done.status.success(), "{said}");
        assert!(said.contains(&format!("{} answers kept", kept.len())), "{said}");
        let all = lines(&output);
        assert_eq!(all.len(), 4);
        // Answers that were on disk are kept byte for byte.
        assert!(kept.iter().all(|line| all.contains(line)));
    }
    assert!(kept_in_all >= 4);
}

#[test]
fn choices_of_a_killed_or_interrupted_request_are_kept() {
    let place = Place::new();
    let prompts: Vec<[u32; 3]> = (0..5).map(|i| [5 + i, 9, 11]).collect();
    let body = json!({"custom_id": "many", "prompt": prompts, "max_tokens": 100,
        "ignore_eos": true});
    std::fs::write(place.path("in.jsonl"), format!("{body}\n")).expect("writable");
    let slow = [&SLOW[..4], &["--batches", "1x1"]].concat();
    let output = place.path("out.jsonl");
    let undisturbed = finish(start(&place, &[]));
    assert!(undisturbed.status.success());
    let whole = lines(&output);
    for stop in [Signal::KILL, Signal::INT] {
        let _ = std::fs::remove_file(&output);
        let mut child = start(&place, &slow);
        wait_for(&output, 1);
        signal(&child, stop);
        child.wait().expect("a child");
        let kept = lines(&output);
        let choices = |line: &serde_json::Value| {
            assert_eq!(line["error"]["code"], "unfinished", "{line}");
            line["error"]["made"]["choices"].as_array().map_or(0, Vec::len)
        };
        let made: usize = kept.iter().map(choices).sum();
        assert!((1..5).contains(&made), "{made} of 5: {kept:?}");
        let done = finish(start(&place, &["--resume"]));
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_eq!(lines(&output), whole);
    }
}

#[test]
fn of_two_runs_with_one_new_output_one_is_refused_and_no_answer_is_lost() {
    for round in 0..6 {
        let place = Place::new();
        requests(&place, &[3, 3, 3, 3]);
        let runs = [start(&place, &[]), start(&place, &[])].map(finish);
        let ended: Vec<Option<i32>> = runs.iter().map(|run| run.status.code()).collect();
        let said = runs.iter().map(|run| text(&run.stderr)).collect::<String>();
        assert_eq!(ended.iter().filter(|code| **code == Some(0)).count(), 1, "{round}: {said}");
        assert!(said.contains("in use by another run") || said.contains("exists"), "{said}");
        assert_eq!(lines(&place.path("out.jsonl")).len(), 4, "{round}: {said}");
    }
}

#[test]
fn an_output_that_is_removed_or_moved_meanwhile_is_not_lost() {
    let place = Place::new();
    requests(&place, &[120, 2, 3, 2]);
    let (output, moved) = (place.path("out.jsonl"), place.path("moved.jsonl"));
    let child = start(&place, &SLOW);
    wait_for(&output, 3);
    std::fs::remove_file(&output).expect("it is there");
    let done = finish(child);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let ids: Vec<String> =
        lines(&output).iter().map(|line| line["custom_id"].to_string()).collect();
    assert_eq!(ids, ["\"p0\"", "\"p1\"", "\"p2\"", "\"p3\""], "in input order");
    std::fs::remove_file(&output).expect("it is there");
    let child = start(&place, &SLOW);
    wait_for(&output, 3);
    std::fs::rename(&output, &moved).expect("it is there");
    let done = finish(child);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("moved.jsonl"), "{said}");
    assert_eq!(lines(&moved).len(), 4);
}

#[test]
fn reports_and_traces_overwrite_neither_input_nor_output() {
    let place = Place::new();
    requests(&place, &[2, 2]);
    let input = std::fs::read(place.path("in.jsonl")).expect("the input");
    let [input_path, output_path] =
        ["in.jsonl", "./out.jsonl"].map(|name| place.path(name).display().to_string());
    for (flag, path, other) in [
        ("--report", &input_path, "--input"),
        ("--trace", &input_path, "--input"),
        ("--report", &output_path, "--output"),
        ("--trace", &output_path, "--output"),
    ] {
        let done = finish(start(&place, &[flag, path]));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{flag} {path}: {said}");
        assert!(said.contains(flag) && said.contains(other), "{said}");
        assert_eq!(std::fs::read(place.path("in.jsonl")).expect("the input"), input);
        assert!(!place.path("out.jsonl").exists());
    }
    // A device cannot be overwritten.
    let done = finish(start(&place, &["--report", "/dev/null", "--trace", "/dev/null", "--force"]));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let same = place.path("both.json").display().to_string();
    let done = finish(start(&place, &["--report", &same, "--trace", &same]));
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
}

#[test]
fn a_limit_on_file_sizes_and_a_hang_up_end_in_a_sentence() {
    let place = Place::new();
    requests(&place, &[40; 12]);
    let script = "ulimit -f 1; exec \"$0\" \"$@\"";
    let plain = command(&place, &place.path("out.jsonl"), &[]);
    let mut limited = Command::new("sh");
    limited.args(["-c", script]).arg(plain.get_program()).args(plain.get_args());
    limited.stdin(Stdio::null()).stderr(Stdio::piped());
    let done = finish(limited.spawn().expect("starts"));
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{:?}: {said}", done.status);
    assert!(said.contains("File too large"), "{said}");

    requests(&place, &[120, 2, 3, 2]);
    let child = start(&place, &[&SLOW[..], &["--force"]].concat());
    wait_for(&place.path("out.jsonl"), 3);
    signal(&child, Signal::HUP);
    let done = finish(child);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("3 answered, 0 failed, 1 not run"), "{said}");
    let ids: Vec<String> = lines(&place.path("out.jsonl"))
        .iter()
        .map(|line| line["custom_id"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(ids, ["p1", "p2", "p3"], "in input order");
}

/// With a limit on threads and processes a run ends with a sentence, never with a panic, or
/// succeeds.
#[test]
fn a_limit_on_processes_ends_in_a_sentence() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a limit on processes: only root can run as a user who has no others");
        return;
    }
    let place = Place::new();
    requests(&place, &[2, 2]);
    let folder = place.path("");
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("ours");
    let mut ended = [0, 0];
    for limit in 1..10 {
        let output = place.path(&format!("{limit}.jsonl"));
        let plain = command(&place, &output, &["--device", "none"]);
        // Debian's sh does not support this limit.
        let mut limited = Command::new("bash");
        limited.args(["-c", &format!("ulimit -u {limit}; exec \"$0\" \"$@\"")]);
        limited.arg(plain.get_program()).args(plain.get_args()).uid(65534);
        limited.env("XDG_CACHE_HOME", &folder).stdin(Stdio::null()).stderr(Stdio::piped());
        let done = finish(limited.spawn().expect("starts"));
        let said = text(&done.stderr);
        if done.status.code() == Some(126) {
            println!(
                "SKIP a limit on processes: other users may not run {:?}",
                plain.get_program()
            );
            return;
        }
        assert!(matches!(done.status.code(), Some(0 | 1)), "{limit}: {:?}: {said}", done.status);
        assert!(!said.contains("panicked") && !said.is_empty(), "{limit}: {said}");
        ended[usize::from(done.status.success())] += 1;
    }
    assert!(ended[0] > 0 && ended[1] > 0, "refused and answered: {ended:?}");
}

#[test]
fn a_report_goes_to_stdout_where_nothing_else_does() {
    let place = Place::new();
    requests(&place, &[2, 2]);
    let mut child = command(&place, &place.path("out.jsonl"), &["--report", "-"]);
    let done = finish(child.stdout(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("only the report");
    assert!(report["lanes"].is_object(), "{report}");
    let mut child = command(&place, Path::new("-"), &["--report", "-"]);
    let done = finish(child.stdout(Stdio::piped()).spawn().expect("starts"));
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    assert!(!Path::new("-").exists());
}

#[test]
fn a_benchmark_says_that_it_does_not_read_stdin() {
    let place = Place::new();
    requests(&place, &[2]);
    let said = |stdin: Stdio| {
        let mut benchmark = coordinator();
        benchmark.arg("--model").arg(fixture("llama")).args([
            "--prompt-len",
            "3",
            "--gen-len",
            "2",
        ]);
        benchmark.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped());
        let done = finish(benchmark.spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr)
    };
    let input = std::fs::File::open(place.path("in.jsonl")).expect("requests");
    assert!(said(input.into()).contains("stdin is not read without `--input -`"));
    assert!(!said(Stdio::null()).contains("stdin is not read"));
}
