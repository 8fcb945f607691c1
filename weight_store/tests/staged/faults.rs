//! Devices that fail, read short, corrupt data or are slow, and a kernel that refuses io_uring.

use std::process::Command;
use std::time::Instant;

use crate::common::*;
use weight_store::{
    AlignedBuffer, BLOCK_BYTES, BlobId, Faults, IoKind, ReadError, Reader, ReaderError,
    ReaderOptions, StagedCopy,
};

const SIZE_BYTES: u64 = 20 * BLOCK_BYTES + 5;

fn with_faults(io: IoKind, faults: &str) -> ReaderOptions {
    let faults: Faults = faults.parse().unwrap();
    ReaderOptions {
        io,
        queue_depth: 4,
        request_bytes: 2 * BLOCK_BYTES,
        faults,
        ..Default::default()
    }
}

fn read(reader: &mut Reader, buffer: &mut AlignedBuffer) -> Result<(), ReadError> {
    buffer.bytes_mut().fill(0xee);
    let blocks = 0..reader.staged().blocks(BlobId(0));
    // SAFETY: needed because the device writes through a pointer; the buffer holds the blob.
    unsafe { reader.read(BlobId(0), blocks, buffer.start()) }
}

fn assert_read(reader: &mut Reader, buffer: &mut AlignedBuffer) {
    read(reader, buffer).unwrap();
    assert!(buffer.bytes()[..SIZE_BYTES as usize] == bytes(0, SIZE_BYTES));
}

/// Returns a reader for each way of reading that this machine allows.
fn readers(staged: &StagedCopy, faults: &str) -> Vec<Reader> {
    let kinds = [IoKind::Uring, IoKind::Threads];
    let opened = kinds.map(|io| Reader::open(staged, with_faults(io, faults)));
    opened
        .into_iter()
        .filter_map(|reader| match reader {
            Ok(reader) => Some(reader),
            Err(ReaderError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        })
        .collect()
}

#[test]
fn a_failed_request_fails_the_read_and_the_next_read_works() {
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    for number in [1, 3, 11] {
        for mut reader in readers(&staged, &format!("eio@{number}")) {
            let error = read(&mut reader, &mut buffer).unwrap_err();
            let ReadError::Io { ref blob, offset_bytes, .. } = error else { panic!("{error}") };
            assert_eq!(blob, "blob 0");
            assert_eq!(offset_bytes, (number - 1) * 2 * BLOCK_BYTES);
            assert!(error.to_string().contains("os error 5"), "{error}");
            assert_read(&mut reader, &mut buffer);
        }
    }
}

#[test]
fn short_reads_are_continued() {
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    // The 11th request is the last page; the 12th continues after a short one.
    for faults in ["short@1", "short@1,short@5,short@12,short@13", "short@2,short@11,short@12"] {
        for mut reader in readers(&staged, faults) {
            assert_read(&mut reader, &mut buffer);
        }
    }
}

#[test]
fn a_flipped_bit_is_named() {
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    for mut reader in readers(&staged, "flip@6") {
        assert!(reader.describe().contains("flip@6"));
        let error = read(&mut reader, &mut buffer).unwrap_err();
        let ReadError::Checksum { ref blob, offset_bytes, end_bytes, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(blob, "blob 0");
        assert_eq!((offset_bytes, end_bytes), (10 * BLOCK_BYTES, 11 * BLOCK_BYTES));
        assert_read(&mut reader, &mut buffer);
    }
}

#[test]
fn a_rate_is_not_exceeded() {
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    for mut reader in readers(&staged, "rate=10M") {
        let begin = Instant::now();
        assert_read(&mut reader, &mut buffer);
        assert_read(&mut reader, &mut buffer);
        let rate = 2.0 * SIZE_BYTES as f64 / begin.elapsed().as_secs_f64();
        // The rate is an upper bound, regardless of how busy this machine is.
        assert!(rate <= 10.0e6, "{rate}");
    }
}

/// Child process with a request that never completes: the read does not return, and the process can
/// be killed.
#[test]
#[ignore = "run by silence_ends_with_the_process"]
fn child_meets_silence() {
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut reader = reader(&staged, with_faults(IoKind::Auto, "silence@3"));
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    println!("\nreading");
    let _ = read(&mut reader, &mut buffer);
    println!("returned");
}

fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1", "--ignored"]);
    command
}

#[test]
fn silence_ends_with_the_process() {
    use std::io::{BufRead, BufReader, Read};
    let mut child =
        child("faults::child_meets_silence").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "reading" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child reads");
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("returned"), "{rest}");
}

/// Makes the kernel refuse io_uring to this process with EPERM, as containers do.
fn refuse_uring() {
    let word = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let statement =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, word, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: needed because the calls are raw. The program is in this stack frame while it is
    // read.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    println!("\nfilter {}", if refused { "set" } else { "refused" });
}

#[test]
#[ignore = "run by without_io_uring_threads_read"]
fn child_has_no_uring() {
    refuse_uring();
    let dir = folder();
    let staged = stage(dir.path(), &[SIZE_BYTES]);
    let mut reader = reader(&staged, ReaderOptions::default());
    let mut buffer = AlignedBuffer::new(SIZE_BYTES as usize);
    assert_read(&mut reader, &mut buffer);
    println!("how: {}", reader.describe());
    let uring = ReaderOptions { io: IoKind::Uring, ..Default::default() };
    println!("uring: {}", Reader::open(&staged, uring).map(drop).unwrap_err());
}

#[test]
fn without_io_uring_threads_read() {
    let output = child("faults::child_has_no_uring").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("filter refused") {
        eprintln!("not tested: this system sets no filter on system calls");
        return;
    }
    assert!(output.status.success(), "{text}");
    assert!(text.contains("how: pread, 8 threads (io_uring is refused here: "), "{text}");
    assert!(text.contains("uring: io_uring cannot be used here"), "{text}");
}
