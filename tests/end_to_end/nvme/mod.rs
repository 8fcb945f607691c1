//! Tests of weights on drives with the real binary: written by `stage`, read by runs, with the
//! answers of the same run from memory, even if a drive fails during the run.

mod balance;
pub mod direct;
mod losses;
mod memory;
mod readers;
mod runs;
mod stagings;
mod writing;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, text};

/// A small model of random weights, whose larger weights are worth dividing among drives.
const SMALL: &[&str] = &["--model", "opt-125m", "--dummy-weights", "--layers", "2"];
/// [`SMALL`] with all layers of the model.
const WHOLE: &[&str] = &["--model", "opt-125m", "--dummy-weights"];

/// Returns the arguments for a fixture.
fn model(name: &str) -> Vec<String> {
    vec!["--model".to_owned(), fixture(name).display().to_string()]
}

/// Directories in place of drives, and all other files of a test.
struct Drives {
    place: Place,
}

/// Outcome of a run.
struct Ran {
    code: Option<i32>,
    said: String,
    answers: String,
    /// `Null` if none was written.
    report: Value,
}

impl Ran {
    /// Returns the bytes read from each drive in total.
    fn read_bytes(&self) -> Vec<u64> {
        self.of_storages("read_bytes")
    }

    /// Returns the bytes read from each drive in a decode step.
    fn step_bytes(&self) -> Vec<u64> {
        self.of_storages("step_bytes")
    }

    /// Returns the way in which each drive was read.
    fn hows(&self) -> Vec<String> {
        let storages = self.report["storages"].as_object().expect("storages");
        let how = |storage: &Value| storage["how"].as_str().expect("words").to_owned();
        storages.values().map(how).collect()
    }

    fn of_storages(&self, field: &str) -> Vec<u64> {
        let storages = self.report["storages"].as_object();
        let bytes = |storage: &Value| storage[field].as_u64().expect("bytes");
        storages.map(|all| all.values().map(bytes).collect()).unwrap_or_default()
    }
}

impl Drives {
    fn new() -> Drives {
        Drives { place: Place::on_drive() }
    }

    fn directory(&self, drive: usize) -> PathBuf {
        self.place.path(&format!("d{drive}"))
    }

    /// Returns the arguments for the first `count` drives.
    fn arguments(&self, count: usize) -> Vec<String> {
        let of = |drive| ["--nvme".to_owned(), self.directory(drive).display().to_string()];
        (0..count).flat_map(of).collect()
    }

    /// Returns the stagings of a drive.
    fn stagings(&self, drive: usize) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory(drive)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// Returns the only staging of a drive.
    fn staging(&self, drive: usize) -> PathBuf {
        let paths = self.stagings(drive);
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths[0].clone()
    }

    /// Returns a command for the binary with its own cache.
    fn command(&self) -> Command {
        let mut command = coordinator();
        command.env("XDG_CACHE_HOME", self.place.path("cache"));
        command.env_remove("TANDEM_NVME_FAULTS").env_remove("TANDEM_NVME_IO");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns a `stage` command for the first `drives`.
    fn stage_command(&self, drives: usize, arguments: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("stage").args(self.arguments(drives)).args(arguments);
        command
    }

    fn stage(&self, drives: usize, arguments: &[&str]) -> Output {
        finish(self.stage_command(drives, arguments).spawn().expect("starts"))
    }

    /// Runs `stage`, asserts success and returns its output.
    fn staged(&self, drives: usize, arguments: &[&str]) -> String {
        let done = self.stage(drives, arguments);
        let said = text(&done.stderr) + &text(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{arguments:?}: {said}");
        said
    }

    /// Writes `count` requests with prompts of 3 to 6 tokens and `tokens` new tokens.
    fn requests(&self, count: u32, tokens: u32) {
        let prompt = |i: u32| (0..3 + i % 4).map(|j| 5 + 7 * i + j).collect();
        let prompts: Vec<Vec<u32>> = (0..count).map(prompt).collect();
        self.place.requests("in.jsonl", &prompts, tokens);
    }

    /// Returns a command that answers the requests, with `faults` of the drives.
    fn run_command(&self, arguments: &[&str], faults: &str) -> Command {
        let mut command = self.command();
        command.arg("--input").arg(self.place.path("in.jsonl"));
        command.arg("--output").arg(self.place.path("out.jsonl"));
        command.arg("--report").arg(self.place.path("report.json"));
        command.args(arguments).env("TANDEM_NVME_FAULTS", faults);
        if !arguments.contains(&"--resume") {
            command.arg("--force");
        }
        command
    }

    fn run_with(&self, arguments: &[&str], faults: &str) -> Ran {
        let _ = std::fs::remove_file(self.place.path("report.json"));
        self.ended(self.run_command(arguments, faults).spawn().expect("starts"))
    }

    /// Waits for a run and returns its outcome.
    fn ended(&self, run: Child) -> Ran {
        let done = finish(run);
        let read = |name: &str| std::fs::read_to_string(self.place.path(name)).unwrap_or_default();
        Ran {
            code: done.status.code(),
            said: text(&done.stderr),
            answers: read("out.jsonl"),
            report: serde_json::from_str(&read("report.json")).unwrap_or_default(),
        }
    }

    /// Runs without faults and asserts that everything is answered.
    fn run(&self, arguments: &[&str]) -> Ran {
        let ran = self.run_with(arguments, "");
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.said);
        ran
    }

    /// Runs from the first `drives`, without faults.
    fn run_from(&self, drives: usize, arguments: &[&str]) -> Ran {
        let nvme = self.arguments(drives);
        self.run(&[arguments, &strs(&nvme)].concat())
    }
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Returns the position of a blob in `weights.bin`, and its size in bytes.
fn place_of(staging: &Path, blob: &str) -> (u64, u64) {
    let index = std::fs::read_to_string(staging.join("index.json")).expect("an index");
    let index: Value = serde_json::from_str(&index).expect("JSON");
    let blobs = index["content"]["blobs"].as_array().expect("a list").clone();
    let known: Vec<String> = blobs.iter().map(|one| one["name"].to_string()).collect();
    let blob = blobs.iter().find(|one| one["name"].as_str() == Some(blob));
    let blob = blob.unwrap_or_else(|| panic!("{known:?}"));
    let number = |field: &str| blob[field].as_u64().expect("a number");
    (number("offset_bytes"), number("size_bytes"))
}

/// Flips a bit of one byte of a file.
fn flip(path: &Path, at_bytes: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at_bytes).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], at_bytes).expect("writable");
    file.sync_all().expect("a drive");
}
