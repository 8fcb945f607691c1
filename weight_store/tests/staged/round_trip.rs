//! Staged bytes are read back, whole and in parts, by every way of reading.

use std::ops::Range;

use crate::common::*;
use weight_store::{
    AlignedBuffer, BLOB_ALIGN_BYTES, BLOCK_BYTES, BlobSize, BufferRegistration, CopyState, IoKind,
    Lookup, PAGE_BYTES, ReadError, Reader, ReaderError, ReaderOptions, StageError, StagedCopy,
    Writer, list, remove,
};

/// Returns the options for every way of reading that this machine allows.
fn ways(staged: &StagedCopy) -> Vec<ReaderOptions> {
    let mut ways = Vec::new();
    for io in [IoKind::Uring, IoKind::Threads, IoKind::Auto] {
        for direct in [true, false] {
            for (queue_depth, request_bytes) in
                [(1, BLOCK_BYTES), (3, 2 * BLOCK_BYTES), (8, 1 << 20)]
            {
                let options =
                    ReaderOptions { queue_depth, request_bytes, io, direct, ..Default::default() };
                match Reader::open(staged, options.clone()) {
                    Ok(_) => ways.push(options),
                    Err(error @ ReaderError::Refused { .. }) if io == IoKind::Uring => {
                        eprintln!("not tested: {error}");
                    }
                    Err(error) => panic!("{options:?}: {error}"),
                }
            }
        }
    }
    ways
}

#[test]
fn all_blobs_come_back_by_every_way() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    assert_eq!(staged.blobs().len(), SIZES_BYTES.len());
    assert_eq!(staged.total_bytes(), SIZES_BYTES.iter().sum::<u64>());
    for (blob, size_bytes) in staged.blobs().zip(SIZES_BYTES) {
        assert_eq!(staged.blob(staged.name(blob)), Some(blob));
        assert_eq!(staged.size_bytes(blob), size_bytes);
        assert_eq!(staged.blocks(blob), size_bytes.div_ceil(BLOCK_BYTES));
    }
    assert_eq!(staged.blob("no such blob"), None);
    let again = lookup(dir.path());
    assert_eq!(again.identity(), &identity());
    for options in ways(&again) {
        assert_whole(&again, options);
    }
}

#[test]
fn files_are_as_described() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    let weights = std::fs::read(staged.path().join("weights.bin")).unwrap();
    let mut offset_bytes = 0;
    for (index, size_bytes) in SIZES_BYTES.into_iter().enumerate() {
        let expected = bytes(index, size_bytes);
        assert!(weights[offset_bytes as usize..].starts_with(&expected), "blob {index}");
        offset_bytes = (offset_bytes + size_bytes).next_multiple_of(BLOB_ALIGN_BYTES);
    }
    assert_eq!(weights.len() as u64, offset_bytes);
    let mut taken_bytes = 0;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(staged.path()).unwrap().map(Result::unwrap) {
        taken_bytes += entry.metadata().unwrap().len();
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["blocks.bin", "index.json", "weights.bin"]);
    assert!(taken_bytes <= weight_store::size_bytes(&blobs(&SIZES_BYTES)));
}

#[test]
fn parts_go_to_their_place_and_nowhere_else() {
    let dir = folder();
    let size_bytes = 20 * BLOCK_BYTES + 777;
    let staged = stage(dir.path(), &[5, size_bytes]);
    let blob = staged.blob("blob 1").unwrap();
    let expected = bytes(1, size_bytes);
    for options in ways(&staged) {
        let mut reader = reader(&staged, options);
        for blocks in [0..1, 3..3, 4..9, 0..21, 20..21, 19..21] {
            let mut buffer = AlignedBuffer::new(size_bytes as usize);
            buffer.bytes_mut().fill(0xee);
            // SAFETY: needed because the device writes through a pointer; it holds the blob.
            unsafe { reader.read(blob, blocks.clone(), buffer.start()).unwrap() };
            let first = (blocks.start * BLOCK_BYTES) as usize;
            let end = (blocks.end * BLOCK_BYTES).min(size_bytes) as usize;
            assert!(buffer.bytes()[first..end] == expected[first..end], "{blocks:?}");
            let rounded = end.next_multiple_of(PAGE_BYTES as usize);
            assert!(buffer.bytes()[..first].iter().all(|byte| *byte == 0xee));
            assert!(buffer.bytes()[rounded..].iter().all(|byte| *byte == 0xee));
        }
        let mut buffer = AlignedBuffer::new(size_bytes as usize);
        // SAFETY: needed because the call is unsafe; the blob has no such blocks, so none is read.
        let error = unsafe { reader.read(blob, 20..22, buffer.start()).unwrap_err() };
        assert!(matches!(error, ReadError::NoSuchBlocks { blocks: 21, .. }), "{error}");
        // SAFETY: needed because the call is unsafe; the destination is refused, so nothing is
        // read.
        let error = unsafe { reader.read(blob, 0..1, buffer.start().add(512)).unwrap_err() };
        assert!(matches!(error, ReadError::Unaligned { .. }), "{error}");
    }
}

