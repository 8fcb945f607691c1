//! No operation follows a link, regardless of who created it, and a file has either its old or its
//! new content.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE, replace};
use rustix::fs::OFlags;

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("an entry").mode() & 0o7777
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
    std::fs::create_dir(&inside).expect("writable");
    std::fs::create_dir(&outside).expect("writable");
    std::fs::write(outside.join("victim"), "mine").expect("writable");
    symlink("../out/victim", inside.join("file")).expect("writable");
    symlink("../out", inside.join("folder")).expect("writable");
    symlink("../out/new", inside.join("dangling")).expect("writable");
    let directory = Directory::open(&inside).expect("a folder");
    for flags in [OFlags::RDONLY, OFlags::RDWR | OFlags::CREATE, OFlags::WRONLY | OFlags::TRUNC] {
        assert!(directory.open_file("file", flags, 0o666).is_err());
        assert!(directory.open_file("dangling", flags, 0o666).is_err());
    }
    assert!(directory.create_new("dangling", 0o666).is_err());
    assert!(directory.open_subdirectory("folder").is_err());
    assert!(directory.subdirectory("folder", 0o777).is_err());
    assert!(directory.entry("file").expect("it is there").is_some_and(|entry| entry.is_link));
    replace(&inside.join("file"), b"new", PRIVATE_MODE).expect("it is replaced");
    assert!(!inside.join("file").is_symlink());
    assert_eq!(mode(&inside.join("file")), PRIVATE_MODE);
    assert_eq!(std::fs::read(outside.join("victim")).expect("untouched"), b"mine");
    assert_eq!(names(&outside), ["victim"]);
}

#[test]
fn names_are_one_component() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = Directory::open(folder.path()).expect("a folder");
    let long = "x".repeat(256);
    for name in ["", ".", "..", "a/b", "/etc", "../x", "a\0b", &long] {
        let error = directory.create_new(name, 0o666).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
        assert!(directory.subdirectory(name, 0o777).is_err(), "{name:?}");
        assert!(directory.remove_file(name).is_err(), "{name:?}");
        assert!(directory.entry(name).is_err(), "{name:?}");
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_temporary_file_is_private_and_gone_unless_it_is_persisted() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory =
        Directory::create(&folder.path().join("a/b"), PRIVATE_DIRECTORY_MODE).expect("writable");
    let at = folder.path().join("a/b");
    assert_eq!(mode(&at), PRIVATE_DIRECTORY_MODE);
    drop(directory.temporary_file("x.", ".tmp", PRIVATE_MODE).expect("writable"));
    assert!(names(&at).is_empty());
    let whole = directory.temporary_file("x.", ".tmp", PRIVATE_MODE).expect("writable");
    whole.file().write_all(b"whole").expect("writable");
    let [name] = &names(&at)[..] else { panic!("one file") };
    assert!(name.starts_with("x.") && name.ends_with(".tmp"), "{name}");
    whole.persist("x").expect("renamed");
    assert_eq!(names(&at), ["x"]);
    assert_eq!(mode(&at.join("x")), PRIVATE_MODE);
    directory.replace_link(Path::new("../c"), "x").expect("replaced");
    assert_eq!(directory.read_link("x").expect("a link"), Path::new("../c"));
    std::fs::create_dir(at.join("d")).expect("writable");
    assert!(directory.replace_link(Path::new("../c"), "d").is_err());
    assert_eq!(names(&at), ["d", "x"]);
}

#[test]
fn a_pipe_is_no_file_and_nobody_waits_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
    let directory = Directory::open(folder.path()).expect("a folder");
    assert!(directory.open_file("pipe", OFlags::RDONLY, 0).is_err());
    assert!(directory.open_file("pipe", OFlags::WRONLY, 0).is_err());
}
