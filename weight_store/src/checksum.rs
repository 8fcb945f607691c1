//! XXH3 checksums (64 bits) of blobs and blocks, and their representation as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::layout::BLOCK_BYTES;

/// A checksum; 16 lower-case hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Checksum(pub u64);

impl Checksum {
    /// Computes the checksum of `bytes`.
    #[inline]
    pub fn of_bytes(bytes: &[u8]) -> Checksum {
        Checksum(xxh3_64(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Checksum, String> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(format!("{text:?} is not a checksum of 16 hexadecimal digits"));
        }
        u64::from_str_radix(text, 16).map(Checksum).map_err(|error| error.to_string())
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> Result<Checksum, String> {
        text.parse()
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

/// Checksum of bytes that arrive in pieces.
#[derive(Default)]
pub(crate) struct ChecksumBuilder(Xxh3);

impl ChecksumBuilder {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(&self) -> Checksum {
        Checksum(self.0.digest())
    }
}

/// Returns the checksums of a blob's blocks in the format of `blocks.bin`.
pub(crate) fn checksum_blocks(blob: &[u8]) -> Vec<u8> {
    let blocks = blob.chunks(BLOCK_BYTES as usize);
    blocks.flat_map(|block| Checksum::of_bytes(block).0.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let checksum = Checksum(0x0012_3456_789a_bcde);
        assert_eq!(checksum.to_string(), "00123456789abcde");
        assert_eq!(checksum.to_string().parse(), Ok(checksum));
        for bad in ["", "12", "00123456789ABCDE", "+0123456789abcde", "00123456789abcdeff"] {
            assert!(bad.parse::<Checksum>().is_err(), "{bad}");
        }
    }

    #[test]
    fn pieces_are_as_the_whole() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i * 7) as u8).collect();
        let mut running = ChecksumBuilder::default();
        bytes.chunks(777).for_each(|piece| running.update(piece));
        assert_eq!(running.finish(), Checksum::of_bytes(&bytes));
        // The value of the reference implementation for empty input.
        assert_eq!(Checksum::of_bytes(&[]).0, 0x2d06_8005_38d3_94c2);
    }
}
