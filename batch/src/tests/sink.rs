//! Tests of outputs that cannot be written, and of full disks.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use shm::sync::AtomicBool;

use crate::error::JobError;
use crate::sink::{IoTarget, OutputMode, OutputSink};

use super::fake::{EchoEngine, TestJob};

const INPUT: &[u8] = b"{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n";

fn to(path: PathBuf) -> JobError {
    let mut test_job = TestJob::new(INPUT);
    test_job.options.output = IoTarget::File(path);
    test_job.run(&mut EchoEngine::new(1)).unwrap_err()
}

#[test]
fn an_output_that_cannot_be_opened() {
    let error = to("/nonexistent/folder/out.jsonl".into());
    assert!(matches!(error, JobError::OutputOpen { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/folder/out.jsonl"), "{error}");
    let mut test_job = TestJob::new(INPUT);
    test_job.options.output = IoTarget::File(test_job.path(""));
    test_job.options.mode = OutputMode::Overwrite;
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::OutputDirectory { .. }), "{error}");
}

#[test]
fn the_input_as_output_is_refused() {
    let mut test_job = TestJob::new(INPUT);
    test_job.options.output = test_job.options.input.clone();
    test_job.options.mode = OutputMode::Overwrite;
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::SameFile { .. }), "{error}");
    assert_eq!(std::fs::read(test_job.path("in.jsonl")).unwrap(), INPUT);
}

#[test]
fn an_input_that_is_not_there() {
    let mut test_job = TestJob::new(INPUT);
    test_job.options.input = IoTarget::File("/nonexistent/in.jsonl".into());
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::Input { .. }), "{error}");
    assert_eq!(test_job.names(), ["in.jsonl"], "no output was made");
}

#[test]
fn two_runs_into_one_output() {
    let mut test_job = TestJob::new(INPUT);
    test_job.options.mode = OutputMode::Resume;
    let first = test_job.prepare().unwrap();
    let error = test_job.prepare().unwrap_err();
    assert!(matches!(error, JobError::OutputBusy { .. }), "{error}");
    drop(first);
    assert!(test_job.run(&mut EchoEngine::new(1)).is_ok());
}

#[test]
fn devices_are_streams() {
    let error = to("/dev/full".into());
    assert!(matches!(error, JobError::StreamWrite { .. }), "{error}");
    assert!(error.to_string().contains("/dev/full"), "{error}");
    let mut test_job = TestJob::new(INPUT);
    test_job.options.output = IoTarget::File("/dev/null".into());
    assert_eq!(test_job.run(&mut EchoEngine::new(1)).unwrap().answered, 2);
    test_job.options.mode = OutputMode::Resume;
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::ResumeStream { .. }), "{error}");
}

#[test]
fn a_symbolic_link_stays_one() {
    let mut test_job = TestJob::new(INPUT);
    let (link, target) = (test_job.path("link"), test_job.path("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    std::fs::write(&target, "").unwrap();
    test_job.options.output = IoTarget::File(link.clone());
    test_job.options.mode = OutputMode::Overwrite;
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    let whole = test_job.output();
    let last = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&target, &whole[last..]).unwrap();
    test_job.options.mode = OutputMode::Resume;
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(target).unwrap(), whole);
}

#[test]
fn a_link_where_lines_are_put_in_order_is_refused_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (path, settling) = (at("out.jsonl"), at(".out.jsonl.settling"));
    std::fs::write(at("victim"), "mine").unwrap();
    let refused = |error: JobError| {
        assert!(matches!(error, JobError::ForeignTempFile { .. }), "{error}");
        assert!(error.to_string().contains("/.out.jsonl.settling is a link"), "{error}");
    };
    for target in ["victim", "nowhere"] {
        std::os::unix::fs::symlink(target, &settling).unwrap();
        // The link is reported before anything is computed, and no output is left.
        refused(
            OutputSink::open(&IoTarget::File(path.clone()), OutputMode::New, None).unwrap_err(),
        );
        assert!(!path.exists() && settling.is_symlink());
        std::fs::remove_file(&settling).unwrap();
        // A link that appears later is reported at the end: the answers stay as they were appended.
        let mut sink = sink(&path, OutputMode::New);
        let lines = write_out_of_order(&mut sink);
        std::os::unix::fs::symlink(target, &settling).unwrap();
        refused(sink.finalize(&lines, true).unwrap_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"two\none\n");
        std::fs::remove_file(&settling).unwrap();
        std::fs::create_dir(&settling).unwrap();
        refused(sink.finalize(&lines, true).unwrap_err());
        std::fs::remove_dir(&settling).unwrap();
        // The temporary file of a killed run is replaced, readable or not.
        std::fs::write(&settling, "half").unwrap();
        std::fs::set_permissions(&settling, PermissionsExt::from_mode(0o000)).unwrap();
        sink.finalize(&lines, true).unwrap();
        assert!(!path.is_symlink() && !settling.exists());
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
        drop(sink);
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(std::fs::read(at("victim")).unwrap(), b"mine");
    assert!(!at("nowhere").exists());
}

#[test]
fn an_output_in_order_has_the_permissions_that_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let mut sink = sink(&path, OutputMode::New);
    let lines = write_out_of_order(&mut sink);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    sink.finalize(&lines, true).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

