//! A staging process may end at any time; the next one continues with the blobs that are durable on
//! the drive.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::*;
use weight_store::{BlobSize, Lookup, ReaderOptions, StageError, StagedCopy, Writer};

/// Environment variable with the folder of a child; the test's name determines what it does.
const FOLDER: &str = "STAGING_TEST_FOLDER";
/// Environment variable with the number of blobs after which a child stops writing.
const BLOBS: &str = "STAGING_TEST_BLOBS";

const MANY_BYTES: [u64; 12] = [3 << 20; 12];

fn partial(dir: &Path) -> PathBuf {
    dir.join(".a-model-bf16-0123.partial")
}

/// Returns the size of the finished blobs of a partial copy.
fn done_bytes(dir: &Path) -> u64 {
    match StagedCopy::lookup(dir, &identity()).unwrap() {
        Lookup::Partial(progress) => {
            assert!(!progress.is_being_written);
            progress.done_bytes
        }
        other => panic!("{other:?}"),
    }
}

/// Returns this program as a child that runs the test `name`.
fn child(name: &str, dir: &Path, blobs: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1", "--ignored"])
        .env(FOLDER, dir)
        .env(BLOBS, blobs.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the folder of this child.
fn given_folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("run by another test").into()
}

#[test]
fn a_dropped_writer_is_resumed() {
    let dir = folder();
    let list = blobs(&SIZES_BYTES);
    let mut writer = Writer::begin(dir.path(), &identity(), &list).unwrap();
    for index in [4, 0, 9] {
        writer.write(index, &bytes(index, SIZES_BYTES[index])).unwrap();
    }
    drop(writer);
    assert_eq!(done_bytes(dir.path()), SIZES_BYTES[4] + SIZES_BYTES[0] + SIZES_BYTES[9]);
    let mut writer = Writer::begin(dir.path(), &identity(), &list).unwrap();
    assert_eq!(writer.missing(), [1, 2, 3, 5, 6, 7, 8]);
    write_missing(&mut writer, &SIZES_BYTES);
    // All blobs are written, but no index.
    drop(writer);
    let writer = Writer::begin(dir.path(), &identity(), &list).unwrap();
    assert!(writer.missing().is_empty());
    writer.finish().unwrap();
    assert_whole(&lookup(dir.path()), ReaderOptions::default());
    assert!(!partial(dir.path()).exists());
}

#[test]
fn a_torn_journal_resumes_before_the_tear() {
    let dir = folder();
    let sizes_bytes = [70_000, 80_000, 90_000];
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&sizes_bytes)).unwrap();
    write_missing(&mut writer, &sizes_bytes);
    drop(writer);
    let journal = partial(dir.path()).join("journal");
    let whole = std::fs::read(&journal).unwrap();
    let ends: Vec<usize> = (1..=whole.len()).filter(|end| whole[end - 1] == b'\n').collect();
    assert_eq!(ends.len(), 4);
    let mut flipped = whole.clone();
    flipped[ends[1] + 20] ^= 1;
    let cases = [
        (whole[..ends[3] - 1].to_vec(), vec![2]),
        (whole[..ends[2] + 5].to_vec(), vec![2]),
        (whole[..ends[1]].to_vec(), vec![1, 2]),
        (flipped, vec![1, 2]),
        (whole[..ends[0] - 3].to_vec(), vec![0, 1, 2]),
        (Vec::new(), vec![0, 1, 2]),
        (b"\xff\xfe no journal\n\n".to_vec(), vec![0, 1, 2]),
    ];
    for (bytes, missing) in cases {
        std::fs::write(&journal, bytes).unwrap();
        let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&sizes_bytes)).unwrap();
        assert_eq!(writer.missing(), missing);
        write_missing(&mut writer, &sizes_bytes);
        drop(writer);
        assert_eq!(std::fs::read(&journal).unwrap(), whole);
    }
    let writer = Writer::begin(dir.path(), &identity(), &blobs(&sizes_bytes)).unwrap();
    writer.finish().unwrap();
    assert_whole(&lookup(dir.path()), ReaderOptions::default());
}

#[test]
fn lost_checksums_make_their_blob_missing() {
    let dir = folder();
    let sizes_bytes = [70_000, 80_000];
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&sizes_bytes)).unwrap();
    write_missing(&mut writer, &sizes_bytes);
    drop(writer);
    let blocks = partial(dir.path()).join("blocks.bin");
    let mut edited = std::fs::read(&blocks).unwrap();
    edited[17] ^= 1;
    std::fs::write(&blocks, edited).unwrap();
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&sizes_bytes)).unwrap();
    assert_eq!(writer.missing(), [1]);
    write_missing(&mut writer, &sizes_bytes);
    writer.finish().unwrap();
    assert_whole(&lookup(dir.path()), ReaderOptions::default());
}

#[test]
fn another_list_or_other_weights_are_started_over() {
    let others: [(&str, Vec<BlobSize>); 3] = [
        ("0123", blobs(&[70_000, 80_001])),
        ("0123", vec![BlobSize { name: "b".to_owned(), size_bytes: 70_000 }]),
        ("4567", blobs(&[70_000, 80_000])),
    ];
    for (weights, list) in others {
        let dir = folder();
        let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&[70_000, 80_000])).unwrap();
        write_missing(&mut writer, &[70_000, 80_000]);
        drop(writer);
        let other = weight_store::Identity { weights: weights.to_owned(), ..identity() };
        let mut writer = Writer::begin(dir.path(), &other, &list).unwrap();
        assert_eq!(writer.missing().len(), list.len());
        for index in writer.missing() {
            writer.write(index, &bytes(index, list[index].size_bytes)).unwrap();
        }
        assert_whole(&writer.finish().unwrap(), ReaderOptions::default());
    }
}

