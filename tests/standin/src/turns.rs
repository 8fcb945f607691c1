//! A device gives processes turns. As seen on hardware: while a stream of one process waits for a
//! word, a stream of another process that has run nothing yet may not get to run at all. One that
//! has run before goes on as ever.
//!
//! Processes tell each other by files in a folder that they wait.

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

    /// Says whether a stream of this process waits.
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

    /// Whether a stream of another process that lives waits.
    pub(crate) fn others_wait(&self) -> bool {
        let own = std::process::id().to_string();
        let found = std::fs::read_dir(&self.folder);
        let found = found.unwrap_or_else(|error| panic!("STANDIN_CUDA_TURNS: {error}"));
        let names = found.flatten().map(|entry| entry.file_name());
        let mut others = names.filter(|name| *name != *own);
        others.any(|name| Path::new("/proc").join(name).exists())
    }
}
