//! House rules that no compiler checks: file length, unfinished work, the fence around atomics, the
//! direction of dependencies, and nothing of one machine in what is published.
//!
//! Needles are written in two halves, so that this file does not find itself.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a Rust file, inline tests included. Beyond it: split the file, or move its tests to a
/// sibling.
const FILE_LINES_MAX: usize = 500;

/// Files that may be longer, with the length they may not exceed. Lengths here only ever shrink.
const LONGER_FILES: &[(&str, usize)] = &[];

/// The one file that may name the standard library's atomics; everybody else takes them from it.
const ATOMICS_FENCE: &str = "shm/src/sync.rs";

/// Columns of a line of Rust.
const LINE_COLUMNS_MAX: usize = 100;

/// Lines that may be longer: data as it stands in a file or on a command line. The number only ever
/// shrinks.
const LONG_LINES: usize = 49;

/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that may be longer, with the length they may not exceed. Lengths only ever shrink.
const LONGER_FUNCTIONS: &[(&str, &str, usize)] = &[
    ("kernels/src/linear/amx/tile.rs", "plain_tiles", 129),
    ("kernels/src/attention/values.rs", "run", 70),
    ("kernels/src/linear/direct.rs", "run", 79),
    ("report/src/table.rs", "render", 80),
];

/// Crates of this workspace, by folder, that each crate may depend on. A new edge is a decision,
/// not a detail.
const EDGES: &[(&str, &[&str])] = &[
    ("shm", &[]),
    ("model", &[]),
    ("text", &["model"]),
    ("hardware", &[]),
    ("cuda", &[]),
    ("schema_validator", &[]),
    ("grammar", &["schema_validator"]),
    ("scheduler", &[]),
    ("weight_store", &["atomic_fs"]),
    ("atomic_fs", &[]),
    ("prompt_cache", &["atomic_fs"]),
    ("quantizer", &["atomic_fs", "model", "text"]),
    ("kernels", &["model", "shm"]),
    ("kernels/cuda", &["kernels", "model"]),
    ("program", &["model"]),
    ("planner", &["model", "program", "scheduler"]),
    (
        "workers",
        &[
            "cuda",
            "grammar",
            "kernels",
            "kernels/cuda",
            "model",
            "program",
            "prompt_cache",
            "protocol",
            "scheduler",
            "shm",
            "weight_store",
        ],
    ),
    (
        "protocol",
        &[
            "engine_api",
            "grammar",
            "kernels",
            "model",
            "program",
            "prompt_cache",
            "scheduler",
            "shm",
        ],
    ),
    ("profiler", &["atomic_fs", "kernels", "model", "program", "protocol", "shm"]),
    ("engine_api", &["grammar", "kernels"]),
    (
        "engine",
        &[
            "engine_api",
            "grammar",
            "hardware",
            "model",
            "planner",
            "profiler",
            "program",
            "prompt_cache",
            "protocol",
            "scheduler",
            "shm",
            "workers",
        ],
    ),
    // Requests and answers see no worker.
    ("openai", &["engine_api", "grammar", "model"]),
    ("batch", &["atomic_fs", "engine_api", "grammar", "openai", "shm"]),
    ("server", &["atomic_fs", "batch", "engine_api", "openai", "shm"]),
    ("tokenizer_host", &["engine_api", "model", "protocol", "shm", "text"]),
    ("report", &["engine", "model", "planner", "program"]),
    (
        "session",
        &[
            "atomic_fs",
            "batch",
            "cuda",
            "engine",
            "engine_api",
            "grammar",
            "hardware",
            "kernels",
            "model",
            "openai",
            "planner",
            "profiler",
            "program",
            "prompt_cache",
            "protocol",
            "report",
            "scheduler",
            "shm",
            "text",
            "tokenizer_host",
            "weight_store",
            "workers",
        ],
    ),
    (
        "lab",
        &[
            "batch",
            "engine",
            "engine_api",
            "model",
            "planner",
            "program",
            "protocol",
            "report",
            "scheduler",
            "session",
            "shm",
            "weight_store",
            "workers",
        ],
    ),
    (
        "coordinator",
        &[
            "atomic_fs",
            "batch",
            "cuda",
            "engine",
            "engine_api",
            "hardware",
            "kernels",
            "lab",
            "model",
            "openai",
            "planner",
            "profiler",
            "program",
            "prompt_cache",
            "protocol",
            "quantizer",
            "report",
            "scheduler",
            "server",
            "session",
            "shm",
            "tokenizer_host",
            "weight_store",
            "workers",
        ],
    ),
];

/// Folders of the workspace that only test.
const TESTING: &[&str] = &["kernels/cuda/shim", "testkit", "tests", "tests/standin"];

/// Rooms of the coordinator, and those that each may know.
const ROOMS: &[(&str, &[&str])] = &[("cli", &[]), ("commands", &["cli"])];

/// Written by tools, or in words that are not ours.
const NOT_OURS: &[&str] = &["Cargo.lock", "LICENSE"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one up").to_path_buf()
}

