//! The crate `cuda` against the stand-in: the errors of both with their messages, and the
//! properties of a real driver that the stand-in reproduces.
//!
//! The library is found through `LD_LIBRARY_PATH`, which the loader reads when a process starts.
//! Therefore each case runs in a process of its own, which is this test started again with its
//! name.

mod queues;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use cuda::{Arena, Context, CudaError, Driver, Event, IpcHandle, PinnedBuffer, RegisteredHost};
use cuda::{CuFile, DirectFile, DirectMemory, Module, Stream};

/// Environment variable that is set in the inner process.
const INSIDE: &str = "STANDIN_TEST_INSIDE";

/// Returns a folder with the stand-in under the driver's names.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let program = std::env::current_exe().expect("a test has a path");
        let library = program.with_file_name("libcuda_standin.so");
        assert!(library.is_file(), "{} is built beside the test", library.display());
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for name in ["libcuda.so", "libcuda.so.1", "libcufile.so.0"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, link).expect("a link can be made");
        }
        folder
    })
}

fn command(test: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    command.env("LD_LIBRARY_PATH", folder());
    command.envs(settings.iter().copied());
    command
}

/// Runs the test in an inner process with the stand-in and the given settings; returns true in the
/// outer process.
fn outside(test: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let output = command(test, settings).output().expect("a test can be started again");
    assert!(output.status.success(), "{test} {settings:?}:\n{}", text(&output));
    true
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn open() -> Context {
    Context::open(&Driver::open().expect("the stand-in is a driver"), 0).expect("it has a device")
}

/// Fills a pinned buffer and copies it to the device.
fn send(stream: &Stream, host: &PinnedBuffer, bytes: &[u8], to: u64) {
    assert!(bytes.len() <= host.size_bytes());
    // SAFETY: the buffer is this test's own and large enough; tests synchronise before they drop
    // it.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), host.base(), bytes.len());
        stream.copy_to_device(to, host.base(), bytes.len()).expect("a copy is taken");
    }
}

fn fetch(stream: &Stream, from: u64, count: usize) -> Vec<u8> {
    let host = PinnedBuffer::allocate(stream.context(), count).expect("there is memory");
    // SAFETY: the buffer is equally large, and read only after the stream is done.
    unsafe {
        stream.copy_to_host(host.base(), from, count).expect("a copy is taken");
        stream.synchronize().expect("nothing has failed");
        std::slice::from_raw_parts(host.base(), count).to_vec()
    }
}

#[test]
fn a_machine_without_a_driver_gets_a_sentence() {
    match Driver::open() {
        Err(CudaError::NoDriver) => {
            let sentence = CudaError::NoDriver.to_string();
            assert!(sentence.contains("libcuda.so.1") && sentence.contains("--device none"));
        }
        other => {
            println!("SKIP a_machine_without_a_driver_gets_a_sentence: it has one ({other:?})")
        }
    }
}

#[test]
fn an_old_driver_is_refused() {
    if !outside("an_old_driver_is_refused", &[("STANDIN_CUDA_VERSION", "11080")]) {
        let error = Driver::open().expect_err("11.8 is too old");
        assert_eq!(error, CudaError::TooOld { major: 11, minor: 8 });
    }
}

#[test]
fn no_device_is_refused() {
    if !outside("no_device_is_refused", &[("STANDIN_CUDA_DEVICES", "0")]) {
        assert_eq!(Driver::open().expect_err("no device"), CudaError::NoDevice);
    }
}

#[test]
fn a_wrong_index_is_refused_with_the_count() {
    if !outside("a_wrong_index_is_refused_with_the_count", &[("STANDIN_CUDA_DEVICES", "2")]) {
        let driver = Driver::open().expect("two devices");
        assert_eq!(driver.device_count(), 2);
        let error = Context::open(&driver, 2).expect_err("counted from 0");
        assert_eq!(error, CudaError::WrongIndex { index: 2, count: 2 });
    }
}

#[test]
fn an_old_device_is_refused() {
    if !outside("an_old_device_is_refused", &[("STANDIN_CUDA_CAPABILITY", "75")]) {
        let error = Context::open(&Driver::open().expect("a driver"), 0).expect_err("7.5");
        assert!(matches!(error, CudaError::OldDevice { major: 7, minor: 5, .. }), "{error}");
    }
}

