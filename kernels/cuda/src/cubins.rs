//! Kernels compiled ahead for known devices, so that the first start is fast.
//!
//! `scripts/ptx.sh --cubins` builds them from the committed PTX. A device runs kernels that were
//! compiled for its major compute capability and no later minor one; for any other device the
//! driver compiles [`crate::PTX`].

use std::io::Read;

use lzma_rust2::LzmaReader;

/// Kernels compiled for one compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cubin {
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    compressed: &'static [u8],
}

/// Maximum bytes of a cubin: far more than any has, so that decompression of a damaged one ends.
const CUBIN_BYTES_MAX: u64 = 64 << 20;

/// Maximum memory that decompression uses, in KiB.
const MEMORY_KIB_MAX: u32 = 64 << 10;

macro_rules! cubins {
    ($($major:literal $minor:literal $file:literal;)*) => {
        &[$(Cubin {
            capability: ($major, $minor),
            compressed: include_bytes!(concat!("../cubin/", $file, ".cubin.lzma")),
        },)*]
    };
}

/// Two for Ampere, one each for Ada and Hopper, two for Blackwell.
static CUBINS: &[Cubin] = cubins! {
    8 0 "sm_80";
    8 6 "sm_86";
    8 9 "sm_89";
    9 0 "sm_90";
    10 0 "sm_100";
    12 0 "sm_120";
};

impl Cubin {
    /// Returns all cubins, in ascending order.
    pub fn all() -> &'static [Cubin] {
        CUBINS
    }

    /// Returns the best cubin for a device of compute capability `major.minor`, if one runs on it.
    pub fn find(major: u32, minor: u32) -> Option<Cubin> {
        let runs = |cubin: &&Cubin| cubin.capability.0 == major && cubin.capability.1 <= minor;
        CUBINS.iter().rev().find(runs).copied()
    }

    /// Returns the image for the driver; `None` if it is damaged.
    pub fn image(self) -> Option<Vec<u8>> {
        let mut image = Vec::new();
        let reader = LzmaReader::new_mem_limit(self.compressed, MEMORY_KIB_MAX, None).ok()?;
        reader.take(CUBIN_BYTES_MAX).read_to_end(&mut image).ok()?;
        Some(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_latest_that_it_runs() {
        let found = |major, minor| Cubin::find(major, minor).map(|cubin| cubin.capability);
        for same in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
            assert_eq!(found(same.0, same.1), Some(same));
        }
        assert_eq!(found(8, 7), Some((8, 6)), "Orin");
        assert_eq!(found(10, 3), Some((10, 0)), "B300");
        assert_eq!(found(12, 1), Some((12, 0)), "GB10");
        assert_eq!(found(11, 0), None, "Thor");
        assert_eq!([found(7, 5), found(13, 0)], [None, None]);
    }

    #[test]
    fn images_are_elf_files_and_small_when_compressed() {
        let mut compressed_bytes = 0;
        for cubin in Cubin::all() {
            let image = cubin.image().expect("it is whole");
            assert_eq!(&image[..4], b"\x7fELF", "{:?}", cubin.capability);
            compressed_bytes += cubin.compressed.len();
        }
        assert!(compressed_bytes < 4 << 20, "{compressed_bytes} bytes in the repository");
    }
}
