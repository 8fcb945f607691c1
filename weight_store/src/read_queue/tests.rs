//! Tests with a device that completes in reverse order, is interrupted, or refuses requests: no
//! request remains in flight.

use std::sync::{Arc, Mutex};

use crate::buffer::AlignedBuffer;
use crate::device::BufferRegistration;
use crate::identity::Identity;
use crate::layout::BlobSize;
use crate::writer::Writer;

use super::*;

/// Counters of a device.
#[derive(Debug, Default)]
struct Log {
    submitted: u32,
    in_flight: u32,
    in_flight_max: u32,
    /// Number of requests that completed with a transient error.
    put_off: u32,
}

/// A device that completes the last request first.
#[derive(Debug)]
struct ReorderingIo {
    file: File,
    requests: Vec<ReadRequest>,
    log: Arc<Mutex<Log>>,
    /// Transient error of every completion for which the number of submissions is not a multiple of
    /// 3.
    passing: Option<Errno>,
    /// Number of the submission that is refused.
    refused: u32,
}

impl Io for ReorderingIo {
    unsafe fn register(&mut self, _: &[(NonNull<u8>, usize)]) -> BufferRegistration {
        BufferRegistration::Unavailable { reason: "not here".to_owned() }
    }

    unsafe fn submit(&mut self, request: ReadRequest) -> io::Result<()> {
        let mut log = self.log.lock().unwrap();
        log.submitted += 1;
        if log.submitted == self.refused {
            return Err(Errno::BADF.into());
        }
        log.in_flight += 1;
        log.in_flight_max = log.in_flight_max.max(log.in_flight);
        self.requests.push(request);
        Ok(())
    }

    fn complete(&mut self) -> ReadCompletion {
        let request = self.requests.pop().expect("called only while a request is in flight");
        let mut log = self.log.lock().unwrap();
        log.in_flight -= 1;
        if let Some(errno) = self.passing
            && !log.submitted.is_multiple_of(3)
        {
            log.put_off += 1;
            return ReadCompletion { tag: request.tag, result: Err(errno.into()) };
        }
        let size_bytes = request.size_bytes as usize;
        // SAFETY: needed to write through a pointer, which the submitter of the request allowed.
        let to = unsafe { std::slice::from_raw_parts_mut(request.to.as_ptr(), size_bytes) };
        let read = std::os::unix::fs::FileExt::read_at(&self.file, to, request.offset_bytes);
        ReadCompletion { tag: request.tag, result: read.map(|size_bytes| size_bytes as u32) }
    }
}

const SIZE_BYTES: u64 = 30 * BLOCK_BYTES - 100;

fn read_all(passing: Option<Errno>, refused: u32) -> (Result<(), ReadError>, Log) {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity {
        name: "test".to_owned(),
        model: String::new(),
        weights: String::new(),
        form: String::new(),
        description: Vec::new(),
    };
    let blob = BlobSize { name: "blob".to_owned(), size_bytes: SIZE_BYTES };
    let bytes: Vec<u8> = (0..SIZE_BYTES).map(|i| ((i * i) >> 7) as u8).collect();
    let mut writer = Writer::begin(dir.path(), &identity, &[blob]).unwrap();
    writer.write(0, &bytes).unwrap();
    let staged = writer.finish().unwrap();
    let log = Arc::new(Mutex::new(Log::default()));
    let file = File::open(staged.weights_path()).unwrap();
    let io = ReorderingIo { file, requests: Vec::new(), log: Arc::clone(&log), passing, refused };
    let mut queue = ReadQueue::new(staged, Box::new(io), None, 4, BLOCK_BYTES);
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    // SAFETY: needed because the device writes through a pointer; the buffer holds the blob.
    let read = unsafe { queue.read(BlobId(0), &[(0..30, 0)], buffer.start()) };
    assert_eq!(queue.free.len(), 4, "all slots are free again");
    assert!(read.is_err() || buffer.bytes()[..bytes.len()] == bytes);
    drop(queue);
    let log = Arc::into_inner(log).unwrap().into_inner().unwrap();
    assert_eq!(log.in_flight, 0);
    assert_eq!(log.in_flight_max, 4, "the queue is kept full");
    (read, log)
}

#[test]
fn order_does_not_matter() {
    let (read, log) = read_all(None, 0);
    read.unwrap();
    assert_eq!(log.submitted, 30);
}

#[test]
fn what_was_interrupted_is_repeated() {
    for errno in [Errno::INTR, Errno::AGAIN] {
        let (read, log) = read_all(Some(errno), 0);
        read.unwrap();
        assert!(log.put_off > 0);
        assert_eq!(log.submitted, 30 + log.put_off);
    }
}

#[test]
fn a_refused_submission_waits_for_the_others() {
    let (read, log) = read_all(None, 20);
    let error = read.unwrap_err();
    assert!(matches!(error, ReadError::Io { .. }), "{error}");
    assert_eq!(log.submitted, 20);
}
