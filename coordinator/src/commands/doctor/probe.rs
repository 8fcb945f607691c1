//! Checks whether a second process can open device memory. The second process runs this program
//! with a hidden subcommand.

use std::process::Stdio;
use std::time::{Duration, Instant};

use cuda::{Arena, Context, Driver, IpcHandle};
use protocol::child_process::this_program;

/// Time limit of the second process. A driver needs far less to start, and a driver that hangs must
/// not block the doctor.
const TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns true if another process can open the memory of `handle`.
pub(super) fn can_open_in_other_process(device: u32, handle: IpcHandle) -> bool {
    let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = this_program()
        .args(["open-device-memory", &device.to_string(), &hex])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if started.elapsed() < TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            _ => {
                // An error means that the process has already ended.
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

/// Returns true if the memory can be opened; called in the second process. `hex` encodes the 64
/// bytes of the handle.
pub fn can_open(device: u32, hex: &str) -> bool {
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..64).map(byte).collect();
    let Some(handle) = bytes.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok()) else {
        return false;
    };
    let opened = Driver::open()
        .and_then(|driver| Context::open(&driver, device))
        .and_then(|context| Arena::open(&context, IpcHandle(handle), 1));
    opened.is_ok()
}
