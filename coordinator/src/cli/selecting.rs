//! Validation of `--kv-select`.

use std::path::Path;

use super::select::SelectChoice;
use super::shared::LowModel;
use super::usage_error::UsageError;
use super::values::DeviceChoice;

/// Returns the selection of a run; `None` if new tokens attend to all positions.
///
/// # Errors
/// A device, `--no-fuse`, or a text that cannot be read.
pub(super) fn select(
    low: &LowModel,
    device: DeviceChoice,
    fuses: bool,
) -> Result<Option<SelectChoice>, UsageError> {
    let Some(rule) = low.kv_select else { return Ok(None) };
    if device != DeviceChoice::None {
        return Err(UsageError::SelectOnDevice);
    }
    if !fuses {
        return Err(UsageError::SelectUnfused);
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| UsageError::SelectText {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
    };
    let text = low.kv_select_text.as_deref().map(read).transpose()?;
    Ok(Some(SelectChoice { rule, text }))
}
