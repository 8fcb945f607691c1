//! Tests of hostile files, lines, hubs and clients: whatever they contain, a run ends with a
//! sentence, a documented exit code and answers to the valid lines. Servers whose processes are
//! killed or whose descriptors are used up give the same answers as others. Everything is seeded,
//! so that failures can be reproduced.
//!
//! `TANDEM_FUZZ_CASES` sets the number of cases, `TANDEM_FUZZ_SEED` the first seed; `make fuzz`
//! sets both.

mod descriptors;
mod http;
mod hub;
mod kills;
mod known;
mod lines;
mod model_files;
mod mutate;

pub(crate) use mutate::Random;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::command::{coordinator, finish, fixture, text};

/// Copies a fixture's files, except those that only tests read.
fn copy_of(name: &str, to: &Path) -> PathBuf {
    std::fs::create_dir_all(to).expect("a writable folder");
    for entry in std::fs::read_dir(fixture(name)).expect("a fixture").flatten() {
        let file = entry.file_name();
        let is_ours = ["golden.json", "chat_cases.json", "tokenizer_cases.json"];
        if !is_ours.iter().any(|ours| file == *ours) {
            std::fs::copy(entry.path(), to.join(file)).expect("writable");
        }
    }
    to.to_path_buf()
}

/// Words that no message of a run may contain, whatever the input.
const DEFECTS: [&str; 5] = ["panicked", "backtrace", "defect in Tandem", "RUST_", "signal 6"];

/// Answers `input` and asserts that the run ends properly: in time, without a panic or a signal.
fn run(model: &Path, input: &Path, output: &Path) -> (Option<i32>, String) {
    let mut command = coordinator();
    command.arg("--model").arg(model).arg("--input").arg(input).arg("--output").arg(output);
    command.args(["--force", "--quiet"]);
    let done: Output = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    let said = text(&done.stderr);
    let code = done.status.code();
    assert!(matches!(code, Some(0 | 1 | 3)), "{:?}: {said}", done.status);
    for defect in DEFECTS {
        assert!(!said.contains(defect), "{said}");
    }
    assert!(code == Some(0) || !said.trim().is_empty(), "an end without a word");
    assert!(said.len() < 20_000, "{} bytes of words", said.len());
    (code, said)
}

/// Returns a number from an environment variable.
pub(crate) fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}
