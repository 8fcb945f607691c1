use program::topology::LaneId;
use std::collections::BTreeMap;

use super::*;
use crate::key::{Point, ProfiledWork, WorkKey};
use crate::profile::{Overhead, WorkMeasurement};
use crate::request::ComputeThreads;
use crate::stat::Stat;

fn profile(link: &str, median_ns: f64) -> Profile {
    let fields = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let time = Stat {
        median_ns,
        mean_ns: 2.5,
        min_ns: 0.1,
        max_ns: 1e9,
        deviation_ns: 0.0,
        samples: 3,
        outliers: 1,
    };
    let work = ProfiledWork::CopyValue { value: model::ops::Value::Hidden, chunk: None };
    let key = WorkKey { lane: LaneId::D2H, phase: None, work };
    let measured = WorkMeasurement {
        key,
        point: Point { rows: 4, positions: 0 },
        concurrent: vec![LaneId::CPU_COMPUTE],
        time,
        disputed: false,
    };
    Profile {
        fingerprint: Fingerprint {
            machine: fields("PCIe link", link),
            profiled: fields("batch", "4"),
        },
        measurements: ProfileMeasurements {
            skipped: Vec::new(),
            rehearsals: Vec::new(),
            finished: Vec::new(),
            threads: ComputeThreads { cpu: 1, gpu: 1 },
            best_cpu_threads: 1,
            work: vec![measured],
            sweep: Vec::new(),
            overhead: Overhead { wake: Some(time), empty_span: None, between_spans: None },
            took_ms: 12,
        },
    }
}

fn folder() -> (tempfile::TempDir, ProfileCache) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = ProfileCache::new(folder.path().join("not/yet/there"));
    (folder, cache)
}

#[test]
fn a_profile_comes_back_as_it_was() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 1234.5678901234567);
    assert!(matches!(cache.load(&wanted.fingerprint), Err(CacheMiss::Missing)));
    let path = cache.store(&wanted).expect("it is written");
    assert_eq!(cache.load(&wanted.fingerprint).expect("it is read"), wanted);
    let text = fs::read_to_string(&path).expect("text");
    assert!(text.contains("\"PCIe link\": \"x16\""), "readable: {text}");
    // Lanes are stored by name, regardless of their numbers.
    assert!(text.contains("\"lane\": \"D2h\"") && text.contains("\"CpuCompute\""), "{text}");
    // Different indentation is the same profile.
    let value: Value = serde_json::from_str(&text).expect("JSON");
    fs::write(&path, value.to_string()).expect("a file");
    assert_eq!(cache.load(&wanted.fingerprint).expect("it is read"), wanted);
}

#[test]
fn a_torn_file_is_refused_wherever_it_ends() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 5.5);
    let path = cache.store(&wanted).expect("it is written");
    let text = fs::read_to_string(&path).expect("text");
    let whole = text.trim_end().len();
    for end in 0..whole {
        fs::write(&path, &text[..end]).expect("a file");
        let found = cache.load(&wanted.fingerprint);
        assert!(matches!(found, Err(CacheMiss::Damaged { .. })), "{end} of {whole}: {found:?}");
    }
}

#[test]
fn edited_measurements_are_refused() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 77.25);
    let path = cache.store(&wanted).expect("it is written");
    let text = fs::read_to_string(&path).expect("text");
    for (from, to) in
        [("77.25", "17.25"), ("\"samples\": 3", "\"samples\": 4"), ("D2h", "H2dWeights")]
    {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).expect("a file");
        let error = cache.load(&wanted.fingerprint).expect_err("it was edited");
        assert!(error.to_string().contains("checksum"), "{error}");
    }
}

#[test]
fn an_edited_fingerprint_names_the_field() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 1.0);
    let path = cache.store(&wanted).expect("it is written");
    let text = fs::read_to_string(&path).expect("text").replace("x16", "x8");
    fs::write(&path, text).expect("a file");
    match cache.load(&wanted.fingerprint) {
        Err(CacheMiss::Changed { differences }) => {
            assert_eq!(differences, ["PCIe link x8 -> x16"]);
        }
        other => panic!("{other:?}"),
    }
    // A machine that has changed since is noticed too.
    cache.store(&wanted).expect("it is written");
    let error = cache.load(&profile("x8", 1.0).fingerprint).expect_err("it has changed");
    assert!(error.to_string().contains("PCIe link x16 -> x8"), "{error}");
}