/// Paths relative to the root of what is published: what git tracks, or, without git, everything
/// but build outputs.
fn published_files() -> Vec<String> {
    let root = root();
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output();
    let mut files = match listing {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            String::from_utf8_lossy(&output.stdout)
                .split('\0')
                .filter(|path| root.join(path).is_file())
                .map(str::to_owned)
                .collect()
        }
        _ => {
            let mut found = Vec::new();
            walk(&root, &root, &mut found);
            found
        }
    };
    files.retain(|path: &String| !NOT_OURS.contains(&path.as_str()));
    files.sort();
    assert!(files.len() > 50, "only {} files found: the rules would hold of nothing", files.len());
    assert!(
        files.iter().any(|path| path == ATOMICS_FENCE),
        "{ATOMICS_FENCE} is not among the files"
    );
    files
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
    const SKIPPED: &[&str] = &["target", "out", "__pycache__"];
    let entries = std::fs::read_dir(folder).expect("a folder of the project can be read");
    for entry in entries.map(|entry| entry.expect("an entry can be read")) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let hidden = name.starts_with('.') && name != ".ci" && name != ".config";
        if path.is_dir() && !hidden && !SKIPPED.contains(&name.as_str()) {
            walk(root, &path, found);
        } else if path.is_file() {
            let relative = path.strip_prefix(root).expect("found below the root");
            found.push(relative.to_string_lossy().into_owned());
        }
    }
}

/// The file's text; `None` for weights and other binary files.
fn text(path: &str) -> Option<String> {
    let bytes = std::fs::read(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    String::from_utf8(bytes).ok()
}

/// `path:line: needle` for each line of `files` that has one of `needles`.
fn occurrences<'a>(files: impl Iterator<Item = &'a String>, needles: &[String]) -> String {
    let mut found = String::new();
    for path in files {
        for (index, line) in text(path).unwrap_or_default().lines().enumerate() {
            for needle in needles.iter().filter(|needle| line.contains(needle.as_str())) {
                let _ = writeln!(found, "{path}:{}: {needle}", index + 1);
            }
        }
    }
    found
}

fn needles(halves: &[(&str, &str)]) -> Vec<String> {
    halves.iter().map(|(first, second)| format!("{first}{second}")).collect()
}

fn is_rust(path: &&String) -> bool {
    path.ends_with(".rs")
}

