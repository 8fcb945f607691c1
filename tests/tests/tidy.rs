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

/// Crates of this workspace that each crate may depend on. A new edge is a decision, not a detail.
const EDGES: &[(&str, &[&str])] = &[
    ("shm", &[]),
    ("model", &[]),
    ("machine", &[]),
    ("cuda", &[]),
    ("kernels", &["model", "shm"]),
    ("program", &["model"]),
    ("planner", &["model", "program"]),
    ("workers", &["cuda", "kernels", "model", "program", "shm"]),
    ("profiler", &["kernels", "model", "program", "shm", "workers"]),
    (
        "coordinator",
        &[
            "cuda", "kernels", "machine", "model", "planner", "profiler", "program", "shm",
            "workers",
        ],
    ),
];

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

#[test]
fn dependencies_point_one_way() {
    let mut wrong = String::new();
    for (name, allowed) in EDGES {
        let manifest = text(&format!("{name}/Cargo.toml")).expect("manifests are UTF-8");
        // Tests may use what stands above them.
        let manifest = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for (other, _) in EDGES {
            let depends = manifest.lines().any(|line| {
                line.strip_prefix(other)
                    .is_some_and(|rest| rest.starts_with(['.', ' ', '=']) && rest.contains('='))
            });
            if depends && !allowed.contains(other) {
                let _ = writeln!(wrong, "{name} may not depend on {other}");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
