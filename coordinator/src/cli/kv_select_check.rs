//! Validation of `--kv-select`.

use std::path::Path;

use super::shared::ModelArgs;
use super::usage_error::UsageError;
use session::values::DeviceChoice;
use session::values::KvSelectChoice;

/// Returns the selection of a run; `None` if new tokens attend to all positions.
///
/// # Errors
/// A device, `--no-fuse`, or a text that cannot be read.
pub(super) fn validate_kv_select(
    args: &ModelArgs,
    device: DeviceChoice,
    fuses: bool,
) -> Result<Option<KvSelectChoice>, UsageError> {
    let Some(rule) = args.kv_select else { return Ok(None) };
    if device != DeviceChoice::None {
        return Err(UsageError::SelectOnDevice);
    }
    if !fuses {
        return Err(UsageError::SelectWithoutFusion);
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| UsageError::UnreadableSelectText {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
    };
    let text = args.kv_select_text.as_deref().map(read).transpose()?;
    Ok(Some(KvSelectChoice { rule, text }))
}
