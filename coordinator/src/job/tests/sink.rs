//! Outputs that cannot be written, and disks that fill up.

use std::path::PathBuf;
use std::process::Command;

use crate::job::error::JobError;
use crate::job::sink::{OutputMode, Place, Sink};

use super::fake::{Desk, Echo};

const INPUT: &[u8] = b"{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n";

fn to(path: PathBuf) -> JobError {
    let mut desk = Desk::new(INPUT);
    desk.options.output = Place::File(path);
    desk.run(&mut Echo::new(1)).unwrap_err()
}

#[test]
fn an_output_that_cannot_be_opened() {
    let error = to("/nonexistent/folder/out.jsonl".into());
    assert!(matches!(error, JobError::OutputOpen { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/folder/out.jsonl"), "{error}");
    let mut desk = Desk::new(INPUT);
    desk.options.output = Place::File(desk.path(""));
    desk.options.mode = OutputMode::Overwrite;
    let error = desk.run(&mut Echo::new(1)).unwrap_err();
    assert!(matches!(error, JobError::OutputFolder { .. }), "{error}");
}

#[test]
fn the_input_as_output_is_refused() {
    let mut desk = Desk::new(INPUT);
    desk.options.output = desk.options.input.clone();
    desk.options.mode = OutputMode::Overwrite;
    let error = desk.run(&mut Echo::new(1)).unwrap_err();
    assert!(matches!(error, JobError::SameFile { .. }), "{error}");
    assert_eq!(std::fs::read(desk.path("in.jsonl")).unwrap(), INPUT);
}

#[test]
fn an_input_that_is_not_there() {
    let mut desk = Desk::new(INPUT);
    desk.options.input = Place::File("/nonexistent/in.jsonl".into());
    let error = desk.run(&mut Echo::new(1)).unwrap_err();
    assert!(matches!(error, JobError::Input { .. }), "{error}");
    assert_eq!(desk.names(), ["in.jsonl"], "no output was made");
}

#[test]
fn two_runs_into_one_output() {
    let mut desk = Desk::new(INPUT);
    desk.options.mode = OutputMode::Resume;
    let first = desk.prepare().unwrap();
    let error = desk.prepare().unwrap_err();
    assert!(matches!(error, JobError::OutputBusy { .. }), "{error}");
    drop(first);
    assert!(desk.run(&mut Echo::new(1)).is_ok());
}

#[test]
fn devices_are_streams() {
    let error = to("/dev/full".into());
    assert!(matches!(error, JobError::StreamWrite { .. }), "{error}");
    assert!(error.to_string().contains("/dev/full"), "{error}");
    let mut desk = Desk::new(INPUT);
    desk.options.output = Place::File("/dev/null".into());
    assert_eq!(desk.run(&mut Echo::new(1)).unwrap().answered, 2);
    desk.options.mode = OutputMode::Resume;
    let error = desk.run(&mut Echo::new(1)).unwrap_err();
    assert!(matches!(error, JobError::ResumeStream { .. }), "{error}");
}

#[test]
fn a_symbolic_link_stays_one() {
    let mut desk = Desk::new(INPUT);
    let (link, target) = (desk.path("link"), desk.path("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    std::fs::write(&target, "").unwrap();
    desk.options.output = Place::File(link.clone());
    desk.options.mode = OutputMode::Overwrite;
    desk.run(&mut Echo::new(1)).unwrap();
    let whole = desk.output();
    let last = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&target, &whole[last..]).unwrap();
    desk.options.mode = OutputMode::Resume;
    desk.run(&mut Echo::new(1)).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(target).unwrap(), whole);
}

/// Names the file that the child process of the next test writes.
const CHILD: &str = "COORDINATOR_TEST_FULL_DISK";

/// A limit on file sizes stands for a full disk: the write that crosses it comes back short, and
/// then fails.
#[test]
fn a_full_disk_keeps_whole_groups() {
    if let Ok(path) = std::env::var(CHILD) {
        let (mut sink, _) = Sink::open(&Place::File(path.into()), OutputMode::New, None).unwrap();
        let group = [&[b'x'; 299][..], b"\n"].concat();
        let mut written = 0;
        let error = loop {
            match sink.append(&group) {
                Ok(range) => written = range.end,
                Err(error) => break error,
            }
        };
        println!("{written} then {error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    // The shell ignores the signal that would otherwise end the child at the limit.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact \"$1\" --nocapture";
    let name = "job::tests::sink::a_full_disk_keeps_whole_groups";
    let child = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{said}");
    let line = said.lines().find(|line| line.contains(" then ")).expect("the child's line");
    let written: usize =
        line.split(" then ").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(written > 0 && line.contains("--resume"), "{line}");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), written, "the torn group was taken back");
    assert!(bytes.ends_with(b"\n"));
}
