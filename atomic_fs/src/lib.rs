//! Files that are created without following links and replaced atomically.
//!
//! A [`Directory`] is held open by descriptor. Everything below it is named by one component at a
//! time and opened with `O_NOFOLLOW`, so no link that another process plants can lead a write out
//! of the directory. New files are created with `O_EXCL` under random names and get their final
//! names by `renameat`: a reader sees the old content or the new one.

mod directory;
mod temporary;

pub use directory::{Directory, EntryMetadata};
pub use temporary::{PRIVATE_DIRECTORY_MODE, PRIVATE_MODE, PUBLIC_MODE, TemporaryFile, replace};
