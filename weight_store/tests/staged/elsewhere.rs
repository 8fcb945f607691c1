//! Reads to memory that this process knows only by its address, such as a device's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::common::*;
use weight_store::device::{ReadRequest, ReadSource, ThreadPoolIo};
use weight_store::{BLOCK_BYTES, ReadError, Reader, ReaderError, ReaderOptions, StagedCopy};

/// Address that is neither page-aligned nor mapped.
const BASE: usize = 0x40;

/// A device with some bytes of memory, starting at address `BASE`.
#[derive(Debug, Clone)]
struct ForeignMemory {
    file: Arc<File>,
    memory: Arc<Mutex<Vec<u8>>>,
    entered: Arc<Mutex<u32>>,
    is_closed: bool,
}

impl ForeignMemory {
    fn new(staged: &StagedCopy, size_bytes: u64) -> ForeignMemory {
        let file = File::open(staged.path().join("weights.bin")).unwrap();
        // The bytes after the last block of a blob fill its page.
        let memory = vec![0xff; size_bytes.next_multiple_of(4096) as usize];
        ForeignMemory {
            file: Arc::new(file),
            memory: Arc::new(Mutex::new(memory)),
            entered: Arc::default(),
            is_closed: false,
        }
    }

    fn reader(&self, staged: &StagedCopy, options: &ReaderOptions) -> Result<Reader, ReaderError> {
        let io = ThreadPoolIo::new(self.clone(), options.queue_depth, 3).unwrap();
        Reader::with_io(staged, Box::new(io), "a device", options)
    }
}

impl ReadSource for ForeignMemory {
    fn prepare_thread(&self) -> io::Result<()> {
        *self.entered.lock().unwrap() += 1;
        if self.is_closed { Err(io::Error::other("it is closed")) } else { Ok(()) }
    }

    unsafe fn read(&self, request: &ReadRequest) -> io::Result<u32> {
        let mut bytes = vec![0; request.size_bytes as usize];
        let read = self.file.read_at(&mut bytes, request.offset_bytes)?;
        let first = request.to.as_ptr().addr() - BASE;
        self.memory.lock().unwrap()[first..first + read].copy_from_slice(&bytes[..read]);
        Ok(read as u32)
    }
}

fn address() -> NonNull<u8> {
    NonNull::new(std::ptr::without_provenance_mut(BASE)).unwrap()
}

#[test]
fn blocks_arrive_where_they_belong() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    for faults in ["", "short@1,short@3"] {
        let options = ReaderOptions {
            queue_depth: 5,
            request_bytes: 2 * BLOCK_BYTES,
            faults: faults.parse().unwrap(),
            ..ReaderOptions::default()
        };
        for blob in staged.blobs() {
            let size_bytes = staged.size_bytes(blob);
            let device = ForeignMemory::new(&staged, size_bytes);
            let mut reader = device.reader(&staged, &options).unwrap();
            let described = reader.describe();
            assert!(described.starts_with("a device"), "{described}");
            assert!(described.contains("not verified"), "{described}");
            let blocks = staged.blocks(blob);
            // In two parts, the later one first.
            for part in [blocks / 2..blocks, 0..blocks / 2] {
                // SAFETY: needed because the call is unsafe; the device has enough memory for the
                // blob.
                unsafe { reader.read(blob, part, address()) }.unwrap();
            }
            let memory = device.memory.lock().unwrap();
            let expected = bytes(blob.0 as usize, size_bytes);
            assert!(memory[..expected.len()] == expected, "{} {faults}", staged.name(blob));
            for (block, of_blob) in
                memory[..expected.len()].chunks(BLOCK_BYTES as usize).enumerate()
            {
                assert!(staged.is_block(blob, block as u64, of_blob));
                let mut other = of_blob.to_vec();
                other[0] ^= 1;
                assert!(!staged.is_block(blob, block as u64, &other));
            }
        }
    }
}

#[test]
fn what_fails_is_said() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    let blob = staged.blob("blob 6").unwrap();
    let device = ForeignMemory::new(&staged, staged.size_bytes(blob));
    let said = |device: &ForeignMemory, faults: &str| {
        let options = ReaderOptions { faults: faults.parse().unwrap(), ..Default::default() };
        let mut reader = device.reader(&staged, &options).map_err(|error| error.to_string())?;
        // SAFETY: needed because the call is unsafe; the device has enough memory for the blob.
        let read = unsafe { reader.read(blob, 0..staged.blocks(blob), address()) };
        read.map_err(|error: ReadError| error.to_string())
    };
    assert_eq!(said(&device, ""), Ok(()));
    assert_eq!(*device.entered.lock().unwrap(), 3, "each thread");
    let failed = said(&device, "eio@2").unwrap_err();
    assert!(failed.contains("Input/output error"), "{failed}");
    let failed = said(&device, "flip@2").unwrap_err();
    assert!(failed.contains("cannot be changed"), "{failed}");
    let closed = ForeignMemory { is_closed: true, ..device };
    let failed = said(&closed, "").unwrap_err();
    assert!(failed.contains("it is closed"), "{failed}");
}