#[test]
fn another_version_is_refused() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 1.0);
    let path = cache.store(&wanted).expect("it is written");
    let text = fs::read_to_string(&path).expect("text");
    let now = format!("\"version\": {VERSION}");
    assert!(text.contains(&now));
    fs::write(&path, text.replacen(&now, "\"version\": 999", 1)).expect("a file");
    let found = cache.load(&wanted.fingerprint);
    assert!(matches!(found, Err(CacheMiss::Version { found: 999, .. })), "{found:?}");
    fs::write(&path, text.replacen(&now, "\"edition\": 1", 1)).expect("a file");
    let found = cache.load(&wanted.fingerprint);
    assert!(matches!(found, Err(CacheMiss::Damaged { .. })), "{found:?}");
}

#[test]
fn dying_at_any_step_leaves_the_old_profile_or_the_new() {
    let (_folder, cache) = folder();
    let (old, new) = (profile("x16", 1.0), profile("x16", 2.0));
    for died in [
        WriteStep::Create,
        WriteStep::Write,
        WriteStep::Sync,
        WriteStep::Rename,
        WriteStep::SyncDirectory,
    ] {
        cache.store(&old).expect("it is written");
        // A process that dies does not clean up: the panic leaves the temporary file in place.
        let attempt = std::panic::catch_unwind(|| {
            cache.store_with(&new, &mut |step| {
                if step == died {
                    std::panic::resume_unwind(Box::new("killed"));
                }
                Ok(())
            })
        });
        assert!(attempt.is_err(), "{died:?} is a step of writing");
        let expected = if died == WriteStep::SyncDirectory { &new } else { &old };
        let found = cache.load(&old.fingerprint).expect("a valid profile");
        assert_eq!(&found, expected, "killed before {died:?}");
    }
}

#[test]
fn a_failed_write_keeps_the_old_profile_and_leaves_no_litter() {
    let (_folder, cache) = folder();
    let (old, new) = (profile("x16", 1.0), profile("x16", 2.0));
    for failing in [WriteStep::Create, WriteStep::Write, WriteStep::Sync, WriteStep::Rename] {
        cache.store(&old).expect("it is written");
        let full = |step| {
            if step == failing { Err(io::Error::other("no space left")) } else { Ok(()) }
        };
        let error = cache.store_with(&new, &mut { full }).expect_err("it fails");
        assert!(error.to_string().contains("no space left"), "{error}");
        assert_eq!(cache.load(&old.fingerprint).expect("a valid profile"), old);
        assert_eq!(fs::read_dir(&cache.directory).expect("a folder").count(), 1);
    }
}

#[test]
fn parts_that_a_dead_process_left_are_removed() {
    let (_folder, cache) = folder();
    let wanted = profile("x16", 1.0);
    let path = cache.store(&wanted).expect("it is written");
    // No process has this number.
    let litter = path.with_extension("json.4294967295");
    fs::write(&litter, "half").expect("a file");
    let other = path.with_extension("json.4294967295-0123456789abcdef");
    fs::write(&other, "half").expect("a file");
    cache.store(&wanted).expect("it is written");
    assert!(!litter.exists() && !other.exists());
}

#[test]
fn a_profile_is_its_owner_s_alone_and_replaces_a_link() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().expect("a folder");
    let cache = ProfileCache::new(folder.path().join("a/b"));
    let wanted = profile("x16", 1.0);
    let path = cache.path(&wanted.fingerprint);
    fs::create_dir_all(&cache.directory).expect("a folder");
    fs::write(folder.path().join("victim"), "mine").expect("a file");
    symlink("../../victim", &path).expect("a link");
    cache.store(&wanted).expect("it is written");
    assert!(!path.is_symlink());
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(folder.path().join("victim")).expect("untouched"), b"mine");
}
