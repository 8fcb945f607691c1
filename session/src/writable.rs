//! Checks that a file can be written, before hours of work whose result it is to store.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Returns an error if a file cannot be written at `path`. An existing file stays as it is, and a
/// file that the check creates is removed again; a dangling link is kept, too.
///
/// # Errors
/// The reason for which the file cannot be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match File::create_new(path) {
        // The file is only accessible by this name, which is new, so nothing was written to it.
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let is_dangling = !path.exists();
            OpenOptions::new().append(true).create(true).open(path)?;
            let target = path.canonicalize()?;
            let is_created = is_dangling && target.metadata()?.len() == 0;
            if is_created { std::fs::remove_file(target) } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("old"), "old").expect("writable");
        std::os::unix::fs::symlink("missing", at("link")).expect("writable");
        for name in ["new", "old", "link"] {
            check_writable(&at(name)).expect(name);
        }
        assert!(check_writable(&at("no/folder")).is_err());
        assert!(at("link").is_symlink() && !at("new").exists() && !at("missing").exists());
        assert_eq!(std::fs::read(at("old")).expect("untouched"), b"old");
    }
}
