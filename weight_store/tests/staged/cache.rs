//! Reading and writing weights leaves the page cache to others.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::common::*;
use weight_store::{IoKind, Reader, ReaderOptions};

/// Returns the number of pages of a file that are in the page cache.
fn resident_pages(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    let size_bytes = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0_u8; size_bytes.div_ceil(4096)];
    // SAFETY: needed because the calls are raw. The mapping is of this file and this size, is never
    // dereferenced, and there is a byte for each of its pages.
    unsafe {
        let fd = file.as_raw_fd();
        let map =
            libc::mmap(std::ptr::null_mut(), size_bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, size_bytes, pages.as_mut_ptr()), 0);
        libc::munmap(map, size_bytes);
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn no_page_of_the_weights_remains() {
    let dir = folder();
    let staged = stage(dir.path(), &SIZES_BYTES);
    let path = staged.path().join("weights.bin");
    let by_default = Reader::open(&staged, ReaderOptions::default()).unwrap().describe();
    if !by_default.contains("O_DIRECT") || by_default.contains("refused here)") {
        eprintln!("not tested: {by_default}");
        return;
    }
    assert_eq!(resident_pages(&path), 0, "after staging");
    assert!(!std::fs::read(&path).unwrap().is_empty());
    assert_ne!(resident_pages(&path), 0, "the measurement sees pages");
    File::open(&path).unwrap().sync_all().unwrap();
    for (io, direct) in [
        (IoKind::Auto, true),
        (IoKind::Auto, false),
        (IoKind::Threads, true),
        (IoKind::Threads, false),
    ] {
        let _ =
            rustix::fs::fadvise(File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed);
        let options = ReaderOptions { io, direct, ..Default::default() };
        assert_whole(&staged, options);
        let pages = resident_pages(&path);
        // With reads through the cache, pages that another process uses at that moment may remain.
        assert!(
            if direct { pages == 0 } else { pages < 64 },
            "{pages} pages, {io:?}, direct {direct}"
        );
    }
}
