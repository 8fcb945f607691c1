//! Names of pages: hashes of everything that their bytes depend on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of a page. Pages with different bytes have different names, barring a collision of SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageHash(pub(crate) [u8; 32]);

impl PageHash {
    /// Returns the predecessor of a prompt's first page: a hash of its origin and of anything else
    /// that the keys and values of this prompt depend on.
    pub(crate) fn from_origin(fingerprint: [u8; 32], kind: &[u8]) -> PageHash {
        let mut hash = Sha256::new();
        hash.update(fingerprint);
        hash.update(kind);
        PageHash(hash.finalize().into())
    }

    /// Returns the name of the checkpoint at the end of this page. No page has it, since every page
    /// has tokens.
    #[must_use]
    pub fn checkpoint(&self) -> PageHash {
        self.child(&[])
    }

    /// Returns the name of the page with these tokens that follows this page.
    pub fn child(&self, tokens: &[u32]) -> PageHash {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        PageHash(hash.finalize().into())
    }
}

impl fmt::Display for PageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PageHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

impl FromStr for PageHash {
    type Err = ();

    fn from_str(text: &str) -> Result<PageHash, ()> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return Err(());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = str::from_utf8(digits).map_err(|_| ())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ())?;
        }
        Ok(PageHash(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_everything_before() {
        let first = PageHash::from_origin([1; 32], &[]);
        let names = [
            first,
            PageHash::from_origin([2; 32], &[]),
            PageHash::from_origin([1; 32], &[1]),
            first.child(&[1, 2]),
            first.child(&[2, 1]),
            first.child(&[1, 2]).child(&[1, 2]),
        ];
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{index}");
            assert_eq!(name.to_string().parse(), Ok(*name));
        }
        for bad in ["", "00", &"0g".repeat(32), &"AB".repeat(32)] {
            assert_eq!(bad.parse::<PageHash>(), Err(()), "{bad}");
        }
    }
}
