//! Tests of the output of `stage` about stagings: which ones exist, and whether they are intact.

use std::path::Path;

use super::{Drives, SMALL, flip, model, place_of, strs};
use crate::command::text;

/// Returns the lines of the status that describe a staging.
fn status(drives: &Drives) -> Vec<String> {
    let said = drives.staged(1, &["--status"]);
    let lines = said.lines().filter(|line| line.contains("opt-125m") || line.contains("llama"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn size_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").len()
}

#[test]
fn the_status_tells_whole_unfinished_and_damaged_ones() {
    let drives = Drives::new();
    let missing = drives.stage(1, &["--status"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("No such file"), "{}", text(&missing.stderr));
    std::fs::create_dir(drives.directory(0)).expect("a folder");
    assert!(drives.staged(1, &["--status"]).contains("no weights are staged there"));

    drives.staged(1, SMALL);
    let whole = drives.staging(0);
    let lines = status(&drives);
    assert!(lines[0].ends_with("opt-125m bf16 0.03 complete"), "{lines:?}");

    // The state that a writer leaves if it ends before anything is durable.
    let name = whole.file_name().expect("a name").to_string_lossy().into_owned();
    let model = model("llama");
    drives.staged(1, &strs(&model));
    let partial = drives.directory(0).join(format!(".{name}.partial"));
    std::fs::rename(&whole, &partial).expect("writable");
    let lines = status(&drives);
    assert_eq!(lines.len(), 2, "{lines:?}");
    let unfinished = lines.iter().find(|line| line.contains(&name)).expect("it is listed");
    assert!(
        unfinished.contains("incomplete, 0.00 done; `coordinator stage` resumes it"),
        "{unfinished}"
    );
    let llama = lines.iter().find(|line| line.contains("llama")).expect("it is listed");
    assert!(llama.ends_with("complete"), "{llama}");

    // An unfinished staging is written again.
    drives.staged(1, SMALL);
    for (file, what) in [("weights.bin", "bytes"), ("blocks.bin", "bytes"), ("index.json", "index")]
    {
        let path = whole.join(file);
        let kept = std::fs::read(&path).expect("a file");
        let cut = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
        cut.set_len(size_bytes(&path) - 1).expect("writable");
        let lines = status(&drives);
        let damaged = lines.iter().find(|line| line.contains(&name)).expect("it is listed");
        assert!(damaged.contains("is damaged") && damaged.contains(what), "{file}: {damaged}");
        // A damaged staging is neither overwritten nor read.
        for ended in [drives.stage(1, SMALL), drives.stage(1, &[SMALL, &["--verify"]].concat())] {
            assert_eq!(ended.status.code(), Some(1), "{file}");
            let said = text(&ended.stderr);
            assert!(said.contains("remove the staging and stage again"), "{file}: {said}");
        }
        std::fs::write(&path, kept).expect("writable");
    }
    drives.staged(1, &[SMALL, &["--verify"]].concat());
}

#[test]
fn one_flipped_byte_is_named_with_its_weight() {
    let drives = Drives::new();
    let verify = [SMALL, &["--verify"]].concat();
    let nothing = drives.stage(2, &verify);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(text(&nothing.stderr).contains("is not staged"), "{}", text(&nothing.stderr));
    drives.staged(2, SMALL);
    assert!(drives.staged(2, &verify).contains("is intact"));
    let damaged = drives.staging(1);
    let (offset, size) = place_of(&damaged, "weights.layer1.fc0");
    flip(&damaged.join("weights.bin"), offset + size / 2);
    let done = drives.stage(2, &verify);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("blob weights.layer1.fc0 of"), "{said}");
    assert!(said.contains(&format!("{}: 1 weights are damaged", damaged.display())), "{said}");
    let sound = format!("is intact in {}", drives.staging(0).display());
    assert!(said.contains(&sound), "{said}");
    // With its original content it is sound again.
    flip(&damaged.join("weights.bin"), offset + size / 2);
    drives.staged(2, &verify);
}
