//! Weights on drives through the real binary: written by `stage`, read by runs, with the answers of
//! the same run from memory, whatever happens to a drive on the way.

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

/// A small model of random weights, whose larger weights are worth dividing over drives.
const SMALL: &[&str] = &["--model", "opt-125m", "--dummy-weights", "--layers", "2"];
/// The same with all its layers.
const WHOLE: &[&str] = &["--model", "opt-125m", "--dummy-weights"];

/// A fixture as arguments.
fn model(name: &str) -> Vec<String> {
    vec!["--model".to_owned(), fixture(name).display().to_string()]
}

/// Directories that stand for drives, and all else that a test writes.
struct Drives {
    place: Place,
}

/// How a run ended.
struct Ran {
    code: Option<i32>,
    said: String,
    answers: String,
    /// `Null` where none was written.
    report: Value,
}

impl Ran {
    /// What was read from each drive in all.
    fn read_bytes(&self) -> Vec<u64> {
        self.of_storages("read_bytes")
    }

    /// What is read from each drive in a decode step.
    fn step_bytes(&self) -> Vec<u64> {
        self.of_storages("step_bytes")
    }

    /// How each drive was read.
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

    /// The first `count` as arguments.
    fn arguments(&self, count: usize) -> Vec<String> {
        let of = |drive| ["--nvme".to_owned(), self.directory(drive).display().to_string()];
        (0..count).flat_map(of).collect()
    }

    /// The stagings of a drive.
    fn stagings(&self, drive: usize) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory(drive)).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// The only one.
    fn staging(&self, drive: usize) -> PathBuf {
        let paths = self.stagings(drive);
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths[0].clone()
    }

    /// The binary with a cache of its own.
    fn command(&self) -> Command {
        let mut command = coordinator();
        command.env("XDG_CACHE_HOME", self.place.path("cache"));
        command.env_remove("TANDEM_NVME_FAULTS").env_remove("TANDEM_NVME_IO");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `stage` for the first `drives`.
    fn stage_command(&self, drives: usize, arguments: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("stage").args(self.arguments(drives)).args(arguments);
        command
    }

    fn stage(&self, drives: usize, arguments: &[&str]) -> Output {
        finish(self.stage_command(drives, arguments).spawn().expect("starts"))
    }

    /// The same; asserts success and returns what was said.
    fn staged(&self, drives: usize, arguments: &[&str]) -> String {
        let done = self.stage(drives, arguments);
        let said = text(&done.stderr) + &text(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{arguments:?}: {said}");
        said
    }

    /// `count` requests of 3 to 6 tokens for `tokens` more.
    fn requests(&self, count: u32, tokens: u32) {
        let prompt = |i: u32| (0..3 + i % 4).map(|j| 5 + 7 * i + j).collect();
        let prompts: Vec<Vec<u32>> = (0..count).map(prompt).collect();
        self.place.requests("in.jsonl", &prompts, tokens);
    }

    /// A run that answers the requests. Drives have `faults`.
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

    /// What became of a run.
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

    /// A run without faults that answers everything.
    fn run(&self, arguments: &[&str]) -> Ran {
        let ran = self.run_with(arguments, "");
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.said);
        ran
    }

    /// A run from the first `drives`, without faults.
    fn run_from(&self, drives: usize, arguments: &[&str]) -> Ran {
        let nvme = self.arguments(drives);
        self.run(&[arguments, &strs(&nvme)].concat())
    }
}

fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Where a blob begins in `weights.bin`, and its bytes.
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

/// Makes one byte of a file another one.
fn flip(path: &Path, at_bytes: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at_bytes).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], at_bytes).expect("writable");
    file.sync_all().expect("a drive");
}
