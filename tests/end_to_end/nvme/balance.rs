//! Tests of drives of different speeds: each reads as much as it can while the other reads its
//! part.

use serde_json::Value;

use super::{Drives, SMALL, strs};

/// The first drive is four times as fast as the second.
const FAULTS: &str = "rate=16M;rate=4M";
const ITERATIONS_MAX: usize = 12;
/// Maximum relative deviation of finish times from their average.
const TOLERANCE: f64 = 0.05;

/// Returns the cached measurements of the drives.
fn kept(drives: &Drives) -> Value {
    let folder = std::fs::read_dir(drives.place.path("cache/tandem")).expect("a cache");
    let paths = folder.map(|entry| entry.expect("an entry").path());
    let of_drives = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvme-"))
    };
    let paths: Vec<_> = paths.filter(of_drives).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    let text = std::fs::read_to_string(&paths[0]).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|one| one.as_f64().expect("a number")).collect()
}

#[test]
fn two_drives_of_unequal_speed_end_together() {
    let drives = Drives::new();
    drives.requests(2, 3);
    let whole = drives.run(SMALL).answers;
    let nvme = drives.arguments(2);
    // Only a few bytes, since reads are slow; all weights are balanced nevertheless.
    let arguments = [SMALL, &["--nvme-ops", "q"], &strs(&nvme)].concat();
    let ran = drives.run_with(&arguments, FAULTS);
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    assert_eq!(ran.answers, whole);
    let kept = kept(&drives);
    let largest = &kept["weights"][0];
    assert!(largest["size_bytes"].as_u64().expect("bytes") >= 1 << 20, "{largest}");
    let iterations = largest["trajectory"]["iterations"].as_array().expect("iterations");
    for iteration in iterations {
        println!("blocks {} take {} s", iteration["sizes"], iteration["times_s"]);
    }
    assert_eq!(largest["trajectory"]["is_balanced"], true);
    assert!((2..=ITERATIONS_MAX).contains(&iterations.len()), "{}", iterations.len());
    let first = numbers(&iterations[0]["sizes"]);
    assert!((first[0] - first[1]).abs() <= 1.0, "it begins with equal shares: {first:?}");
    let last = iterations.last().expect("one");
    let (sizes, times) = (numbers(&last["sizes"]), numbers(&last["times_s"]));
    let ratio = sizes[0] / sizes[1];
    assert!((3.4..4.7).contains(&ratio), "{sizes:?}");
    let average = times.iter().sum::<f64>() / times.len() as f64;
    assert!(times.iter().all(|time| (time / average - 1.0).abs() <= TOLERANCE), "{times:?}");
    assert_eq!(numbers(&largest["trajectory"]["sizes"]), sizes, "the last division is kept");
    // The run reads in this ratio, in whole blocks of 64 KiB, of which this weight has 18.
    let step = ran.step_bytes();
    let ratio = step[0] as f64 / step[1] as f64;
    assert!((2.5..6.0).contains(&ratio), "{step:?}");
    // Measurements are not repeated.
    let again = drives.run_with(&arguments, FAULTS);
    assert_eq!(again.answers, whole);
    assert_eq!(self::kept(&drives), kept);
}

#[test]
fn a_drive_that_cannot_be_measured_gets_nothing_and_is_measured_again() {
    let drives = Drives::new();
    drives.requests(2, 3);
    let whole = drives.run(SMALL).answers;
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &["--nvme-ops", "q"], &strs(&nvme)].concat();
    // The first fault is only noticed after ten seconds without an answer.
    for (faults, reason) in
        [("silence@5;", "it has not answered for 10 s"), ("eio@5;", "Input/output error")]
    {
        let ran = drives.run_with(&arguments, faults);
        assert_eq!(ran.code, Some(0), "{faults}: {}", ran.said);
        assert_eq!(ran.answers, whole, "{faults}");
        let directory = drives.directory(0).display().to_string();
        let said = format!("{directory} is not used for weights");
        let line = ran.said.lines().find(|line| line.contains(&said));
        let line = line.unwrap_or_else(|| panic!("{faults}: {}", ran.said));
        assert!(line.contains(reason), "{line}");
        let step = ran.step_bytes();
        assert!(step[0] == 0 && step[1] > 0, "{step:?}");
    }
    let ran = drives.run_with(&arguments, "");
    assert_eq!(ran.answers, whole);
    let step = ran.step_bytes();
    assert!(step[0] > 0 && step[1] > 0, "what failed once was kept: {step:?}");
}

#[test]
fn where_no_drive_can_be_measured_each_is_named() {
    let drives = Drives::new();
    drives.requests(1, 1);
    let nvme = drives.arguments(2);
    let arguments = [SMALL, &["--nvme-ops", "q"], &strs(&nvme)].concat();
    let ran = drives.run_with(&arguments, "eio@5;eio@6");
    assert_eq!(ran.code, Some(1), "{}", ran.said);
    for drive in [0, 1] {
        let directory = drives.directory(drive).display().to_string();
        assert!(ran.said.contains(&format!("{directory}: cannot read")), "{}", ran.said);
    }
}
