//! Ids of files and batches, which are also the names of their files on disk: random, and checked
//! before anything is opened by them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use shm::sync::{AtomicU64, Ordering};

/// Number of hexadecimal digits of an id.
const ID_DIGITS: usize = 32;

/// Beginning of the id of a file.
pub const FILE_PREFIX: &str = "file-";
/// Beginning of the id of a batch.
pub const BATCH_PREFIX: &str = "batch_";

/// Returns true if `text` is the prefix followed by the digits of an id.
pub fn is_id(text: &str, prefix: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(prefix)
        .is_some_and(|digits| digits.len() == ID_DIGITS && digits.bytes().all(is_digit))
}

/// Generator of ids that clients cannot guess.
#[derive(Debug, Default)]
pub struct IdGenerator {
    /// Keyed with random bytes from the system.
    keys: [RandomState; 2],
    count: AtomicU64,
}

impl IdGenerator {
    /// Returns a new id.
    pub fn next_id(&self, prefix: &str) -> String {
        // Relaxed: only the number's uniqueness matters.
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let [high, low] = [0, 1].map(|half| self.keys[half].hash_one((half, number)));
        format!("{prefix}{high:016x}{low:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_no_path_is_one() {
        let (generator, other) = (IdGenerator::default(), IdGenerator::default());
        let mut ids: Vec<String> = (0..100).map(|_| generator.next_id(FILE_PREFIX)).collect();
        ids.push(other.next_id(FILE_PREFIX));
        assert!(ids.iter().all(|id| is_id(id, FILE_PREFIX) && !is_id(id, BATCH_PREFIX)));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 101);
        let digits = "0".repeat(ID_DIGITS);
        for text in ["", "file-", "file-../x", "file-0", &digits, &format!("file-{digits}/")] {
            assert!(!is_id(text, FILE_PREFIX), "{text}");
        }
        let upper = format!("file-{}", "A".repeat(ID_DIGITS));
        assert!(!is_id(&upper, FILE_PREFIX));
    }
}
