//! Tests that the committed cubins are compiled from the committed PTX.

use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_kernels::Cubin;
use sha2::{Digest, Sha256};

/// The script's status if a package is missing.
const MISSING: i32 = 77;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two up").to_path_buf()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the checksum of a file that the script recorded.
fn noted(name: &str) -> String {
    let lines = std::fs::read_to_string(root().join("kernels/cuda/cubin/made_of")).expect("a file");
    let of = |line: &str| {
        line.split_once("  ").filter(|(_, of)| *of == name).map(|(sum, _)| sum.to_owned())
    };
    lines.lines().find_map(of).unwrap_or_else(|| panic!("nothing is noted of {name}"))
}

fn file(cubin: &Cubin) -> String {
    let (major, minor) = cubin.capability;
    format!("sm_{major}{minor}.cubin")
}

#[test]
fn cubins_are_of_this_ptx_and_have_every_kernel() {
    let ptx = sha256(cuda_kernels::PTX.as_bytes());
    assert_eq!(ptx, noted("tandem.ptx"), "the PTX changed: run scripts/ptx.sh --cubins and commit");
    let entries = cuda_kernels::PTX.split(".entry").skip(1);
    let names: Vec<&str> =
        entries.filter_map(|text| text.split(['(', '{']).next()).map(str::trim).collect();
    assert!(names.len() > 100);
    for cubin in Cubin::all() {
        let image = cubin.image().expect("it is whole");
        assert_eq!(sha256(&image), noted(&file(cubin)), "{}", file(cubin));
        for name in &names {
            let section = format!("\0.nv.info.{name}\0");
            let has = image.windows(section.len()).any(|bytes| bytes == section.as_bytes());
            assert!(has, "{} has no {name}", file(cubin));
        }
    }
}

/// Recompiles one generation, if the compiler is available.
#[test]
fn a_cubin_is_reproduced() {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    if !Command::new(python).arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIP a_cubin_is_reproduced: Python 3 is missing");
        return;
    }
    let out = std::env::temp_dir().join(format!("tandem-cubin-{}", std::process::id()));
    let mut command = Command::new("sh");
    command.arg(root().join("scripts/ptx.sh")).args(["--offline", "--cubins"]);
    let output = command.env("OUT", &out).env("GENERATIONS", "89").output().expect("sh runs");
    if output.status.code() == Some(MISSING) {
        let reason = String::from_utf8_lossy(&output.stderr);
        let reason = reason.trim().trim_start_matches("ptx.sh: ");
        println!("SKIP a_cubin_is_reproduced: {reason}");
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = std::fs::read_to_string(out.join("made_of")).expect("the script wrote it");
    std::fs::remove_dir_all(&out).expect("it can be removed");
    assert!(made.contains(&format!("{}  sm_89.cubin", noted("sm_89.cubin"))), "{made}");
}
