//! Devices on which only one process at a time may have a context: in the exclusive compute mode,
//! on some partitions, or when memory is short.
//!
//! Processes announce that they have a context by files in a shared folder.

use std::path::Path;

use crate::settings::settings;
use crate::state::DriverState;

impl DriverState {
    /// Retains a context for this process; fails if another process has one and they may not share
    /// the device.
    pub(crate) fn retain_context(&mut self) -> Result<(), u32> {
        let Some((folder, code)) = &settings().second else { return Ok(()) };
        let own = std::process::id().to_string();
        let found = std::fs::read_dir(folder);
        let found = found.unwrap_or_else(|error| panic!("STANDIN_CUDA_SECOND: {error}"));
        let mut others = found.flatten().map(|entry| entry.file_name());
        if others.any(|name| *name != *own && Path::new("/proc").join(name).exists()) {
            return Err(*code);
        }
        std::fs::write(folder.join(own), "").unwrap_or_else(|error| panic!("{error}"));
        self.contexts += 1;
        Ok(())
    }

    /// Releases a context once; the last release lets other processes use the device.
    pub(crate) fn release_context(&mut self) {
        let Some((folder, _)) = &settings().second else { return };
        self.contexts = self.contexts.saturating_sub(1);
        if self.contexts == 0 {
            // The file may have been removed with its folder.
            let _ = std::fs::remove_file(folder.join(std::process::id().to_string()));
        }
    }
}
