//! A reader that closes its end. The test binary runs itself again, with an environment variable
//! that marks the child.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, getpid, kill_process};

use crate::error::JobError;
use crate::sink::{IoTarget, OutputMode, OutputSink};

const CHILD: &str = "COORDINATOR_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn child(test: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("tests::process::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_reader_that_goes_away_is_a_broken_pipe() {
    if is_child() {
        // The harness has written its first lines. From the end of stdin on, stdout has no reader.
        eprintln!("ready");
        std::io::stdin().lines().for_each(drop);
        let (mut sink, _) = OutputSink::open(&IoTarget::Standard, OutputMode::New, None).unwrap();
        let error = (0..100).find_map(|_| sink.append(&[b'x'; 65536]).err());
        assert!(matches!(error, Some(JobError::BrokenPipe)), "{error:?}");
        eprintln!("broken");
        // The harness would also write to that pipe.
        return kill_process(getpid(), Signal::KILL).unwrap();
    }
    let mut child = child("a_reader_that_goes_away_is_a_broken_pipe");
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"));
    drop(child.stdout.take());
    drop(child.stdin.take());
    assert!(lines.any(|line| line == "broken"));
    child.wait().unwrap();
}
