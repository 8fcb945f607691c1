//! Runs the Python package's own tests with the binary that was built.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{finish, text};

/// Runs a module of `python/tests`.
fn run(module: &str) {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let version = "import sys; sys.exit(sys.version_info < (3, 9))";
    let is_there = Command::new(&python).args(["-c", version]).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        println!(
            "SKIP python {module}: Python 3.9 is missing; scripts/install_deps.sh installs it"
        );
        return;
    }
    let child = Command::new(&python)
        .args(["-m", "unittest", "--verbose", &format!("tests.{module}")])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../python"))
        .env("TANDEM_COORDINATOR", env!("CARGO_BIN_EXE_coordinator"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("TANDEM_KERNELS")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let done = finish(child);
    let said = text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(!said.contains("Ran 0 tests"), "{said}");
    // Skipped tests are reported like those of this crate, with the reason.
    for line in said.lines().filter(|line| line.contains("... skipped ")) {
        println!("SKIP python {}", line.replacen(" ... skipped", ":", 1));
    }
}

#[test]
fn parts_of_the_package() {
    run("test_parts");
}

#[test]
fn batches_from_python() {
    run("test_batch");
}

#[test]
fn servers_from_python() {
    run("test_server");
}

#[test]
fn scores_from_python() {
    run("test_score");
}

#[test]
fn embeddings_from_python() {
    run("test_embed");
}

#[test]
fn lm_eval_from_python() {
    run("test_lm_eval");
}

#[test]
fn ray_from_python() {
    run("test_ray");
}

#[test]
fn the_lines_of_the_readme() {
    run("test_readme");
}
