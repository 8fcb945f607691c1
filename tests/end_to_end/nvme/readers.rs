//! Tests of reading drives with restrictions: as an ordinary user, with little lockable memory, and
//! without io_uring.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Drives, Ran, SMALL, strs};
use crate::command::finish;

const ALL: [&str; 2] = ["--nvme-ops", "all"];
/// User and group ID of an unprivileged account on most systems.
const USER: &str = "65534";

/// Runs with the command `before` as a prefix.
fn run_under(drives: &Drives, before: &[&str], arguments: &[&str]) -> Ran {
    let run = drives.run_command(arguments, "");
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(run.get_program()).args(run.get_args());
    command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    drives.ended(command.spawn().expect("starts"))
}

/// Returns true if a command exists and succeeds.
fn works(command: &[&str]) -> bool {
    let mut command_line = Command::new(command[0]);
    command_line.args(&command[1..]).stdin(Stdio::null());
    command_line.stdout(Stdio::null()).stderr(Stdio::null());
    command_line.spawn().is_ok_and(|child| finish(child).status.success())
}

fn open_to_all(path: &Path) {
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(path, mode).expect("the own folder");
}

#[test]
fn an_ordinary_user_reads_drives() {
    let name = "an_ordinary_user_reads_drives";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {name}: whoever runs the tests is one, so all others show it");
        return;
    }
    let drives = Drives::new();
    drives.requests(2, 4);
    let whole = drives.run(SMALL).answers;
    let user = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--"];
    let folder = drives.place.path("");
    let (binary, folder_shown) = (env!("CARGO_BIN_EXE_coordinator"), folder.to_string_lossy());
    open_to_all(&folder);
    for reachable in [&["test", "-x", binary], &["test", "-w", &folder_shown]] {
        if !works(&[&user[..], reachable].concat()) {
            println!("SKIP {name}: setpriv is not there, or the user has no way to {reachable:?}");
            return;
        }
    }
    // Files made by root belong to root: the user must make the stagings, the cache and the answers
    // itself.
    for made in ["cache", "out.jsonl", "report.json"] {
        let path = drives.place.path(made);
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
    }
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &ALL, &strs(&nvme)].concat();
    let ran = run_under(&drives, &user, &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    assert_eq!(ran.answers, whole);
    assert_eq!(ran.hows().len(), 2);
    let unpinned = [&["prlimit", "--memlock=0", "--"], &user[..]].concat();
    if !works(&[&unpinned[..], &["true"]].concat()) {
        println!("SKIP {name}, the part without memory to pin: prlimit is not there");
        return;
    }
    let ran = run_under(&drives, &unpinned, &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    assert_eq!(ran.answers, whole);
    for how in ran.hows() {
        println!("without memory to pin: {how}");
        assert!(!how.contains("registered buffers"), "{how}");
    }
}

#[test]
fn threads_read_the_same() {
    let drives = Drives::new();
    drives.requests(2, 4);
    let whole = drives.run(SMALL).answers;
    let nvme = drives.arguments(2);
    let mut command = drives.run_command(&[SMALL, &ALL, &strs(&nvme)].concat(), "");
    let ran = drives.ended(command.env("TANDEM_NVME_IO", "threads").spawn().expect("starts"));
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    assert_eq!(ran.answers, whole);
    for how in ran.hows() {
        assert!(how.starts_with("pread, "), "{how}");
    }
}
