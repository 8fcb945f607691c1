//! Test that reading weights leaves the page cache to others.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::{Drives, SMALL};

/// Returns the number of pages of a file that are in the page cache.
fn resident_pages(path: &Path) -> usize {
    let file = File::open(path).expect("a file");
    let size_bytes = file.metadata().expect("a size").len() as usize;
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
fn no_page_of_the_weights_is_resident_after_a_run() {
    let drives = Drives::new();
    drives.requests(2, 4);
    let ran = drives.run_from(2, &[SMALL, &["--nvme-ops", "all"]].concat());
    for (drive, name) in ["nvme0", "nvme1"].into_iter().enumerate() {
        let how = ran.report["storages"][name]["how"].as_str().expect("how it was read");
        if !how.contains("O_DIRECT") || how.contains("refused here)") {
            println!("SKIP no_page_of_the_weights_is_resident_after_a_run: {how}");
            return;
        }
        let path = drives.staging(drive).join("weights.bin");
        assert_eq!(resident_pages(&path), 0, "{name}");
        assert!(!std::fs::read(&path).expect("a file").is_empty());
        assert_ne!(resident_pages(&path), 0, "the measurement sees pages");
    }
}
