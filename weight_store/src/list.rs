//! Listing and removing the staged copies of a folder.

use std::io;
use std::path::Path;

use crate::error::OpenStagedError;
use crate::staged::{BLOCKS, CopyProgress, INDEX, StagedCopy, WEIGHTS, partial_path, progress};

/// An entry of [`list`].
#[derive(Debug)]
pub struct ListedCopy {
    pub name: String,
    pub state: CopyState,
}

/// State of a staged copy.
#[derive(Debug)]
pub enum CopyState {
    /// Complete.
    Complete(StagedCopy),
    /// Being written, or abandoned by a writer that ended early.
    Partial(CopyProgress),
    /// Unusable, with the reason.
    Damaged(OpenStagedError),
}

/// Returns the staged copies in `dir`, sorted by name. Ignores everything else.
///
/// # Errors
///
/// Fails if the folder cannot be read.
pub fn list(dir: &Path) -> io::Result<Vec<ListedCopy>> {
    let mut listed = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let Ok(file_name) = entry.file_name().into_string() else { continue };
        if !path.is_dir() {
            continue;
        }
        let partial = file_name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".partial"));
        if let Some(name) = partial {
            let state = CopyState::Partial(progress(&path));
            listed.push(ListedCopy { name: name.to_owned(), state });
        } else if [INDEX, BLOCKS, WEIGHTS].iter().any(|file| path.join(file).exists()) {
            let state =
                StagedCopy::open(&path).map_or_else(CopyState::Damaged, CopyState::Complete);
            listed.push(ListedCopy { name: file_name, state });
        }
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listed)
}

/// Removes the staged copy `name` of `dir`, whether complete, damaged or partial. Returns false if
/// there is none, or if the name is not allowed. Processes that have it open can continue to read
/// it.
///
/// # Errors
///
/// Fails if another process is writing it, or if files cannot be removed.
pub fn remove(dir: &Path, name: &str) -> io::Result<bool> {
    if !crate::identity::is_name(name) {
        return Ok(false);
    }
    let partial = partial_path(dir, name);
    if partial.is_dir() && progress(&partial).is_being_written {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another process is staging it; wait until it ends",
        ));
    }
    let mut removed = false;
    for path in [dir.join(name), partial] {
        if path.is_symlink() {
            let sentence = format!("{} is a link; remove it manually", path.display());
            return Err(io::Error::other(sentence));
        }
        if path.is_dir() {
            // Without its index the folder is no longer a complete copy, even if removing the rest
            // fails.
            match std::fs::remove_file(path.join(INDEX)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::fs::remove_dir_all(&path)?;
            removed = true;
        }
    }
    Ok(removed)
}
