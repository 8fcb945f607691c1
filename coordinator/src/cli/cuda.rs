//! The CUDA device that a command line means, if this machine has it.

use std::path::Path;

use cuda::{Context, CudaError, DeviceInfo, Driver, Library, LinkAt, Nvml, PcieLink};

use super::usage_error::UsageError;
use super::values::DeviceChoice;

/// Contexts of two processes, the kernels' code, and what the driver keeps for itself.
const RESERVED_BYTES: u64 = 1 << 30;
/// The context of each process more.
const CONTEXT_BYTES: u64 = 512 << 20;

/// Whether a run's device is a CUDA device: its memory is not the machine's.
pub(crate) fn is_cuda(device: DeviceChoice) -> bool {
    matches!(device, DeviceChoice::Cuda(_))
}

/// The device of that number, if Tandem can use it.
///
/// # Errors
/// No driver, no such device, or one that is too old.
pub(crate) fn find(index: u32) -> Result<DeviceInfo, CudaError> {
    let info = Driver::open()?.device(index)?;
    Context::supports(&info)?;
    Ok(info)
}

/// What `auto` means: the first device, if there is one that can be used.
pub(crate) fn best() -> DeviceChoice {
    match find(0) {
        Ok(_) => DeviceChoice::Cuda(0),
        Err(_) => DeviceChoice::None,
    }
}

/// A device that exists: `auto` becomes the best real one.
///
/// # Errors
/// A CUDA device that is not here, or what is none.
pub(super) fn existing(choice: DeviceChoice) -> Result<DeviceChoice, UsageError> {
    match choice {
        DeviceChoice::Cuda(device) => match find(device) {
            Ok(_) => Ok(DeviceChoice::Cuda(device)),
            Err(source) => Err(UsageError::NoCuda { device, source }),
        },
        DeviceChoice::Timed => Err(UsageError::TimedWithoutTables),
        // The emulated device is never chosen on its own.
        DeviceChoice::Auto => Ok(best()),
        chosen => Ok(chosen),
    }
}

/// Free and total device memory. Pending on a context of this process, which is given back at once.
///
/// # Errors
/// The driver's refusal.
pub(crate) fn memory_bytes(index: u32) -> Result<(u64, u64), CudaError> {
    Context::open(&Driver::open()?, index)?.memory_bytes()
}

/// Device memory that a plan may use: what is free now but for what the driver needs, and no more
/// than was asked for. `drives` may be read straight to it, each by a process of its own. 0 where
/// the driver does not say: then nothing fits.
pub(crate) fn vram_bytes(index: u32, requested: Option<u64>, drives: usize) -> u64 {
    let (free, total) = memory_bytes(index).unwrap_or((0, 0));
    let readers = if Library::CuFile.find().is_some() { drives as u64 } else { 0 };
    let reserved = RESERVED_BYTES.saturating_add(readers.saturating_mul(CONTEXT_BYTES));
    let usable = free.saturating_sub(reserved.min(total / 8));
    requested.map_or(usable, |requested| requested.min(usable))
}

/// `cuda:0 has 0.50 of 16.00 GiB free`; `None` where the driver does not say.
pub(crate) fn free_in_words(index: u32) -> Option<String> {
    let (free, total) = memory_bytes(index).ok()?;
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    Some(format!("cuda:{index} has {:.2} of {:.2} GiB free", gib(free), gib(total)))
}

/// What a profile's fingerprint keeps of a device. Of the link the width is that of now and the
/// generation the highest, which an idle device does not lower.
pub(crate) fn described(index: u32) -> Option<profiler::Gpu> {
    let driver = Driver::open().ok()?;
    let info = driver.device(index).ok()?;
    let nvml = Nvml::open();
    let managed = nvml.as_ref().and_then(|nvml| nvml.device(&info.bus));
    let link = |at| {
        let known = managed.as_ref().and_then(|device| device.link(at));
        known.or_else(|| PcieLink::of_system(Path::new("/"), &info.bus, at))
    };
    let link = link(LinkAt::Most).zip(link(LinkAt::Now));
    let link = link.map(|(most, now)| PcieLink { generation: most.generation, width: now.width });
    let release = nvml.as_ref().and_then(Nvml::driver_release);
    Some(profiler::Gpu {
        name: info.name,
        uuid: info.uuid,
        driver: release.unwrap_or_else(|| format!("CUDA {}", driver.version())),
        pcie_link: link.map_or_else(|| "unknown".to_owned(), |link| link.to_string()),
    })
}
