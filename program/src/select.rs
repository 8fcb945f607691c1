//! Decode that attends to a subset of the cached positions (InfiniGen, as in Park-Egger §5.6).
//!
//! Each cached key is stored together with a few of its columns, *skewed* so that these determine
//! most of a score. A new token's query is first multiplied with them, and attends to the positions
//! whose approximate scores are close to the maximum. Prompt rows attend to all positions.

use serde::{Deserialize, Serialize};

/// Selection of the cached positions to which a new token attends. It belongs to a run's formats,
/// since it changes answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvSelect {
    /// Maximum distance of an approximate score from the largest one for its position to count, in
    /// thousandths. A score is the argument of the softmax's exponential.
    pub alpha_thousandths: u32,
    /// Maximum share of all positions that is selected, in thousandths.
    pub max_thousandths: u16,
    /// Share of a key's columns in its partial key, in thousandths. With all columns, approximate
    /// scores equal those of attention up to rounding.
    pub columns_thousandths: u16,
    /// Identity of the text whose queries and keys determine the skew.
    pub text: u64,
}

/// Number of most recent positions, including the current one, that are always attended to.
pub const RECENT: u32 = 32;

/// Size of an element of a partial key (bf16), in bytes.
const ELEMENT_BYTES: usize = 2;

/// Partial keys have a multiple of this number of columns, which are summed in parallel.
const COLUMN_STEP: usize = 8;

/// Default share of a key's columns: a quarter.
pub const COLUMNS_THOUSANDTHS: u16 = 250;

impl KvSelect {
    /// Returns the number of columns in the partial key of a head.
    pub const fn partial_columns(&self, head_dim: usize) -> usize {
        (head_dim * self.columns_thousandths as usize / 1000).next_multiple_of(COLUMN_STEP)
    }

    /// Returns the bytes of the partial key of one position of a KV head.
    pub const fn partial_key_bytes(&self, head_dim: usize) -> usize {
        self.partial_columns(head_dim) * ELEMENT_BYTES
    }
}

/// Returns the offset of the partial keys in a cache of keys; they follow the keys in the same
/// order. `position_bytes` is the size of one key, `partial_bytes` of one partial key.
pub const fn partial_keys_offset(
    size_bytes: usize,
    position_bytes: usize,
    partial_bytes: usize,
) -> usize {
    size_bytes / (position_bytes + partial_bytes) * position_bytes
}

/// Returns the tokens for finding a skew if no text is given, the same for every run of a model.
pub fn seeded_text(vocab_size: usize, count: usize) -> Vec<u32> {
    let mut state = 0x5eed_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab_size as u64) as u32
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_keys_lie_behind_the_keys_and_within_the_cache() {
        let select = KvSelect {
            alpha_thousandths: 4000,
            max_thousandths: 200,
            columns_thousandths: COLUMNS_THOUSANDTHS,
            text: 0,
        };
        for (head_dim, position_bytes) in [(64, 128), (128, 72), (80, 160), (8, 32)] {
            for places in [1usize, 7, 1000] {
                let partial = select.partial_key_bytes(head_dim);
                let least = places * (position_bytes + partial);
                for size_bytes in [least, least.next_multiple_of(64)] {
                    let offset = partial_keys_offset(size_bytes, position_bytes, partial);
                    assert!(offset >= places * position_bytes);
                    assert!(offset + places * partial <= size_bytes);
                    assert!(offset.is_multiple_of(ELEMENT_BYTES));
                }
            }
        }
    }
}