#[test]
fn a_full_device_is_refused_with_the_numbers() {
    if !outside("a_full_device_is_refused_with_the_numbers", &[("STANDIN_CUDA_MEMORY", "1048576")])
    {
        let context = open();
        let held = Arena::allocate(&context, 1 << 19).expect("half of it");
        let error = Arena::allocate(&context, 1 << 20).expect_err("half of it is left");
        let (needed_bytes, free_bytes) = (1 << 20, 1 << 19);
        assert_eq!(
            error,
            CudaError::OutOfMemory { index: 0, needed_bytes, free_bytes, total_bytes: 1 << 20 }
        );
        drop(held);
        assert_eq!(context.memory_bytes(), Ok((1 << 20, 1 << 20)));
    }
}

#[test]
fn bytes_go_there_and_back() {
    if outside("bytes_go_there_and_back", &[]) {
        return;
    }
    let context = open();
    let arena = Arena::allocate(&context, 1 << 16).expect("there is room");
    let stream = Stream::new(&context).expect("a stream");
    let fresh = fetch(&stream, arena.base(), 64);
    assert!(fresh.iter().all(|byte| *byte == 0xff), "fresh memory is NaN, not zeros: {fresh:?}");
    let host = PinnedBuffer::allocate(&context, 256).expect("there is memory");
    let bytes: Vec<u8> = (0..=255).collect();
    send(&stream, &host, &bytes, arena.base() + 1024);
    // SAFETY: both ranges are in the arena and do not overlap.
    unsafe {
        stream.copy_on_device(arena.base() + 4096, arena.base() + 1024, 128).expect("a copy");
        stream.fill(arena.base() + 4096, 7, 16).expect("a filling");
    }
    let back = fetch(&stream, arena.base() + 4096, 128);
    assert_eq!((&back[..16], &back[16..]), (&[7; 16][..], &bytes[16..128]));
    // SAFETY: nothing is copied: the range leaves the arena, which must be refused.
    let refused = unsafe { stream.copy_on_device(arena.base() + (1 << 16) - 8, arena.base(), 16) };
    assert!(refused.is_err(), "a range outside the arena is refused");
}

/// Two streams write to the same location without ordering: over many rounds each of them is last
/// at some point.
#[test]
fn streams_are_not_ordered_by_themselves() {
    if outside("streams_are_not_ordered_by_themselves", &[]) {
        return;
    }
    let context = open();
    let arena = Arena::allocate(&context, 4096).expect("there is room");
    let streams = [0, 1].map(|_| Stream::new(&context).expect("a stream"));
    let hosts = [0, 1].map(|_| PinnedBuffer::allocate(&context, 64).expect("there is memory"));
    let mut last = [0, 0];
    for _ in 0..60 {
        for value in [0, 1] {
            send(&streams[value], &hosts[value], &[value as u8; 8], arena.base());
        }
        streams.iter().for_each(|stream| stream.synchronize().expect("nothing has failed"));
        last[usize::from(fetch(&streams[0], arena.base(), 1)[0])] += 1;
    }
    assert!(last[0] > 5 && last[1] > 5, "one order every time: {last:?}");
}

/// A stream that waits for a word does nothing until the word changes, and then continues.
#[test]
fn a_stream_waits_for_a_word() {
    if outside("a_stream_waits_for_a_word", &[]) {
        return;
    }
    assert!(!runs_ahead(), "the stream ran past its wait");
}

#[test]
fn a_lost_wait_is_a_race() {
    if outside("a_lost_wait_is_a_race", &[("STANDIN_CUDA_DROP_WAIT", "1")]) {
        return;
    }
    assert!(runs_ahead(), "the wait was to be lost");
}

/// Returns true if a stream passes a wait for a word that has not changed.
fn runs_ahead() -> bool {
    use shm::sync::{AtomicU32, Ordering};
    let context = open();
    let segment = shm::Segment::create("word", 4096).expect("there is memory");
    // SAFETY: the segment outlives the registration.
    let words = unsafe { RegisteredHost::new(&context, segment.base(), 4096, true) };
    let words = words.expect("it can be pinned");
    let word = segment.pointer::<AtomicU32>(64, 1);
    // SAFETY: the segment is mapped, the word in bounds and only accessed as an atomic.
    let word = unsafe { word.as_ref() };
    let (stream, event) = (Stream::new(&context).expect("a stream"), Event::new(&context));
    let event = event.expect("an event");
    word.store(u32::MAX, Ordering::Release);
    // SAFETY: the word is registered for as long as the stream lives.
    unsafe { stream.wait_value(words.address().expect("it has one") + 64, 2) }.expect("a wait");
    event.record(&stream).expect("a mark");
    let passed = (0..200).any(|_| event.is_done().expect("nothing has failed"));
    // Past the wrap of the counter, like timelines.
    word.store(2, Ordering::Release);
    while !event.is_done().expect("nothing has failed") {}
    stream.synchronize().expect("nothing has failed");
    passed
}

