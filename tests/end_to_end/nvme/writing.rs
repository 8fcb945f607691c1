//! Tests of staging that ends early: killed, concurrent with another one, without space.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Drives, SMALL, WHOLE};
use crate::command::{WATCHDOG, finish, text};

/// Number of blobs on the drive, out of 72, when the stager is stopped.
const BLOBS: usize = 6;

/// Returns the journal of a staging in progress.
fn journal(drives: &Drives) -> Option<PathBuf> {
    let partial = drives.stagings(0);
    partial.first().map(|partial| partial.join("journal")).filter(|path| path.is_file())
}

/// Returns the number of blobs that are durable on the drive.
fn done(drives: &Drives) -> usize {
    let journal = journal(drives).and_then(|path| std::fs::read_to_string(path).ok());
    journal.map_or(0, |journal| journal.lines().count().saturating_sub(1))
}

/// Starts a stager and stops it by a signal after [`BLOBS`] blobs.
fn stopped_stager(drives: &Drives) -> Child {
    let mut child = drives.stage_command(1, WHOLE).spawn().expect("starts");
    let begun = Instant::now();
    while done(drives) < BLOBS {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it was seen");
        assert!(begun.elapsed() < WATCHDOG, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, Signal::STOP).expect("it is there");
    child
}

#[test]
fn a_killed_stager_loses_nothing_that_was_on_the_drive() {
    let drives = Drives::new();
    let mut child = stopped_stager(&drives);
    let path = drives.staging(0);
    assert!(path.to_string_lossy().ends_with(".partial"), "{path:?}");
    assert!(drives.staged(1, &["--status"]).contains("being written"));

    let second = drives.stage(1, WHOLE);
    assert_eq!(second.status.code(), Some(1));
    let said = text(&second.stderr);
    assert!(said.contains("another process is staging into"), "{said}");

    let kept = done(&drives);
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert!((BLOBS..72).contains(&kept), "{kept} blobs");
    let status = drives.staged(1, &["--status"]);
    assert!(status.contains("`coordinator stage` resumes it"), "{status}");
    let verify = [WHOLE, &["--verify"]].concat();
    let unfinished = drives.stage(1, &verify);
    assert_eq!(unfinished.status.code(), Some(2));
    assert!(text(&unfinished.stderr).contains("is incomplete"), "{}", text(&unfinished.stderr));

    let said = drives.staged(1, WHOLE);
    assert!(said.contains("resuming after 0."), "{said}");
    assert!(said.contains("of 0.16 GiB"), "{said}");
    assert!(drives.staged(1, &verify).contains("is intact"));
}

/// Runs `stage` with a limit on file sizes, in blocks of 512 bytes.
fn stage_under(drives: &Drives, blocks: u32) -> Output {
    let stage = drives.stage_command(1, SMALL);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -f {blocks} && exec \"$0\" \"$@\""));
    shell.arg(stage.get_program()).args(stage.get_args());
    shell.envs(stage.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(shell.spawn().expect("a shell"))
}

#[test]
fn a_full_drive_is_told_and_staging_goes_on_once_there_is_space() {
    let drives = Drives::new();
    let full = stage_under(&drives, 16 << 11);
    let said = text(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{said}");
    assert!(said.contains("weights.bin cannot grow"), "{said}");
    assert!(said.contains("stage again; data already written is kept"), "{said}");
    assert!(drives.staging(0).to_string_lossy().ends_with(".partial"));
    assert!(drives.staged(1, SMALL).contains("resuming after 0.00"));
    assert!(drives.staged(1, &[SMALL, &["--verify"]].concat()).contains("is intact"));
}
