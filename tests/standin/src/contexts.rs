//! Devices of which one process at a time may have a context: as in the exclusive compute mode, on
//! some partitions, or where memory is short.
//!
//! Processes tell each other by files in a folder that they have one.

use std::path::Path;

use crate::settings::settings;
use crate::state::State;

impl State {
    /// This process uses the device, if no other does that may not share it.
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

    /// This process uses the device no more, if it was the last that was retained.
    pub(crate) fn release_context(&mut self) {
        let Some((folder, _)) = &settings().second else { return };
        self.contexts = self.contexts.saturating_sub(1);
        if self.contexts == 0 {
            // It may be gone with its folder.
            let _ = std::fs::remove_file(folder.join(std::process::id().to_string()));
        }
    }
}
