//! Direct reads from drives to the device. They are tried before planning, in a second process that
//! opens device memory like a storage worker does.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cuda::{Arena, Context, CuFile, DirectFile, Driver, IpcHandle, PinnedBuffer, Stream};
use protocol::child_process::this_program;
use weight_store::{AlignedBuffer, PAGE_BYTES, StagedCopy};

use super::write::Staging;
use crate::argument_error::ArgumentError;
use crate::values::{DeviceChoice, NvmeDirect};

/// Time limit of the second process, far longer than a driver and cuFile take to start.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of device memory that are allocated for the attempt.
const ARENA_BYTES: u64 = 64 << 10;
/// Value of these bytes before the attempt.
const FILL_BYTE: u8 = 0x5a;
/// Offset to which the page is read; not 0, like that of most slots.
const TARGET_OFFSET: u64 = 16 << 10;

/// Returns true if weights that the GPU multiplies are read directly to it, which is as requested
/// where that is possible, and a note with the reason if `auto` found it to be impossible.
///
/// # Errors
/// `--nvme-direct on` although it is not possible, with the reason.
pub(crate) fn decide(
    choice: NvmeDirect,
    device: DeviceChoice,
    stagings: &[Staging],
) -> Result<(bool, Option<String>), ArgumentError> {
    let decided = |direct| Ok((direct, None));
    let index = match (choice, device) {
        (NvmeDirect::Off, _) => return decided(false),
        (NvmeDirect::On, DeviceChoice::Emulated { .. }) => return decided(true),
        (_, DeviceChoice::Cuda(index)) => index,
        (NvmeDirect::Auto, _) => return decided(false),
        (NvmeDirect::On, _) => {
            let reason = "there is no device to read to; remove it, or specify --device";
            return Err(ArgumentError(format!("--nvme-direct on: {reason}")));
        }
    };
    let result = stagings.iter().try_for_each(|staging| {
        let directory = staging.directory.display();
        test_direct_read(index, &staging.staged).map_err(|error| {
            let reason = format!("{error:#}");
            format!("{directory}: {}", reason.trim_end_matches('.'))
        })
    });
    match (result, choice) {
        (Ok(()), _) => decided(true),
        (Err(reason), NvmeDirect::On) => {
            Err(ArgumentError(format!("--nvme-direct on: {reason}; run with --nvme-direct off")))
        }
        (Err(reason), _) => {
            let note = format!("Reads from drives to the device go through host memory. {reason}.");
            Ok((false, Some(note)))
        }
    }
}

/// Has a second process read the first page of a staging's weights to device memory of this one,
/// and compares the bytes that arrive.
fn test_direct_read(index: u32, staged: &StagedCopy) -> anyhow::Result<()> {
    let context = Context::open(&Driver::open()?, index)?;
    let arena = Arena::allocate(&context, ARENA_BYTES)?;
    let stream = Stream::new(&context)?;
    // Bytes from an earlier attempt must not be mistaken for those that arrive.
    // SAFETY: needed to overwrite them. The range is the whole arena, which no other code knows
    // yet.
    unsafe { stream.fill(arena.base(), FILL_BYTE, ARENA_BYTES as usize) }?;
    stream.synchronize()?;
    let handle = arena.export().context("device memory cannot be shared")?;
    let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = this_program()
        .args(["read-to-device", &index.to_string(), &hex])
        .arg(staged.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("a second process cannot be started")?;
    wait_for_exit(child)?;
    let mut expected = AlignedBuffer::new(PAGE_BYTES as usize);
    staged.open_weights()?.read_exact_at(expected.bytes_mut(), 0)?;
    let host = PinnedBuffer::allocate(&context, PAGE_BYTES as usize)?;
    // SAFETY: needed to see what arrived. The range is inside the arena, which no other code uses
    // any more; `host` has at least its size, and is read only after the stream has completed.
    let arrived = unsafe {
        stream.copy_to_host(host.base(), arena.base() + TARGET_OFFSET, PAGE_BYTES as usize)?;
        stream.synchronize()?;
        std::slice::from_raw_parts(host.base(), PAGE_BYTES as usize)
    };
    anyhow::ensure!(arrived == expected.bytes(), "cuFile read wrong data to the device");
    Ok(())
}

/// Waits for the second process. If it fails, its output is the error.
fn wait_for_exit(mut child: Child) -> anyhow::Result<()> {
    let started = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() < TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            None => {
                // An error means that it has exited already.
                let _ = child.kill();
                let _ = child.wait();
                anyhow::bail!("cuFile has not answered for {} s", TIMEOUT.as_secs());
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        let _ = stdout.read_to_string(&mut output);
    }
    let output = output.trim();
    anyhow::bail!(
        "{}",
        if output.is_empty() { "reading a page to the device failed" } else { output }
    )
}

/// Entry point of the second process: reads the page, and prints the reason if that fails.
pub fn read_test_main(index: u32, hex: &str, staging: &Path) -> ExitCode {
    match read_page(index, hex, staging) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Only the parent process reads this output.
            let _ = std::io::stdout().write_all(format!("{error:#}").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn read_page(index: u32, hex: &str, staging: &Path) -> anyhow::Result<()> {
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..64).map(byte).collect();
    let handle = bytes.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    let handle = IpcHandle(handle.context("the handle is invalid")?);
    let staged = StagedCopy::open(staging)?;
    let context = Context::open(&Driver::open()?, index)?;
    let arena = Arena::open(&context, handle, ARENA_BYTES).context("CUDA IPC is refused here")?;
    let cufile = CuFile::open()?;
    let file = DirectFile::new(&cufile, staged.open_weights()?)?;
    // SAFETY: needed to try a read. The range is inside the arena, which its owner does not access
    // until this process has ended.
    let read = unsafe { file.read(arena.base(), TARGET_OFFSET, 0, PAGE_BYTES as usize) }?;
    anyhow::ensure!(read == PAGE_BYTES as usize, "cuFile read {read} bytes of a page");
    context.flush_remote_writes()?;
    Ok(())
}
