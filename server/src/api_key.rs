//! The API key that clients must send.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// API key, of which only a hash is stored, so that it cannot be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey([u8; 32]);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

impl ApiKey {
    /// Hashes a key.
    pub fn new(key: &str) -> ApiKey {
        ApiKey(Sha256::digest(key.as_bytes()).into())
    }

    /// Returns true if the value of an `Authorization` header contains the key. The time taken does
    /// not depend on how much of a wrong key is right.
    pub fn matches_header(&self, header: &[u8]) -> bool {
        let scheme = header.get(..7).unwrap_or_default();
        let key = header.get(7..).unwrap_or_default().trim_ascii();
        let shown: [u8; 32] = Sha256::digest(key).into();
        scheme.eq_ignore_ascii_case(b"bearer ") & bool::from(self.0.ct_eq(&shown))
    }

    /// Returns true if the value of an `X-Api-Key` header is the key.
    pub fn matches_key(&self, key: &[u8]) -> bool {
        let shown: [u8; 32] = Sha256::digest(key.trim_ascii()).into();
        self.0.ct_eq(&shown).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_right_and_nothing_prints_it() {
        let key = ApiKey::new("secret-1");
        assert!(key.matches_header(b"Bearer secret-1") && key.matches_header(b"bearer  secret-1 "));
        for wrong in ["", "Bearer", "Bearer ", "Bearer secret-", "Bearer secret-11", "secret-1"] {
            assert!(!key.matches_header(wrong.as_bytes()), "{wrong}");
        }
        assert!(key.matches_key(b"secret-1") && !key.matches_key(b"Bearer secret-1"));
        assert!(!key.matches_key(b""));
        assert_eq!(format!("{key:?}"), "ApiKey");
    }
}
