//! Damage to any file of a staged copy is detected, either when it is opened or when it is read.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::*;
use proptest::prelude::*;
use weight_store::{
    AlignedBuffer, BLOCK_BYTES, CopyState, Identity, OpenStagedError, ReadError, ReaderOptions,
    StagedCopy, list,
};

const SIZES: [u64; 3] = [100, 5 * BLOCK_BYTES + 1, 3 * BLOCK_BYTES];

/// Inverts a bit of a file.
fn flip(path: &Path, offset_bytes: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset_bytes).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset_bytes).unwrap();
    file.sync_all().unwrap();
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn refusal(dir: &Path) -> OpenStagedError {
    StagedCopy::lookup(dir, &identity()).map(drop).unwrap_err()
}

#[test]
fn every_byte_of_the_index_counts() {
    let dir = folder();
    let path = stage(dir.path(), &SIZES).path().join("index.json");
    let text = std::fs::read(&path).unwrap();
    for at in 0..text.len() {
        for bit in [1, 0x10, 0x20] {
            let mut edited = text.clone();
            edited[at] ^= bit;
            std::fs::write(&path, &edited).unwrap();
            let error = refusal(dir.path());
            let is_named = error.to_string().contains("index.json");
            assert!(is_named, "byte {at}: {error}");
        }
    }
    for cut in 0..text.len() {
        std::fs::write(&path, &text[..cut]).unwrap();
        assert!(matches!(refusal(dir.path()), OpenStagedError::Damaged { .. }), "cut at {cut}");
    }
    std::fs::write(&path, [&text[..], b"\n"].concat()).unwrap();
    assert!(matches!(refusal(dir.path()), OpenStagedError::Damaged { .. }));
    std::fs::write(&path, &text).unwrap();
    assert_whole(&lookup(dir.path()), ReaderOptions::default());
}

#[test]
fn another_format_is_named() {
    let dir = folder();
    let path = stage(dir.path(), &SIZES).path().join("index.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"format\": 1", "\"format\": 2, \"new\": 0")).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, OpenStagedError::Format { format: 2, supported: 1, .. }), "{error}");
}

#[test]
fn other_files_are_checked_too() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES);
    let (blocks, weights) = (staged.path().join("blocks.bin"), staged.path().join("weights.bin"));
    for at in 0..length(&blocks) {
        flip(&blocks, at);
        assert!(refusal(dir.path()).to_string().contains("blocks.bin"));
        flip(&blocks, at);
    }
    for path in [&blocks, &weights] {
        let whole_bytes = length(path);
        for size_bytes in [whole_bytes - 1, whole_bytes + 1, 0] {
            let content = std::fs::read(path).unwrap();
            File::options().write(true).open(path).unwrap().set_len(size_bytes).unwrap();
            let error = refusal(dir.path());
            assert!(matches!(error, OpenStagedError::Damaged { .. }), "{error}");
            std::fs::write(path, content).unwrap();
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(path, &elsewhere).unwrap();
        assert!(matches!(refusal(dir.path()), OpenStagedError::Io { .. }));
        let listed = list(dir.path()).unwrap();
        assert!(matches!(listed[0].state, CopyState::Damaged(_)));
        std::fs::rename(&elsewhere, path).unwrap();
    }
    assert_whole(&lookup(dir.path()), ReaderOptions::default());
    let renamed = dir.path().join("renamed");
    std::fs::rename(staged.path(), &renamed).unwrap();
    let error = StagedCopy::open(&renamed).unwrap_err();
    assert!(error.to_string().contains("was named"), "{error}");
}

#[test]
fn other_weights_are_refused_with_what_differs() {
    let dir = folder();
    stage(dir.path(), &SIZES);
    let described = Identity { description: Vec::new(), ..identity() };
    StagedCopy::lookup(dir.path(), &described).expect("a description makes no difference");
    let text = "other".to_owned();
    let others = [
        ("model", Identity { model: text.clone(), ..identity() }),
        ("weights", Identity { weights: text.clone(), ..identity() }),
        ("form", Identity { form: text, ..identity() }),
    ];
    for (field, other) in others {
        let error = StagedCopy::lookup(dir.path(), &other).unwrap_err();
        let OpenStagedError::Different { differences, .. } = &error else { panic!("{error}") };
        assert_eq!(differences.len(), 1);
        assert_eq!(differences[0].field, field);
        assert_eq!(differences[0].expected, "other");
        assert!(error.to_string().contains(field), "{error}");
    }
}

