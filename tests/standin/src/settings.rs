//! Settings of a test, from environment variables that are read once.

use std::path::PathBuf;
use std::sync::OnceLock;

/// An injected failure: the `nth` call of `function` (from 1) returns `code`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InjectedFailure {
    pub(crate) function: String,
    pub(crate) nth: u64,
    pub(crate) code: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `STANDIN_CUDA_DEVICES`
    pub(crate) devices: i32,
    /// `STANDIN_CUDA_VERSION` in the driver's notation: 12000 is 12.0.
    pub(crate) version: i32,
    /// `STANDIN_CUDA_CAPABILITY`: 80 is 8.0.
    pub(crate) capability: i32,
    /// `STANDIN_CUDA_MEMORY`: size of device memory in bytes.
    pub(crate) memory_bytes: usize,
    /// `STANDIN_CUDA_OTHERS`: bytes of device memory used by other programs.
    pub(crate) other_programs_bytes: usize,
    /// `STANDIN_CUDA_SEED`: determines when queued work runs.
    pub(crate) seed: u64,
    /// `STANDIN_CUDA_FAIL=function:nth:code`
    pub(crate) failure: Option<InjectedFailure>,
    /// `STANDIN_CUDA_DROP_WAIT=n`: every n-th wait of a stream for a word is lost.
    pub(crate) drop_wait: Option<u64>,
    /// `STANDIN_CUDA_DEAF=1`: streams see only the value that a word had when the wait was
    /// enqueued, unless that value is sufficient.
    pub(crate) ignores_updates: bool,
    /// `STANDIN_CUDA_HANG=n`: the n-th launch never ends.
    pub(crate) hang: Option<u64>,
    /// `STANDIN_CUDA_QUEUE`: number of entries that a channel can contain; a call that adds one
    /// more blocks, with the driver's lock held.
    pub(crate) queue_entries: usize,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`: number of channels that streams share. As in the driver, 8
    /// unless set, and at most 32.
    pub(crate) channels: usize,
    /// `CUDA_MODULE_LOADING`, as in the driver: unless it is `EAGER`, a function is loaded by
    /// `cuFuncLoad` or by its first launch, and either waits for an idle device.
    pub(crate) loads_lazily: bool,
    /// `STANDIN_CUDA_TURNS=folder`: processes that use the device take turns
    /// ([`crate::turn_taking`]).
    pub(crate) turns: Option<PathBuf>,
    /// `STANDIN_CUDA_SECOND=folder:code`: while a process has a context, creating one in another
    /// process fails with the code.
    pub(crate) second: Option<(PathBuf, u32)>,
    /// `STANDIN_BLAS_ROWS=n`: cuBLASLt refuses to multiply exactly `n` rows.
    pub(crate) refused_rows: Option<usize>,
    /// `STANDIN_CUDA_CUBINS=0`: no cubin is accepted, as by a driver of an earlier CUDA.
    pub(crate) refuses_cubins: bool,
    /// `STANDIN_CUDA_COMPILE_MS`: duration of compiling PTX, in ms.
    pub(crate) compile_ms: u64,
    /// `STANDIN_CUDA_REMOTE=1`: writes of other devices to memory become visible late, unless they
    /// are flushed.
    pub(crate) writes_late: bool,
    /// `STANDIN_CUFILE_SHORT=n`: the n-th read of cuFile returns half of its pages.
    pub(crate) short_read: Option<u64>,
    /// `STANDIN_CUFILE_COMPATIBILITY=1`: cuFile reports that it cannot bypass the host for any
    /// drive.
    pub(crate) is_compatibility_mode: bool,
    /// `STANDIN_CUDA_LOG=file`: the name of every call is written to `file.PID`. Lines that begin
    /// with `note: ` are not calls: `full` for a call that finds its channel full, `flush` for a
    /// wait that flushes, `to host 8` for a copy of 8 bytes, `PTX` and `cubin 8.0` for images of
    /// code.
    pub(crate) log: Option<PathBuf>,
}

/// Returns the settings of this process.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        devices: number("STANDIN_CUDA_DEVICES", 1),
        version: number("STANDIN_CUDA_VERSION", 12000),
        capability: number("STANDIN_CUDA_CAPABILITY", 80),
        memory_bytes: number("STANDIN_CUDA_MEMORY", 1 << 30),
        other_programs_bytes: number("STANDIN_CUDA_OTHERS", 0),
        seed: number("STANDIN_CUDA_SEED", 0),
        failure: std::env::var("STANDIN_CUDA_FAIL").ok().map(|text| failure(&text)),
        drop_wait: std::env::var_os("STANDIN_CUDA_DROP_WAIT")
            .map(|_| number("STANDIN_CUDA_DROP_WAIT", 1)),
        ignores_updates: number("STANDIN_CUDA_DEAF", 0) != 0,
        hang: std::env::var_os("STANDIN_CUDA_HANG").map(|_| number("STANDIN_CUDA_HANG", 1)),
        queue_entries: number("STANDIN_CUDA_QUEUE", 1000),
        channels: number("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32),
        loads_lazily: std::env::var("CUDA_MODULE_LOADING").as_deref() != Ok("EAGER"),
        turns: std::env::var_os("STANDIN_CUDA_TURNS").map(PathBuf::from),
        second: std::env::var("STANDIN_CUDA_SECOND").ok().map(|text| {
            let (folder, code) = text.rsplit_once(':').expect("STANDIN_CUDA_SECOND=folder:code");
            (PathBuf::from(folder), code.parse().expect("a code"))
        }),
        refused_rows: std::env::var_os("STANDIN_BLAS_ROWS").map(|_| number("STANDIN_BLAS_ROWS", 0)),
        refuses_cubins: number("STANDIN_CUDA_CUBINS", 1) == 0,
        compile_ms: number("STANDIN_CUDA_COMPILE_MS", 0),
        writes_late: number("STANDIN_CUDA_REMOTE", 0) != 0,
        short_read: std::env::var_os("STANDIN_CUFILE_SHORT")
            .map(|_| number("STANDIN_CUFILE_SHORT", 1)),
        is_compatibility_mode: number("STANDIN_CUFILE_COMPATIBILITY", 0) != 0,
        log: std::env::var_os("STANDIN_CUDA_LOG").map(|path| {
            let mut path = path;
            path.push(format!(".{}", std::process::id()));
            PathBuf::from(path)
        }),
    })
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

fn failure(text: &str) -> InjectedFailure {
    let wrong = || -> ! { panic!("STANDIN_CUDA_FAIL={text} is not function:nth:code") };
    let mut parts = text.split(':');
    let mut part = || parts.next().unwrap_or_else(|| wrong());
    let (function, nth, code) = (part(), part(), part());
    InjectedFailure {
        function: function.to_owned(),
        nth: nth.parse().unwrap_or_else(|_| wrong()),
        code: code.parse().unwrap_or_else(|_| wrong()),
    }
}
