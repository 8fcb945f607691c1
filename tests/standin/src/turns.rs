//! Turns of processes on a device. As observed on hardware: while a stream of one process waits for
//! a word, a stream of another process that has run nothing yet may not run at all. One that has
//! run before continues as usual.
//!
//! Processes announce that they wait by files in a shared folder.

use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Turns {
    folder: PathBuf,
    told: bool,
}

impl Turns {
    pub(crate) fn new(folder: &Path) -> Turns {
        Turns { folder: folder.to_owned(), told: false }
    }

    fn own(&self) -> PathBuf {
        self.folder.join(std::process::id().to_string())
    }

    /// Announces whether a stream of this process waits.
    pub(crate) fn tell(&mut self, waits: bool) {
        if waits == self.told {
            return;
        }
        self.told = waits;
        let done = match waits {
            true => std::fs::write(self.own(), ""),
            false => std::fs::remove_file(self.own()),
        };
        done.unwrap_or_else(|error| panic!("STANDIN_CUDA_TURNS: {error}"));
    }

    /// Returns true if a stream of another live process waits.
    pub(crate) fn others_wait(&self) -> bool {
        let own = std::process::id().to_string();
        let found = std::fs::read_dir(&self.folder);
        let found = found.unwrap_or_else(|error| panic!("STANDIN_CUDA_TURNS: {error}"));
        let names = found.flatten().map(|entry| entry.file_name());
        let mut others = names.filter(|name| *name != *own);
        others.any(|name| Path::new("/proc").join(name).exists())
    }
}