/// The exporting process cannot open its own handle; another one can, and sees the bytes.
#[test]
fn memory_is_opened_by_another_process() {
    const HANDLE: &str = "STANDIN_TEST_HANDLE";
    const NAME: &str = "memory_is_opened_by_another_process";
    if let Ok(text) = std::env::var(HANDLE) {
        let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex");
        let handle = IpcHandle(std::array::from_fn(byte));
        let context = open();
        let arena = Arena::open(&context, handle, 4096).expect("another process may open it");
        let stream = Stream::new(&context).expect("a stream");
        assert_eq!(fetch(&stream, arena.base(), 4), [1, 2, 3, 4]);
        // SAFETY: the arena has at least that many bytes.
        unsafe { stream.fill(arena.base(), 9, 4) }.expect("a filling");
        stream.synchronize().expect("nothing has failed");
        return;
    }
    if outside(NAME, &[]) {
        return;
    }
    let context = open();
    let arena = Arena::allocate(&context, 4096).expect("there is room");
    let (stream, host) = (Stream::new(&context), PinnedBuffer::allocate(&context, 4));
    let (stream, host) = (stream.expect("a stream"), host.expect("there is memory"));
    send(&stream, &host, &[1, 2, 3, 4], arena.base());
    stream.synchronize().expect("nothing has failed");
    let handle = arena.export().expect("it can be exported");
    assert!(Arena::open(&context, handle, 4096).is_err(), "not in the process that exports");
    let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let output = command(NAME, &[(HANDLE, &hex)]).output().expect("a process");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fetch(&stream, arena.base(), 4), [9; 4], "both have the same memory");
}

/// Uses every function of the crate at least once; the first refusal ends it.
fn tour() -> Result<(), CudaError> {
    let driver = Driver::open()?;
    let context = Context::open(&driver, 0)?;
    let arena = Arena::allocate(&context, 1 << 16)?;
    arena.export()?;
    let segment = shm::Segment::create("tour", 4096).expect("there is memory");
    // SAFETY: the segment outlives the registration.
    let words = unsafe { RegisteredHost::new(&context, segment.base(), 4096, true) }?;
    let stream = Stream::new(&context)?;
    let host = PinnedBuffer::allocate(&context, 4096)?;
    let module = Module::load(&context, ".version 8.0\n.target sm_80\n.entry idle(.param .u64 a)")?;
    module.kernel("idle")?;
    assert!(matches!(module.kernel("absent"), Err(CudaError::NoKernel { .. })));
    let events = [Event::new(&context)?, Event::new(&context)?];
    events[0].record(&stream)?;
    // SAFETY: ranges are in the arena and in the buffer, which outlive the stream.
    unsafe {
        stream.copy_to_device(arena.base(), host.base(), 64)?;
        stream.copy_on_device(arena.base() + 64, arena.base(), 64)?;
        stream.fill(arena.base() + 128, 0, 64)?;
        stream.copy_to_host(host.base(), arena.base(), 64)?;
        stream.wait_value(words.address()?, 0)?;
    }
    events[1].record(&stream)?;
    while !events[1].is_done()? {}
    events[1].elapsed_ns(&events[0])?;
    stream.synchronize()
}

#[test]
fn a_refusal_of_any_call_is_an_error_with_its_name() {
    const NAME: &str = "a_refusal_of_any_call_is_an_error_with_its_name";
    const EXPECTED: &str = "STANDIN_TEST_EXPECTED";
    if std::env::var_os(INSIDE).is_some() {
        let outcome = tour();
        match std::env::var(EXPECTED) {
            Ok(call) => {
                let error = outcome.expect_err("the call was to be refused");
                assert!(error.to_string().contains(&call), "{error}");
            }
            Err(_) => outcome.expect("nothing is refused"),
        }
        return;
    }
    let log = folder().join("calls");
    let log_name = log.to_str().expect("a plain path");
    let mut child = command(NAME, &[("STANDIN_CUDA_LOG", log_name)]).spawn().expect("a process");
    let id = child.id();
    assert!(child.wait().expect("it ends").success());
    let calls = std::fs::read_to_string(format!("{log_name}.{id}")).expect("calls are logged");
    let mut calls: Vec<&str> = calls.lines().filter(|line| !line.starts_with("note: ")).collect();
    calls.sort_unstable();
    calls.dedup();
    // Failures to release resources do not matter, since the run is over.
    let kept = |call: &&str| {
        !["Free", "Destroy", "Unload", "Unregister", "Release", "Close"]
            .iter()
            .any(|end| call.contains(end))
    };
    calls.retain(kept);
    assert!(calls.len() >= 24, "only {calls:?}");
    for call in calls {
        let failure = format!("{call}:1:999");
        let settings = [("STANDIN_CUDA_FAIL", failure.as_str()), (EXPECTED, call)];
        let output = command(NAME, &settings).output().expect("a process");
        assert!(output.status.success(), "{call}:\n{}", text(&output));
    }
}