#[test]
fn verify_names_every_damaged_blob() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    let total_bytes = staged.total_bytes();
    let mut last = 0;
    let mut progress = |done_bytes, of_bytes| {
        assert!(done_bytes >= last && of_bytes == total_bytes);
        last = done_bytes;
        true
    };
    let verified = staged.verify(&mut progress).unwrap();
    assert!(verified.is_complete && verified.damaged.is_empty());
    assert_eq!((verified.done_bytes, last), (total_bytes, total_bytes));

    // Damages two blobs, one of them twice, and a byte of the padding between blobs.
    let weights = staged.path().join("weights.bin");
    flip(&weights, 3 * (2 << 20) + 65_535);
    flip(&weights, 10 * (2 << 20) + 2 * BLOCK_BYTES + 9);
    flip(&weights, 10 * (2 << 20) + 5 * BLOCK_BYTES + 9);
    flip(&weights, 4096);
    let verified = lookup(dir.path()).verify(&mut |_, _| true).unwrap();
    assert!(verified.is_complete);
    let places: Vec<(&str, u64)> = verified
        .damaged
        .iter()
        .map(|damage| match &damage.error {
            ReadError::Checksum { offset_bytes, .. } => (damage.blob.as_str(), *offset_bytes),
            error => panic!("{error}"),
        })
        .collect();
    assert_eq!(places.len(), 2, "{places:?}");
    assert_eq!(places[0], ("blob 3", 0));
    // The device determines which of the two blocks is found first.
    assert_eq!(places[1].0, "blob 9");

    let ended = staged.verify(&mut |_, _| false).unwrap();
    assert!(!ended.is_complete && ended.done_bytes < total_bytes);
}

#[test]
fn a_file_that_was_cut_while_open_is_no_hang() {
    let dir = folder();
    let size_bytes = 40 * BLOCK_BYTES;
    let staged = stage(dir.path(), &[size_bytes]);
    let blob = staged.blob("blob 0").unwrap();
    for (cut_bytes, direct) in [(4096, true), (30 * BLOCK_BYTES + 100, true), (0, false)] {
        let options = ReaderOptions { direct, queue_depth: 4, ..Default::default() };
        let mut reader = reader(&staged, options);
        let path = staged.path().join("weights.bin");
        File::options().write(true).open(path).unwrap().set_len(cut_bytes).unwrap();
        let mut buffer = AlignedBuffer::new(size_bytes as usize);
        // SAFETY: needed because the device writes through a pointer; the buffer holds the blob.
        let error = unsafe { reader.read(blob, 0..40, buffer.start()).unwrap_err() };
        let ReadError::Truncated { offset_bytes, .. } = error else { panic!("{error}") };
        assert!(offset_bytes >= cut_bytes / 4096 * 4096, "{offset_bytes}");
        let path = staged.path().join("weights.bin");
        let mut content = bytes(0, size_bytes);
        content.resize(content.len().next_multiple_of(2 << 20), 0);
        std::fs::write(path, content).unwrap();
    }
    assert_whole(&staged, ReaderOptions::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_flipped_bit_is_noticed_by_read_and_named(at in 0..SIZES[1]) {
        let dir = folder();
        let staged = stage(dir.path(), &SIZES);
        flip(&staged.path().join("weights.bin"), (2 << 20) + at);
        let mut reader = reader(&staged, ReaderOptions::default());
        let blob = staged.blob("blob 1").unwrap();
        let mut buffer = AlignedBuffer::new(SIZES[1] as usize);
        for block in 0..staged.blocks(blob) {
            // SAFETY: needed because the device writes through a pointer; it holds the blob.
            let read = unsafe { reader.read(blob, block..block + 1, buffer.start()) };
            if block != at / BLOCK_BYTES {
                prop_assert!(read.is_ok());
                continue;
            }
            let error = read.unwrap_err();
            prop_assert!(error.to_string().contains("blob 1"), "{error}");
            let ReadError::Checksum { offset_bytes, end_bytes, .. } = error else {
                panic!("{error}")
            };
            prop_assert!(offset_bytes <= at && at < end_bytes);
        }
    }
}