#[test]
fn rust_files_are_short() {
    let mut wrong = String::new();
    for path in published_files().iter().filter(is_rust) {
        let lines = text(path).expect("Rust is UTF-8").lines().count();
        let allowed = LONGER_FILES.iter().find(|(name, _)| name == path);
        let lines_max = allowed.map_or(FILE_LINES_MAX, |(_, max)| *max);
        if lines > lines_max {
            let _ = writeln!(wrong, "{path}: {lines} lines, at most {lines_max}");
        } else if allowed.is_some() && lines < lines_max {
            let _ = writeln!(wrong, "{path}: only {lines} lines now; lower LONGER_FILES to that");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn nothing_is_left_unfinished() {
    let needles = needles(&[("todo", "!("), ("unimplemented", "!("), ("FIX", "ME"), ("dbg", "!(")]);
    let found = occurrences(published_files().iter(), &needles);
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn atomics_stay_in_their_fence() {
    let needles = needles(&[("std::sync::", "atomic"), ("core::sync::", "atomic")]);
    let files = published_files();
    let outside = files.iter().filter(is_rust).filter(|path| *path != ATOMICS_FENCE);
    let found = occurrences(outside, &needles);
    assert!(found.is_empty(), "take atomics from shm::sync, so that loom models them:\n{found}");
    let inside = occurrences(files.iter().filter(|path| *path == ATOMICS_FENCE), &needles);
    assert!(!inside.is_empty(), "{ATOMICS_FENCE} is no longer the fence");
}

#[test]
fn processes_are_started_in_one_place() {
    let needles = needles(&[("Command::new(\"/proc", "/self/exe")]);
    let files = published_files();
    let sources = files.iter().filter(is_rust).filter(|path| path.contains("/src/"));
    let others = sources.filter(|path| *path != "protocol/src/child_process.rs");
    let found = occurrences(others, &needles);
    assert!(
        found.is_empty(),
        "take the command from protocol::child_process, without secrets:\n{found}"
    );
}

#[test]
fn nothing_names_one_machine() {
    let needles = needles(&[
        ("/wor", "k/"),
        ("/roo", "t/"),
        ("/hom", "e/"),
        ("/Use", "rs/"),
        ("/tmp/tar", "get-"),
        ("/tmp/ve", "nv"),
    ]);
    let found = occurrences(published_files().iter(), &needles);
    assert!(found.is_empty(), "\n{found}");
}

#[test]
fn no_package_registry_is_named_by_host() {
    let needles = needles(&[
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("static.crates", ".io"),
        ("index.crates", ".io"),
        ("npmjs", ".org"),
        ("deb.debian", ".org"),
        ("proxy.golang", ".org"),
    ]);
    let found = occurrences(published_files().iter(), &needles);
    assert!(
        found.is_empty(),
        "registries are reached through their clients as configured:\n{found}"
    );
}

/// Folders of the workspace's members.
fn members() -> Vec<String> {
    let manifest = text("Cargo.toml").expect("a manifest is UTF-8");
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let list = list.expect("the workspace lists its members");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The name under which a folder's crate is depended on.
fn crate_name(folder: &str) -> String {
    let manifest = text(&format!("{folder}/Cargo.toml")).expect("a manifest is UTF-8");
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""));
    name.and_then(|name| name.strip_suffix('"')).expect("a crate has a name").to_owned()
}

#[test]
fn dependencies_point_one_way() {
    let mut wrong = String::new();
    for folder in members() {
        let is_listed = EDGES.iter().any(|(name, _)| *name == folder);
        if !is_listed && !TESTING.contains(&folder.as_str()) {
            let _ = writeln!(wrong, "{folder} is not listed in EDGES");
        }
    }
    for (folder, allowed) in EDGES {
        let manifest = text(&format!("{folder}/Cargo.toml")).expect("manifests are UTF-8");
        // Tests may use what stands above them.
        let manifest = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for (other, _) in EDGES {
            let name = crate_name(other);
            let depends = manifest.lines().any(|line| {
                line.strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.starts_with(['.', ' ', '=']) && rest.contains('='))
            });
            if depends && !allowed.contains(other) {
                let _ = writeln!(wrong, "{folder} may not depend on {other}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The rooms that a file names by an absolute path.
fn rooms_named(code: &str) -> Vec<&'static str> {
    let names = |room: &str| code.contains(&format!("crate::{room}::"));
    ROOMS.iter().map(|(room, _)| *room).filter(|room| names(room)).collect()
}

#[test]
fn rooms_of_the_coordinator_know_each_other_one_way() {
    let mut wrong = String::new();
    let files = published_files();
    let mut seen = 0;
    for path in files.iter().filter(is_rust) {
        let Some(inner) = path.strip_prefix("coordinator/src/") else { continue };
        let room = inner.split(['/', '.']).next().unwrap_or_default();
        let is_test = inner.contains("tests");
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            if !matches!(room, "lib" | "main") {
                let _ = writeln!(wrong, "{path} is in no room of ROOMS");
            }
            continue;
        };
        seen += 1;
        let code = text(path).expect("Rust is UTF-8");
        for other in rooms_named(&code) {
            if other != room && !allowed.contains(&other) && !is_test {
                let _ = writeln!(wrong, "{path} may not know {other}");
            }
        }
    }
    assert!(seen > 50, "only {seen} files found in rooms");
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn lines_are_within_their_columns() {
    let files = published_files();
    let mut long = String::new();
    let mut count = 0;
    for path in files.iter().filter(is_rust) {
        for (index, line) in text(path).expect("Rust is UTF-8").lines().enumerate() {
            if line.chars().count() > LINE_COLUMNS_MAX {
                count += 1;
                let _ = writeln!(long, "{path}:{}", index + 1);
            }
        }
    }
    assert!(count <= LONG_LINES, "{count} lines are longer, at most {LONG_LINES} may:\n{long}");
    assert!(count == LONG_LINES, "only {count} lines are longer now; lower LONG_LINES to that");
}

/// Name and length of the functions of a file, as rustfmt lays them out.
fn functions(code: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        let Some(place) = words.iter().position(|word| *word == "fn") else { continue };
        let is_qualifier = |word: &&str| {
            word.starts_with("pub") || matches!(*word, "const" | "unsafe" | "extern" | "\"C\"")
        };
        if !words[..place].iter().all(is_qualifier) {
            continue;
        }
        let name = words.get(place + 1).map_or("", |word| word.split(['(', '<']).next().unwrap());
        let closes = |other: &&str| other.len() == indent + 1 && other.trim_start() == "}";
        if let Some(length) = lines[index..].iter().position(closes)
            && !line.trim_end().ends_with(';')
        {
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut wrong = String::new();
    let mut seen = 0;
    for path in published_files().iter().filter(is_rust) {
        let code = text(path).expect("Rust is UTF-8");
        let functions = functions(&code);
        seen += functions.len();
        for (file, name, lines) in LONGER_FUNCTIONS.iter().filter(|(file, ..)| file == path) {
            let own = functions.iter().filter(|(other, _)| other == name);
            let longest = own.map(|(_, lines)| *lines).max().unwrap_or(0);
            if longest < *lines {
                let _ = writeln!(wrong, "{file}: {name} has only {longest} lines now");
            }
        }
        for (name, lines) in functions {
            let is_this =
                |other: &&(&str, &str, usize)| (other.0, other.1) == (path.as_str(), name.as_str());
            let allowed = LONGER_FUNCTIONS.iter().find(is_this);
            let lines_max = allowed.map_or(FUNCTION_LINES_MAX, |(.., max)| *max);
            if lines > lines_max {
                let _ = writeln!(wrong, "{path}: {name} has {lines} lines, at most {lines_max}");
            }
        }
    }
    assert!(seen > 1000, "only {seen} functions found");
    assert!(wrong.is_empty(), "\n{wrong}");
}