/// Returns a file of 40,000 bytes that repeat with a period of 251.
fn file_of_bytes() -> (Vec<u8>, std::fs::File) {
    let bytes: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("direct{}", std::process::id()));
    std::fs::write(&path, &bytes).expect("it can be written");
    let file = std::fs::File::open(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is open");
    (bytes, file)
}

#[test]
fn cufile_reads_files_to_device_memory() {
    if outside("cufile_reads_files_to_device_memory", &[("STANDIN_CUFILE_SHORT", "4")]) {
        return;
    }
    let (context, (bytes, file)) = (open(), file_of_bytes());
    let arena = Arena::allocate(&context, 1 << 16).expect("it is there");
    let cufile = CuFile::open().expect("it is there");
    assert_eq!(cufile.describe(), "cuFile");
    let again = CuFile::open().expect_err("once in a process").to_string();
    assert!(again.contains("cuFileDriverOpen"), "{again}");
    let memory = DirectMemory::new(&cufile, &arena).expect("an allocation");
    let file = DirectFile::new(&cufile, file).expect("a file");
    let stream = Stream::new(&context).expect("a stream");
    // SAFETY: the ranges are in the arena, or are refused; nothing else uses it.
    let read = |to, from, size| unsafe { file.read(arena.base(), to, from, size) };
    for (to, from, size) in [(0, 0, 4096), (8192, 4096, 20_000), (40_960, 36_864, 4096)] {
        let expected = &bytes[from as usize..(from as usize + size).min(bytes.len())];
        let count = read(to, from, size).expect("it is read");
        assert_eq!(count, expected.len(), "to the end of the file");
        assert_eq!(fetch(&stream, arena.base() + to, count), expected);
    }
    assert_eq!(read(0, 0, 16_384).ok(), Some(8192), "a short one");
    let refused = read(1 << 16, 0, 1).expect_err("behind the arena").to_string();
    assert!(refused.contains("cuFileRead failed: error 5012"), "{refused}");
    drop((memory, file));
}

#[test]
fn refusals_of_cufile_are_sentences() {
    let refused = |failure: &str, said: &str| {
        let set = [("STANDIN_CUDA_FAIL", failure), ("SAID", said)];
        assert!(outside("refusals_of_cufile_are_sentences", &set));
    };
    if std::env::var_os(INSIDE).is_none() {
        refused("cuFileDriverOpen:1:5001", "the nvidia-fs driver is not loaded (error 5001)");
        refused("cuFileDriverGetProperties:1:5011", "the CUDA driver failed");
        refused("cuFileHandleRegister:1:5008", "the file system or the drive is not supported");
        refused("cuFileBufRegister:1:5036", "device memory cannot be pinned");
        refused("cuFileRead:1:5030", "cuFile call cuFileRead failed: error 5030");
        return refused("cuFileRead:1:5", "Input/output error");
    }
    let (context, (_, file)) = (open(), file_of_bytes());
    let arena = Arena::allocate(&context, 1 << 16).expect("it is there");
    let tried = || -> Result<(), String> {
        let cufile = CuFile::open().map_err(|error| error.to_string())?;
        let file = DirectFile::new(&cufile, file).map_err(|error| error.to_string())?;
        DirectMemory::new(&cufile, &arena).map_err(|error| error.to_string())?;
        // SAFETY: the range is in the arena, and nothing else uses it.
        let read = unsafe { file.read(arena.base(), 0, 0, 4096) };
        read.map(drop).map_err(|error| error.to_string())
    };
    let (said, expected) = (tried().expect_err("refused"), std::env::var("SAID").expect("set"));
    assert!(said.contains(&expected), "{said}");
}
