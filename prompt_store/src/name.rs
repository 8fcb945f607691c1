//! Names of pages: hashes of everything that their bytes depend on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of a page. Pages with different bytes have different names, barring a collision of SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(pub(crate) [u8; 32]);

impl Name {
    /// Returns the predecessor of a prompt's first page: a hash of its origin and of anything else
    /// that the keys and values of this prompt depend on.
    pub(crate) fn of_origin(fingerprint: [u8; 32], kind: &[u8]) -> Name {
        let mut hash = Sha256::new();
        hash.update(fingerprint);
        hash.update(kind);
        Name(hash.finalize().into())
    }

    /// Returns the name of the page with these tokens that follows this page.
    pub fn next(&self, tokens: &[u32]) -> Name {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Name(hash.finalize().into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Name, ()> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return Err(());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = str::from_utf8(digits).map_err(|_| ())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ())?;
        }
        Ok(Name(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_everything_before() {
        let first = Name::of_origin([1; 32], &[]);
        let names = [
            first,
            Name::of_origin([2; 32], &[]),
            Name::of_origin([1; 32], &[1]),
            first.next(&[1, 2]),
            first.next(&[2, 1]),
            first.next(&[1, 2]).next(&[1, 2]),
        ];
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{index}");
            assert_eq!(name.to_string().parse(), Ok(*name));
        }
        for bad in ["", "00", &"0g".repeat(32), &"AB".repeat(32)] {
            assert_eq!(bad.parse::<Name>(), Err(()), "{bad}");
        }
    }
}
