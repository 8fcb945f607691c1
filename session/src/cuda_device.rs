//! CUDA devices of this machine: whether Tandem supports them, their memory and their properties.

use std::path::Path;

use cuda::{Context, CudaError, DeviceInfo, Driver, LinkState, NvidiaLibrary, Nvml, PcieLink};

use crate::values::DeviceChoice;

/// Device memory that no plan may use: contexts of two processes, code of the kernels, and the
/// driver's own memory.
const RESERVED_BYTES: u64 = 1 << 30;
/// Device memory for the context of each further process.
const CONTEXT_BYTES: u64 = 512 << 20;

/// Returns true for a CUDA device, whose memory is separate from the machine's.
pub fn is_cuda(device: DeviceChoice) -> bool {
    matches!(device, DeviceChoice::Cuda(_))
}

/// Returns the device with the given index, if Tandem supports it.
///
/// # Errors
/// No driver, no such device, or one that is too old.
pub fn device_info(index: u32) -> Result<DeviceInfo, CudaError> {
    let info = Driver::open()?.device(index)?;
    Context::supports(&info)?;
    Ok(info)
}

/// Returns the device for `auto`: the first CUDA device if it is supported, otherwise none.
pub fn best_device() -> DeviceChoice {
    match device_info(0) {
        Ok(_) => DeviceChoice::Cuda(0),
        Err(_) => DeviceChoice::None,
    }
}

/// Returns the free and the total device memory in bytes. Temporarily opens a context in this
/// process.
///
/// # Errors
/// The driver's refusal.
pub fn memory_bytes(index: u32) -> Result<(u64, u64), CudaError> {
    Context::open(&Driver::open()?, index)?.memory_bytes()
}

/// Returns the bytes of device memory that a plan may use: the free memory without a reserve for
/// the driver, or `requested` if that is less. `drives` is the number of drives that may be read
/// directly to the device, each by a separate process with its own context. Returns 0 if the driver
/// does not report the memory, so that no plan fits.
pub fn vram_bytes(index: u32, requested: Option<u64>, drives: usize) -> u64 {
    let (free, total) = memory_bytes(index).unwrap_or((0, 0));
    let readers = if NvidiaLibrary::CuFile.find().is_some() { drives as u64 } else { 0 };
    let reserved = RESERVED_BYTES.saturating_add(readers.saturating_mul(CONTEXT_BYTES));
    let usable = free.saturating_sub(reserved.min(total / 8));
    requested.map_or(usable, |requested| requested.min(usable))
}

/// Returns a sentence like `cuda:0 has 0.50 of 16.00 GiB free`; `None` if the driver does not
/// report it.
pub(crate) fn format_free_memory(index: u32) -> Option<String> {
    let (free, total) = memory_bytes(index).ok()?;
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    Some(format!("cuda:{index} has {:.2} of {:.2} GiB free", gib(free), gib(total)))
}

/// Returns the properties of a device that are part of a profile's fingerprint. The link's width is
/// the current one. Its generation is the highest possible one, which does not change when an idle
/// device lowers its generation.
pub(crate) fn describe_gpu(index: u32) -> Option<profiler::GpuInfo> {
    let driver = Driver::open().ok()?;
    let info = driver.device(index).ok()?;
    let nvml = Nvml::open();
    let managed = nvml.as_ref().and_then(|nvml| nvml.device(&info.bus));
    let link = |at| {
        let known = managed.as_ref().and_then(|device| device.link(at));
        known.or_else(|| PcieLink::from_sysfs(Path::new("/"), &info.bus, at))
    };
    let link = link(LinkState::Maximum).zip(link(LinkState::Current));
    let link = link.map(|(max_link, current_link)| PcieLink {
        generation: max_link.generation,
        width: current_link.width,
    });
    let release = nvml.as_ref().and_then(Nvml::driver_release);
    Some(profiler::GpuInfo {
        name: info.name,
        uuid: info.uuid,
        driver: release.unwrap_or_else(|| format!("CUDA {}", driver.version())),
        pcie_link: link.map_or_else(|| "unknown".to_owned(), |link| link.to_string()),
    })
}
