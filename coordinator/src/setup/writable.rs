//! Whether a file can be written, found out before hours of work whose result it is to hold.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Returns an error if a file cannot be written at `path`. What is there stays as it is, and a file
/// that was created to find out is removed again; a link to nothing stays, too.
///
/// # Errors
/// Why it cannot be written.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    match File::create_new(path) {
        // Nobody can have written to it but through this name, which is new.
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let leads_nowhere = !path.exists();
            OpenOptions::new().append(true).create(true).open(path)?;
            let target = path.canonicalize()?;
            let is_ours = leads_nowhere && target.metadata()?.len() == 0;
            if is_ours { std::fs::remove_file(target) } else { Ok(()) }
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
