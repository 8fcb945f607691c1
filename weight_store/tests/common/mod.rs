//! Small staged copies in temporary folders, on the drive of the build.
#![allow(dead_code, reason = "every test program uses a part of it")]

use std::path::Path;

use tempfile::TempDir;
use weight_store::{
    AlignedBuffer, BlobSize, Identity, Lookup, Reader, ReaderOptions, StagedCopy, Writer,
};

/// Sizes around the boundaries of pages, blocks, requests and the alignment of blobs.
pub const SIZES_BYTES: [u64; 10] =
    [1, 63, 4096, 65_536, 65_537, (1 << 20) + 5, 3 << 20, 0, (2 << 20) + 65_535, 9_999_999];

pub fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn identity() -> Identity {
    Identity {
        name: "a-model-bf16-0123".to_owned(),
        model: "a model".to_owned(),
        weights: "0123".to_owned(),
        form: "bf16".to_owned(),
        description: vec![("source".to_owned(), "made up".to_owned())],
    }
}

pub fn blobs(sizes_bytes: &[u64]) -> Vec<BlobSize> {
    let sizes = sizes_bytes.iter().enumerate();
    sizes.map(|(i, size)| BlobSize { name: format!("blob {i}"), size_bytes: *size }).collect()
}

/// Returns the bytes of a blob, which differ for every blob and offset.
pub fn bytes(blob: usize, size_bytes: u64) -> Vec<u8> {
    let mut state = (blob as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(size_bytes as usize + 8);
    while (out.len() as u64) < size_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(size_bytes as usize);
    out
}

pub fn write_missing(writer: &mut Writer, sizes_bytes: &[u64]) {
    for index in writer.missing() {
        writer.write(index, &bytes(index, sizes_bytes[index])).unwrap();
    }
}

pub fn stage(dir: &Path, sizes_bytes: &[u64]) -> StagedCopy {
    let mut writer = Writer::begin(dir, &identity(), &blobs(sizes_bytes)).unwrap();
    write_missing(&mut writer, sizes_bytes);
    writer.finish().unwrap()
}

pub fn lookup(dir: &Path) -> StagedCopy {
    match StagedCopy::lookup(dir, &identity()).unwrap() {
        Lookup::Complete(staged) => staged,
        other => panic!("{other:?}"),
    }
}

pub fn reader(staged: &StagedCopy, options: ReaderOptions) -> Reader {
    Reader::open(staged, options).unwrap()
}

/// Reads all blobs and compares them with the bytes that were staged.
pub fn assert_whole(staged: &StagedCopy, options: ReaderOptions) {
    let mut reader = reader(staged, options);
    for blob in staged.blobs() {
        let mut buffer = AlignedBuffer::new(staged.size_bytes(blob) as usize);
        // SAFETY: needed because the device writes through a pointer; the buffer holds the blob.
        unsafe { reader.read(blob, 0..staged.blocks(blob), buffer.start()).unwrap() };
        let expected = bytes(blob.0 as usize, staged.size_bytes(blob));
        assert!(buffer.bytes()[..expected.len()] == expected, "{}", staged.name(blob));
    }
}
