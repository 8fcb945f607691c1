//! The CUDA device that a command line means, if this machine has it.

use cuda::{Context, CudaError, DeviceInfo, Driver};

use super::values::DeviceChoice;

/// Contexts of two processes, the kernels' code, and what the driver keeps for itself.
const RESERVED_BYTES: u64 = 1 << 30;

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

/// Device memory that a plan may use: what was asked for, or all but what the driver needs. How much
/// of it is free shows when it is allocated.
pub(crate) fn vram_bytes(index: u32, asked: Option<u64>) -> Option<u64> {
    let total = find(index).ok()?.total_bytes;
    let usable = total.saturating_sub(RESERVED_BYTES.min(total / 8));
    Some(asked.map_or(usable, |asked| asked.min(usable)))
}
