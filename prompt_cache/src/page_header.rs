//! A page's header: identity, tokens, and the location and checksum of each run.
//!
//! Little-endian: the magic, the format (u32), the page's index in its prompt (u32), the numbers of
//! tokens and of runs (u32 each), the origin's fingerprint and the names of the previous page and
//! of this one (32 bytes each), the tokens (u32), the size of each run (u64), the checksum of each
//! run (XXH3, u64), and the checksum of everything before it. The runs follow each other, starting
//! at the next multiple of [`ALIGN_BYTES`].

use xxhash_rust::xxh3::xxh3_64;

use crate::page_hash::PageHash;
use crate::page_origin::PAGE_FORMAT_VERSION;

const MAGIC: [u8; 8] = *b"TNDMPAGE";
/// Alignment of the first run.
const ALIGN_BYTES: u64 = 4096;
/// Size of the header up to the tokens.
const FIXED_BYTES: usize = 24 + 3 * 32;
const CHECKSUM_BYTES: usize = 8;
/// Maximum number of tokens and of runs of a page, far above real ones: bounds the memory that a
/// damaged header can request.
const MAX_COUNT: u32 = 1 << 20;

/// Fixed part of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FixedHeader {
    pub index: u32,
    pub tokens: u32,
    pub runs: u32,
    pub origin: [u8; 32],
    pub previous: PageHash,
    pub name: PageHash,
}

/// A complete header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageHeader {
    pub fixed: FixedHeader,
    pub tokens: Vec<u32>,
    pub sizes_bytes: Vec<u64>,
    pub checksums: Vec<u64>,
}

impl FixedHeader {
    /// Size of the fixed part.
    pub const BYTES: usize = FIXED_BYTES;

    /// Parses the first bytes of a file.
    ///
    /// # Errors
    /// Returns the reason why they are not a header.
    pub fn read(bytes: &[u8]) -> Result<FixedHeader, &'static str> {
        let Some((magic, rest)) = bytes.split_first_chunk::<8>() else { return Err("it is torn") };
        if rest.len() < FIXED_BYTES - 8 {
            return Err("it is torn");
        }
        if *magic != MAGIC {
            return Err("it is not a page");
        }
        let number = |place: usize| {
            let bytes: [u8; 4] = rest[4 * place..][..4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes)
        };
        let name = |place: usize| -> [u8; 32] {
            rest[16 + 32 * place..][..32].try_into().expect("a name's bytes")
        };
        if number(0) != PAGE_FORMAT_VERSION {
            return Err("it was written by another version of this program");
        }
        let head = FixedHeader {
            index: number(1),
            tokens: number(2),
            runs: number(3),
            origin: name(0),
            previous: PageHash(name(1)),
            name: PageHash(name(2)),
        };
        if head.tokens > MAX_COUNT || head.runs > MAX_COUNT {
            return Err("its header is damaged");
        }
        Ok(head)
    }

    /// Returns the size of the complete header without padding.
    pub fn header_bytes(&self) -> usize {
        FIXED_BYTES + 4 * self.tokens as usize + 16 * self.runs as usize + CHECKSUM_BYTES
    }

    /// Returns the offset of the first run.
    pub fn body_offset(&self) -> u64 {
        (self.header_bytes() as u64).next_multiple_of(ALIGN_BYTES)
    }
}

impl PageHeader {
    /// Returns the bytes of the header, padded up to the first run.
    pub fn write(&self) -> Vec<u8> {
        let head = &self.fixed;
        let mut bytes = Vec::with_capacity(head.body_offset() as usize);
        bytes.extend(MAGIC);
        for number in [PAGE_FORMAT_VERSION, head.index, head.tokens, head.runs] {
            bytes.extend(number.to_le_bytes());
        }
        for name in [&head.origin, &head.previous.0, &head.name.0] {
            bytes.extend(name);
        }
        self.tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        let words = self.sizes_bytes.iter().chain(&self.checksums);
        words.for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes.resize(head.body_offset() as usize, 0);
        bytes
    }

    /// Parses the output of [`PageHeader::write`].
    ///
    /// # Errors
    /// Returns the reason why the bytes are not a header.
    pub fn read(bytes: &[u8]) -> Result<PageHeader, &'static str> {
        let fixed = FixedHeader::read(bytes)?;
        let Some(bytes) = bytes.get(..fixed.header_bytes()) else { return Err("it is torn") };
        let (bytes, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if xxh3_64(bytes).to_le_bytes() != checksum {
            return Err("its header is damaged");
        }
        let (tokens, words) = bytes[FIXED_BYTES..].split_at(4 * fixed.tokens as usize);
        let token = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let mut words: Vec<u64> = words.chunks_exact(8).map(word).collect();
        let checksums = words.split_off(fixed.runs as usize);
        let tokens = tokens.chunks_exact(4).map(token).collect();
        Ok(PageHeader { fixed, tokens, sizes_bytes: words, checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let name = PageHash([3; 32]);
        let tokens = vec![7, 8, u32::MAX];
        let fixed = FixedHeader {
            index: 4,
            tokens: 3,
            runs: 2,
            origin: [9; 32],
            previous: name,
            name: name.child(&tokens),
        };
        let header = PageHeader {
            fixed,
            tokens,
            sizes_bytes: vec![5, 1 << 40],
            checksums: vec![1, u64::MAX],
        };
        let bytes = header.write();
        assert_eq!(bytes.len() as u64, fixed.body_offset());
        assert_eq!(PageHeader::read(&bytes), Ok(header));
        let whole = fixed.header_bytes();
        for cut in 0..whole {
            assert!(PageHeader::read(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        for place in 0..whole {
            let mut flipped = bytes.clone();
            flipped[place] ^= 0x40;
            assert!(PageHeader::read(&flipped).is_err(), "byte {place}");
        }
    }
}