/// Child process that stages one blob after the other, reports each, and then keeps the folder
/// locked.
#[test]
#[ignore = "run by a_killed_stager_is_resumed"]
fn child_stages() {
    let dir = given_folder();
    let mut writer = Writer::begin(&dir, &identity(), &blobs(&MANY_BYTES)).unwrap();
    println!("\nbegun");
    let blobs: usize = std::env::var(BLOBS).unwrap().parse().unwrap();
    for index in writer.missing().into_iter().take(blobs) {
        writer.write(index, &bytes(index, MANY_BYTES[index])).unwrap();
        println!("written");
        std::io::stdout().flush().unwrap();
    }
    // Waits until the child is killed, or the parent has ended.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_killed_stager_is_resumed() {
    let dir = folder();
    let mut written = 0;
    for kill_after in [0, 1, 2, 3] {
        // The child is killed while it writes the next blob.
        let mut child = child("resume::child_stages", dir.path(), kill_after + 1);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line == "begun").expect("a child begins");
        let after = lines.by_ref().filter(|line| line == "written").take(kill_after).count();
        assert_eq!(after, kill_after);
        let locked = Writer::begin(dir.path(), &identity(), &blobs(&MANY_BYTES));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(locked, Err(StageError::Locked { .. })));
        written += kill_after;
        let done_blobs = done_bytes(dir.path()) / MANY_BYTES[0];
        assert!(done_blobs >= written as u64, "{done_blobs} of {written}");
        written = done_blobs as usize;
    }
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&MANY_BYTES)).unwrap();
    assert_eq!(writer.missing().len(), MANY_BYTES.len() - written);
    write_missing(&mut writer, &MANY_BYTES);
    assert_whole(&writer.finish().unwrap(), ReaderOptions::default());
}

fn limit_files(size_bytes: u64) {
    let limit = libc::rlimit { rlim_cur: size_bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: needed because the calls are raw. No handler is installed, and the limit is in this
    // stack frame. The limit applies only to the child.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
}

/// Child process that finds the drive full, simulated by a limit on file sizes, both while writing
/// and when beginning.
#[test]
#[ignore = "run by a_full_drive_leaves_what_can_be_resumed"]
fn child_meets_a_full_drive() {
    let dir = given_folder();
    let mut writer = Writer::begin(&dir, &identity(), &blobs(&MANY_BYTES)).unwrap();
    writer.write(0, &bytes(0, MANY_BYTES[0])).unwrap();
    limit_files(5 << 20);
    for _ in 0..2 {
        let error = writer.write(1, &bytes(1, MANY_BYTES[1])).unwrap_err();
        assert!(matches!(error, StageError::DiskFull { .. }), "{error}");
        assert!(error.to_string().contains("stage again"), "{error}");
    }
    // A copy for which not even the space can be allocated.
    let other = weight_store::Identity { name: "another".to_owned(), ..identity() };
    let error = Writer::begin(&dir, &other, &blobs(&MANY_BYTES)).unwrap_err();
    assert!(matches!(error, StageError::DiskFull { .. }), "{error}");
    println!("\nfull");
}

#[test]
fn a_full_drive_leaves_what_can_be_resumed() {
    let dir = folder();
    let output =
        child("resume::child_meets_a_full_drive", dir.path(), 1).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.lines().any(|line| line == "full"), "{text}");
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&MANY_BYTES)).unwrap();
    assert_eq!(writer.missing(), (1..MANY_BYTES.len()).collect::<Vec<_>>());
    write_missing(&mut writer, &MANY_BYTES);
    assert_whole(&writer.finish().unwrap(), ReaderOptions::default());
    let other = weight_store::Identity { name: "another".to_owned(), ..identity() };
    Writer::begin(dir.path(), &other, &blobs(&MANY_BYTES)).unwrap();
}

#[test]
fn links_in_the_place_of_a_partial_staging_are_not_followed() {
    let dir = folder();
    let outside = folder();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "mine").unwrap();
    let refused = |what: &str| {
        let begun = Writer::begin(dir.path(), &identity(), &blobs(&MANY_BYTES[..1]));
        assert!(matches!(begun, Err(StageError::Io { .. })), "{what}: {begun:?}");
        let outside: Vec<_> = std::fs::read_dir(outside.path()).unwrap().flatten().collect();
        assert_eq!(outside.len(), 1, "{what}: {outside:?}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine", "{what}");
    };
    std::os::unix::fs::symlink(outside.path(), partial(dir.path())).unwrap();
    refused("the folder");
    std::fs::remove_file(partial(dir.path())).unwrap();
    for file in ["journal", "blocks.bin", "weights.bin"] {
        std::fs::create_dir(partial(dir.path())).unwrap();
        std::os::unix::fs::symlink(&victim, partial(dir.path()).join(file)).unwrap();
        refused(file);
        std::fs::remove_dir_all(partial(dir.path())).unwrap();
    }
}
