//! Tests that the committed PTX equals the output of the sources, byte for byte, and that every
//! supported GPU accepts it. Both need NVIDIA's compilers, which come as Python packages and are
//! not downloaded by a test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The script's status if a package is missing.
const MISSING: i32 = 77;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two up").to_path_buf()
}

/// Runs the script without network; `None`, with a printed reason, if it cannot run here.
fn script(test: &str, argument: Option<&str>, out: Option<&Path>) -> Option<Output> {
    let mut command = Command::new("sh");
    command.arg(root().join("scripts/ptx.sh")).arg("--offline").args(argument);
    if let Some(out) = out {
        command.env("OUT", out);
    }
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    if !Command::new(python).arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIP {test}: Python 3 is missing; scripts/install_deps.sh installs it");
        return None;
    }
    let output = command.output().expect("sh runs");
    if output.status.code() == Some(MISSING) {
        let reason = String::from_utf8_lossy(&output.stderr);
        println!("SKIP {test}: {}", reason.trim().trim_start_matches("ptx.sh: "));
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

#[test]
fn the_ptx_is_reproduced() {
    let out = std::env::temp_dir().join(format!("tandem-ptx-{}.ptx", std::process::id()));
    if script("the_ptx_is_reproduced", None, Some(&out)).is_none() {
        return;
    }
    let made = std::fs::read_to_string(&out).expect("the script wrote it");
    std::fs::remove_file(&out).expect("it can be removed");
    assert!(
        made == cuda_kernels::PTX,
        "the sources changed: run scripts/ptx.sh and commit the PTX"
    );
}

#[test]
fn every_generation_takes_the_ptx() {
    let Some(output) = script("every_generation_takes_the_ptx", Some("--assemble"), None) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    for generation in [80, 86, 89, 90, 120] {
        assert!(said.contains(&format!("sm_{generation}: assembled")), "{said}");
    }
}
