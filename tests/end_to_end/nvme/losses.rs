//! Tests of a drive that fails while it is read: the other one takes over, the answers are the
//! same, and the run's table reports the loss. Without any drive the run ends and loses no answer.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::{Drives, Ran, SMALL, flip, place_of, strs};
use crate::command::{WATCHDOG, lines};
use crate::death::{control_of, nothing_left, workers_of};

const ALL: [&str; 4] = ["--batches", "2x2", "--nvme-ops", "all"];
/// Numbers of requests and of new tokens, which take hundreds of reads.
const LONG: (u32, u32) = (4, 48);
/// Drives so slow that a run is still in progress when the fault happens.
const SLOW: &str = "rate=60M;rate=60M";
/// Value of the CPU lane's timeline at which the fault happens.
const STRUCK_AT: u32 = 20;

/// Returns the names of the drives that a run has lost.
fn lost(ran: &Ran) -> Vec<&str> {
    let storages = ran.report["storages"].as_object().expect("storages");
    let lost = storages.iter().filter(|(_, storage)| !storage["lost"].is_null());
    lost.map(|(name, _)| name.as_str()).collect()
}

/// Asserts that a run has answered everything without the drive `name`, which was lost for
/// `reason`.
fn went_on(ran: &Ran, whole: &str, name: &str, reason: &str) {
    assert_eq!(ran.code, Some(0), "{name}, {reason}: {}", ran.said);
    assert_eq!(ran.answers, whole, "{name}, {reason}");
    assert_eq!(lost(ran), [name], "{reason}: {}", ran.report["storages"]);
    let line = ran.said.lines().find(|line| line.contains(&format!("{name} was lost: ")));
    let line = line.unwrap_or_else(|| panic!("{reason}: {}", ran.said));
    assert!(line.contains(reason), "{line}");
    assert!(line.contains(" went on with its reads after "), "{line}");
}

#[test]
fn a_drive_with_an_error_is_done_without() {
    let drives = Drives::new();
    drives.requests(LONG.0, LONG.1);
    let whole = drives.run(&[SMALL, &ALL[..2]].concat()).answers;
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &ALL, &strs(&nvme)].concat();
    // Measuring the drives takes fewer requests. `coordinator/tests/storage/lost.rs` has every
    // fault of either drive, silence included.
    let lost = drives.run_with(&arguments, "eio@400;");
    went_on(&lost, &whole, "nvme0", "Input/output error");
    // The missing half of a request is read again.
    let short = drives.run_with(&arguments, "short@400;short@401");
    assert_eq!((short.code, self::lost(&short).len()), (Some(0), 0), "{}", short.said);
    assert_eq!(short.answers, whole);
}

#[test]
fn a_flipped_byte_costs_its_drive() {
    let drives = Drives::new();
    drives.requests(4, 6);
    let whole = drives.run(&[SMALL, &ALL[..2]].concat()).answers;
    drives.staged(2, SMALL);
    let damaged = drives.staging(0);
    // In a layer that is not measured, and in the part that the first drive reads.
    let (offset, _) = place_of(&damaged, "weights.layer1.fc0");
    flip(&damaged.join("weights.bin"), offset + 7);
    let ran = drives.run_from(2, &[SMALL, &ALL].concat());
    went_on(&ran, &whole, "nvme0", "blob weights.layer1.fc0 of");
}

/// Runs until the CPU lane has progressed, then calls `strike` with the process ID of the reader of
/// a drive; returns the outcome.
fn struck(drives: &Drives, drive: usize, strike: impl FnOnce(u32)) -> Ran {
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &ALL, &strs(&nvme)].concat();
    let mut run = drives.run_command(&arguments, SLOW).spawn().expect("starts");
    let begun = Instant::now();
    let mut control = None;
    loop {
        assert!(run.try_wait().expect("a child").is_none(), "it ended before it was struck");
        assert!(begun.elapsed() < WATCHDOG, "nothing is computed");
        control = control.or_else(|| control_of(run.id()));
        let name = format!("storage worker {drive}");
        let reader = workers_of(run.id()).into_iter().find(|(_, other)| other.contains(&name));
        if let (Some((reader, _)), Some(control)) = (reader, &control)
            && control.lane(0).timeline.value() >= STRUCK_AT
        {
            strike(reader);
            break;
        }
        std::thread::yield_now();
    }
    let pids = workers_of(run.id()).into_iter().map(|(pid, _)| pid).collect();
    let ran = drives.ended(run);
    nothing_left(&pids);
    ran
}

#[test]
fn a_killed_reader_is_replaced() {
    let drives = Drives::new();
    drives.requests(4, 8);
    let whole = drives.run(&[SMALL, &ALL[..2]].concat()).answers;
    for (drive, name) in [(1, "nvme1"), (0, "nvme0")] {
        let ran = struck(&drives, drive, |reader| {
            let reader = Pid::from_raw(reader.cast_signed()).expect("a process id");
            kill_process(reader, Signal::KILL).expect("it is there");
        });
        went_on(&ran, &whole, name, "signal 9");
    }
}

#[test]
fn a_file_that_is_cut_costs_its_drive() {
    let drives = Drives::new();
    drives.requests(4, 8);
    let whole = drives.run(&[SMALL, &ALL[..2]].concat()).answers;
    drives.staged(2, SMALL);
    let path = drives.staging(0).join("weights.bin");
    let ran = struck(&drives, 0, |_| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
        file.set_len(1 << 20).expect("writable");
    });
    went_on(&ran, &whole, "nvme0", "the file was cut");
    // The next run is refused with advice before it computes anything.
    let next = drives.run_with(&[SMALL, &ALL, &strs(&drives.arguments(2))].concat(), "");
    assert_eq!(next.code, Some(1), "{}", next.said);
    assert!(next.said.contains("remove the staging and stage again"), "{}", next.said);
}

#[test]
fn without_any_drive_finished_answers_are_kept() {
    let drives = Drives::new();
    drives.requests(12, 12);
    let batches = ["--batches", "1x2", "--nvme-ops", "all"];
    let whole = drives.run(&[SMALL, &batches[..2]].concat()).answers;
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &batches, &strs(&nvme)].concat();
    let ran = drives.run_with(&arguments, "eio@400;eio@700");
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    println!("{}", ran.said);
    assert!(ran.said.contains("Input/output error"), "{}", ran.said);
    let kept = lines(&drives.place.path("out.jsonl")).len();
    println!("{kept} answers were kept");
    assert!((2..12).contains(&kept), "{kept} answers");
    assert!(whole.starts_with(&ran.answers), "what was finished is as it should be");
    let resumed = drives.run(&[&arguments[..], &["--resume"]].concat());
    assert_eq!(resumed.answers, whole);
}
