//! Resolution of a command line's device to a device of this machine.

use session::cuda_device::{best_device, device_info};
use session::values::DeviceChoice;

use super::usage_error::UsageError;

/// Returns a device that exists; `auto` becomes the best real one.
///
/// # Errors
/// A CUDA device that this machine does not have, or `emulated:timed` without times.
pub(super) fn resolve_device(choice: DeviceChoice) -> Result<DeviceChoice, UsageError> {
    match choice {
        DeviceChoice::Cuda(device) => match device_info(device) {
            Ok(_) => Ok(DeviceChoice::Cuda(device)),
            Err(source) => Err(UsageError::NoCuda { device, source }),
        },
        DeviceChoice::Timed => Err(UsageError::TimedWithoutTables),
        // The emulated device is never chosen automatically.
        DeviceChoice::Auto => Ok(best_device()),
        chosen => Ok(chosen),
    }
}
