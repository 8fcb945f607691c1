//! Whether drives can be read straight to the device: tried before anything is planned, in a second
//! process that opens device memory as a storage worker does.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cuda::{Arena, Context, CuFile, DirectFile, Driver, IpcHandle, PinnedBuffer, Stream};
use staging::{AlignedBuffer, PAGE_BYTES, Staged};

use super::write::Staging;
use crate::cli::values::{DeviceChoice, NvmeDirect};
use crate::setup::usage::Usage;

/// Far beyond what a driver and cuFile need to start.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// What is allocated to try it.
const ARENA_BYTES: u64 = 64 << 10;
/// What it holds before.
const FILLED: u8 = 0x5a;
/// Where the page goes: not to the arena's first byte, as most slots do not.
const TO_BYTES: u64 = 16 << 10;

/// Whether weights that the GPU multiplies are read straight to it: as was asked for, where that
/// is possible, with a note where `auto` found that it is not.
///
/// # Errors
/// `--nvme-direct on` where it is not possible, with the reason.
pub(crate) fn decide(
    choice: NvmeDirect,
    device: DeviceChoice,
    stagings: &[Staging],
) -> Result<(bool, Option<String>), Usage> {
    let is = |direct| Ok((direct, None));
    let index = match (choice, device) {
        (NvmeDirect::Off, _) => return is(false),
        (NvmeDirect::On, DeviceChoice::Emulated { .. }) => return is(true),
        (_, DeviceChoice::Cuda(index)) => index,
        (NvmeDirect::Auto, _) => return is(false),
        (NvmeDirect::On, _) => {
            let reason = "there is no device to read to; leave it out, or name one with --device";
            return Err(Usage(format!("--nvme-direct on: {reason}")));
        }
    };
    let tried = stagings.iter().try_for_each(|staging| {
        let directory = staging.directory.display();
        try_page(index, &staging.staged).map_err(|error| {
            let reason = format!("{error:#}");
            format!("{directory}: {}", reason.trim_end_matches('.'))
        })
    });
    match (tried, choice) {
        (Ok(()), _) => is(true),
        (Err(reason), NvmeDirect::On) => {
            Err(Usage(format!("--nvme-direct on: {reason}; run with --nvme-direct off")))
        }
        (Err(reason), _) => {
            let note = format!("Drives are read to the device through host memory. {reason}.");
            Ok((false, Some(note)))
        }
    }
}

/// Has a second process read the first page of a staging's weights to device memory of this one,
/// and compares what arrived.
fn try_page(index: u32, staged: &Staged) -> anyhow::Result<()> {
    let context = Context::open(&Driver::open()?, index)?;
    let arena = Arena::allocate(&context, ARENA_BYTES)?;
    let stream = Stream::new(&context)?;
    // What an earlier try has left there must not look like what arrives.
    // SAFETY: needed to overwrite it. All of it is the arena, which nobody else knows yet.
    unsafe { stream.fill(arena.base(), FILLED, ARENA_BYTES as usize) }?;
    stream.synchronize()?;
    let handle = arena.export().context("device memory cannot be shared")?;
    let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new("/proc/self/exe")
        .args(["read-to-device", &index.to_string(), &hex])
        .arg(staged.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("no second process can be started")?;
    ended(child)?;
    let mut expected = AlignedBuffer::new(PAGE_BYTES as usize);
    staged.open_weights()?.read_exact_at(expected.bytes_mut(), 0)?;
    let host = PinnedBuffer::allocate(&context, PAGE_BYTES as usize)?;
    // SAFETY: needed to see what arrived. The range lies in the arena, which nobody else uses any
    // more; `host` has its size at least, and is read only once the stream is done.
    let arrived = unsafe {
        stream.copy_to_host(host.base(), arena.base() + TO_BYTES, PAGE_BYTES as usize)?;
        stream.synchronize()?;
        std::slice::from_raw_parts(host.base(), PAGE_BYTES as usize)
    };
    anyhow::ensure!(arrived == expected.bytes(), "other bytes arrive than cuFile was told to read");
    Ok(())
}

/// Waits for the second process; what it said, where it failed.
fn ended(mut child: Child) -> anyhow::Result<()> {
    let begun = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begun.elapsed() < LIMIT => std::thread::sleep(PAUSE),
            None => {
                // An error means that it is gone already.
                let _ = child.kill();
                let _ = child.wait();
                anyhow::bail!("cuFile has not answered for {} s", LIMIT.as_secs());
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        let _ = stdout.read_to_string(&mut said);
    }
    let said = said.trim();
    anyhow::bail!("{}", if said.is_empty() { "reading a page to the device failed" } else { said })
}

/// In the second process: reads the page, and says why it could not.
pub fn second_process(index: u32, hex: &str, staging: &Path) -> ExitCode {
    match read_page(index, hex, staging) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever started this reads it; nobody else does.
            let _ = std::io::stdout().write_all(format!("{error:#}").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn read_page(index: u32, hex: &str, staging: &Path) -> anyhow::Result<()> {
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..64).map(byte).collect();
    let handle = bytes.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
    let handle = IpcHandle(handle.context("no handle")?);
    let staged = Staged::open(staging)?;
    let context = Context::open(&Driver::open()?, index)?;
    let arena = Arena::open(&context, handle, ARENA_BYTES).context("CUDA IPC is refused here")?;
    let cufile = CuFile::open()?;
    let file = DirectFile::new(&cufile, staged.open_weights()?)?;
    // SAFETY: needed to try a read. The range lies in the arena, which its owner leaves alone until
    // this process has ended.
    let read = unsafe { file.read((arena.base(), TO_BYTES), 0, PAGE_BYTES as usize) }?;
    anyhow::ensure!(read == PAGE_BYTES as usize, "cuFile read {read} bytes of a page");
    context.flush_remote_writes()?;
    Ok(())
}