#[test]
fn ranges_go_to_their_places_and_nowhere_else() {
    let dir = folder();
    let size_bytes = 20 * BLOCK_BYTES + 777;
    let staged = stage(dir.path(), &[5, size_bytes]);
    let blob = staged.blob("blob 1").unwrap();
    let expected = bytes(1, size_bytes);
    let expected: Vec<&[u8]> = expected.chunks(BLOCK_BYTES as usize).collect();
    for options in ways(&staged) {
        let mut reader = reader(&staged, options);
        // Ranges of blocks, and the block of the destination that each is read to.
        for ranges in [
            &[][..],
            &[(2..3, 2), (3..3, 3), (5..9, 5), (20..21, 20)],
            &[(4..7, 1), (0..1, 20), (8..9, 0), (6..11, 9), (20..21, 15)],
        ] {
            let mut buffer = AlignedBuffer::new(size_bytes as usize + BLOCK_BYTES as usize);
            buffer.bytes_mut().fill(0xee);
            let at = |(blocks, to): &(Range<u64>, u64)| (blocks.clone(), to * BLOCK_BYTES);
            let placed: Vec<(Range<u64>, u64)> = ranges.iter().map(at).collect();
            // SAFETY: needed because the device writes through a pointer; it holds the blocks.
            unsafe { reader.read_ranges(blob, &placed, buffer.start()).unwrap() };
            for (to, found) in (0..).zip(buffer.bytes().chunks(BLOCK_BYTES as usize)) {
                let block = ranges.iter().find_map(|(blocks, first)| {
                    blocks.clone().find(|block| first + (block - blocks.start) == to)
                });
                match block {
                    Some(block) => assert!(found.starts_with(expected[block as usize]), "{block}"),
                    None => assert!(found.iter().all(|byte| *byte == 0xee), "{ranges:?} {to}"),
                }
            }
        }
        let mut buffer = AlignedBuffer::new(size_bytes as usize);
        let absent = [(3..5, 0), (20..22, 5 * BLOCK_BYTES)];
        // SAFETY: needed because the call is unsafe; a range is refused, so nothing is read.
        let error = unsafe { reader.read_ranges(blob, &absent, buffer.start()).unwrap_err() };
        assert!(matches!(error, ReadError::NoSuchBlocks { blocks: 21, .. }), "{error}");
        let unaligned = [(0..1, 0), (1..2, 512)];
        // SAFETY: needed because the call is unsafe; a destination is refused, so nothing is read.
        let error = unsafe { reader.read_ranges(blob, &unaligned, buffer.start()).unwrap_err() };
        assert!(matches!(error, ReadError::Unaligned { .. }), "{error}");
    }
}

#[test]
fn registered_buffers_give_the_same_bytes() {
    let dir = folder();
    let sizes_bytes = [3 << 20, 5 << 20];
    let staged = stage(dir.path(), &sizes_bytes);
    for options in ways(&staged) {
        let mut reader = reader(&staged, options);
        let mut registered = AlignedBuffer::new(3 << 20);
        let mut other = AlignedBuffer::new(5 << 20);
        for _ in 0..2 {
            // SAFETY: needed because pages are pinned; the buffer lives as long as the reader.
            let answer = unsafe { reader.register(&[(registered.start(), registered.len())]) };
            match answer {
                BufferRegistration::Active => {
                    assert!(reader.describe().ends_with("registered buffers"));
                }
                BufferRegistration::Unavailable { reason } => assert!(!reason.is_empty()),
            }
            registered.bytes_mut().fill(0);
            for (blob, buffer) in staged.blobs().zip([&mut registered, &mut other]) {
                let blocks = 0..staged.blocks(blob);
                // SAFETY: needed because the device writes through a pointer; it holds the blob.
                unsafe { reader.read(blob, blocks, buffer.start()).unwrap() };
                let size_bytes = sizes_bytes[blob.0 as usize];
                assert!(buffer.bytes() == bytes(blob.0 as usize, size_bytes));
            }
        }
        drop(reader);
    }
}

