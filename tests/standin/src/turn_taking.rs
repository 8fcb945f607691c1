//! Turns of processes on a device. As observed on hardware: while a stream of one process waits for
//! a word, a stream of another process that has run nothing yet may not run at all. One that has
//! run before continues as usual.
//!
//! Processes announce that they wait by files in a shared folder.

use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct TurnTaking {
    folder: PathBuf,
    is_announced: bool,
}

impl TurnTaking {
    pub(crate) fn new(folder: &Path) -> TurnTaking {
        TurnTaking { folder: folder.to_owned(), is_announced: false }
    }

    fn marker_path(&self) -> PathBuf {
        self.folder.join(std::process::id().to_string())
    }

    /// Announces whether a stream of this process waits.
    pub(crate) fn announce(&mut self, waits: bool) {
        if waits == self.is_announced {
            return;
        }
        self.is_announced = waits;
        let done = match waits {
            true => std::fs::write(self.marker_path(), ""),
            false => std::fs::remove_file(self.marker_path()),
        };
        done.unwrap_or_else(|error| panic!("STANDIN_CUDA_TURNS: {error}"));
    }

    /// Returns true if a stream of another live process waits.
    pub(crate) fn another_process_waits(&self) -> bool {
        let own = std::process::id().to_string();
        let found = std::fs::read_dir(&self.folder);
        let found = found.unwrap_or_else(|error| panic!("STANDIN_CUDA_TURNS: {error}"));
        let names = found.flatten().map(|entry| entry.file_name());
        let mut others = names.filter(|name| *name != *own);
        others.any(|name| Path::new("/proc").join(name).exists())
    }
}