/// Environment variable that names the file that the child process of the next test writes.
const CHILD: &str = "COORDINATOR_TEST_FULL_DISK";

/// Uses a limit on the file size in place of a full disk: the write that crosses it is short, and
/// then fails.
#[test]
fn a_full_disk_keeps_whole_groups() {
    if let Ok(path) = std::env::var(CHILD) {
        // With the handler installed, the signal at the limit does not end the process, and the
        // write fails.
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag).unwrap();
        let (mut sink, _) =
            OutputSink::open(&IoTarget::File(path.into()), OutputMode::New, None).unwrap();
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
    let script = "ulimit -f 1; exec \"$0\" --exact \"$1\" --nocapture";
    let name = "tests::sink::a_full_disk_keeps_whole_groups";
    let child = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, &path)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{stdout}");
    let line = stdout.lines().find(|line| line.contains(" then ")).expect("the child's line");
    let written: usize =
        line.split(" then ").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(written > 0 && line.contains("--resume"), "{line}");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), written, "the torn group was taken back");
    assert!(bytes.ends_with(b"\n"));
}

fn sink(path: &std::path::Path, mode: OutputMode) -> OutputSink {
    OutputSink::open(&IoTarget::File(path.to_owned()), mode, None).unwrap().0
}

/// Appends two lines out of order; returns their positions in order.
fn write_out_of_order(sink: &mut OutputSink) -> Vec<std::ops::Range<u64>> {
    let second = sink.append(b"two\n").unwrap();
    let first = sink.append(b"one\n").unwrap();
    vec![first, second]
}

#[test]
fn an_output_that_is_moved_is_followed_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let (path, moved) = (folder.path().join("out.jsonl"), folder.path().join("moved.jsonl"));
    let mut sink = sink(&path, OutputMode::New);
    let lines = write_out_of_order(&mut sink);
    std::fs::rename(&path, &moved).unwrap();
    let error = sink.finalize(&lines, true).unwrap_err();
    assert!(matches!(&error, JobError::OutputMoved { now, .. } if now.ends_with("moved.jsonl")));
    assert_eq!(std::fs::read(&moved).unwrap(), b"one\ntwo\n");
    assert!(!path.exists());
}

#[test]
fn an_output_that_is_removed_is_made_again() {
    for append_after in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let path = inner.join("out.jsonl");
        let mut sink = sink(&path, OutputMode::New);
        let mut lines = write_out_of_order(&mut sink);
        std::fs::remove_dir_all(&inner).unwrap();
        if append_after {
            lines.push(sink.append(b"three\n").unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), b"two\none\nthree\n", "at once");
        }
        sink.finalize(&lines, true).unwrap();
        let expected = if append_after { &b"one\ntwo\nthree\n"[..] } else { b"one\ntwo\n" };
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }
}

#[test]
fn another_file_in_the_place_of_the_output_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let mut sink = sink(&path, OutputMode::New);
    let lines = write_out_of_order(&mut sink);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "of somebody else").unwrap();
    let error = sink.finalize(&lines, true).unwrap_err();
    assert!(error.to_string().contains("out.jsonl.kept"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"of somebody else");
    assert_eq!(std::fs::read(folder.path().join("out.jsonl.kept")).unwrap(), b"one\ntwo\n");
}

#[test]
fn the_file_that_is_locked_is_the_one_at_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let place = IoTarget::File(path.clone());
    let mut first = sink(&path, OutputMode::New);
    let lines = write_out_of_order(&mut first);
    first.finalize(&lines, true).unwrap();
    // A rename has put another file at the path, which is locked, too.
    let busy = OutputSink::open(&place, OutputMode::Resume, None).unwrap_err();
    assert!(matches!(busy, JobError::OutputBusy { .. }), "{busy}");
    // If the file goes away while another run waits for its lock, that run opens the file that
    // replaced it.
    let waiting = std::thread::spawn({
        let place = place.clone();
        move || OutputSink::open(&place, OutputMode::Resume, None).map(|(_, existing)| existing)
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::fs::write(folder.path().join("new"), "three\n").unwrap();
    std::fs::rename(folder.path().join("new"), &path).unwrap();
    drop(first);
    assert_eq!(waiting.join().unwrap().unwrap(), b"three\n");
}

#[test]
fn an_empty_output_is_as_good_as_none() {
    let mut test_job = TestJob::new(INPUT);
    std::fs::write(test_job.output_path(), "").unwrap();
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.lines().len(), 2);
    test_job.options.mode = OutputMode::New;
    assert!(matches!(test_job.run(&mut EchoEngine::new(2)), Err(JobError::OutputExists { .. })));
}

#[test]
fn the_longest_name_that_a_file_can_have() {
    let mut test_job = TestJob::new(INPUT);
    test_job.options.output = IoTarget::File(test_job.path(&"x".repeat(255)));
    test_job.options.mode = OutputMode::Resume;
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    // Lines out of order make the job write a temporary file.
    let whole = test_job.output();
    let cut = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(test_job.output_path(), &whole[cut..]).unwrap();
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.output(), whole);
}