#[test]
fn stagings_are_listed_and_removed() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("something-else")).unwrap();
    assert!(list(dir.path()).unwrap().is_empty());
    let staged = stage(dir.path(), &[100, 70_000]);
    let other = weight_store::Identity { name: "another".to_owned(), ..identity() };
    let mut writer = Writer::begin(dir.path(), &other, &blobs(&[100, 70_000])).unwrap();
    writer.write(1, &bytes(1, 70_000)).unwrap();
    let damaged = dir.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::copy(staged.path().join("index.json"), damaged.join("index.json")).unwrap();
    let listed = list(dir.path()).unwrap();
    let names: Vec<&str> = listed.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a-model-bf16-0123", "another", "damaged"]);
    assert!(
        matches!(&listed[0].state, CopyState::Complete(whole) if whole.total_bytes() == 70_100)
    );
    let CopyState::Partial(progress) = listed[1].state else { panic!("{listed:?}") };
    assert_eq!((progress.done_bytes, progress.total_bytes), (70_000, 70_100));
    assert!(progress.is_being_written);
    assert!(matches!(&listed[2].state, CopyState::Damaged(_)));
    remove(dir.path(), "another").unwrap_err();
    drop(writer);
    for name in names {
        assert!(remove(dir.path(), name).unwrap(), "{name}");
    }
    assert!(list(dir.path()).unwrap().is_empty());
    for name in ["another", "..", "../x", ""] {
        assert!(!remove(dir.path(), name).unwrap(), "{name}");
    }
    assert!(matches!(StagedCopy::lookup(dir.path(), &identity()), Ok(Lookup::Missing)));
}

#[test]
fn what_cannot_be_staged_is_refused() {
    let dir = folder();
    let begin = |identity: &weight_store::Identity, blobs: &[BlobSize]| {
        Writer::begin(dir.path(), identity, blobs).map(drop).unwrap_err()
    };
    let named = weight_store::Identity { name: "../x".to_owned(), ..identity() };
    assert!(matches!(begin(&named, &[]), StageError::Name { .. }));
    let twice = [blobs(&[1]), blobs(&[2])].concat();
    assert!(matches!(begin(&identity(), &twice), StageError::SameName { .. }));
    assert!(matches!(begin(&identity(), &blobs(&[u64::MAX])), StageError::TooLarge));
    let error = begin(&identity(), &blobs(&[1 << 60]));
    assert!(matches!(error, StageError::NoSpace { needed_bytes, .. } if needed_bytes >= 1 << 60));
    let no_folder = Writer::begin(&dir.path().join("none"), &identity(), &[]).unwrap_err();
    assert!(matches!(no_folder, StageError::NoFolder { .. }));

    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&[10, 20])).unwrap();
    assert!(matches!(begin(&identity(), &blobs(&[10, 20])), StageError::Locked { .. }));
    assert!(matches!(writer.write(0, &[0; 9]), Err(StageError::WrongSize { .. })));
    writer.write(0, &[0; 10]).unwrap();
    assert!(matches!(writer.write(0, &[0; 10]), Err(StageError::NotMissing { index: 0 })));
    assert!(matches!(writer.write(2, &[0; 10]), Err(StageError::NotMissing { index: 2 })));
    let error = writer.finish().unwrap_err();
    assert!(matches!(&error, StageError::Unfinished { missing: 1, first } if first == "blob 1"));
    let mut writer = Writer::begin(dir.path(), &identity(), &blobs(&[10, 20])).unwrap();
    assert_eq!(writer.missing(), [1]);
    writer.write(1, &[0; 20]).unwrap();
    writer.finish().unwrap();
    assert!(matches!(begin(&identity(), &blobs(&[10, 20])), StageError::Exists { .. }));
}

#[test]
fn options_out_of_range_are_refused() {
    let dir = folder();
    let staged = stage(dir.path(), &[1]);
    for (queue_depth, request_bytes) in [(0, 1 << 20), (1 << 20, 1 << 20), (1, 0), (1, 4096)] {
        let options = ReaderOptions { queue_depth, request_bytes, ..Default::default() };
        let error = Reader::open(&staged, options).unwrap_err();
        assert!(matches!(error, ReaderError::Options { .. }), "{error}");
    }
}
