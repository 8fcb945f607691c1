//! Decode that attends to some of its cached positions (InfiniGen, as Park-Egger §5.6 runs it).
//!
//! Beside each cached key lie a few columns of it, *skewed* so that these few say most of a score.
//! A new token's query is multiplied with them first, and attends to the positions whose
//! approximate scores are near the largest. Rows of prompts attend to everything.

use serde::{Deserialize, Serialize};

/// Which of the cached positions a new token attends to; part of a run's formats, since it changes
/// answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvSelect {
    /// Positions are counted whose approximate score is at most so far below the largest, in
    /// thousandths. A score is what the softmax takes the exponential of.
    pub alpha_thousandths: u32,
    /// As many of all positions are chosen at most, in thousandths.
    pub max_thousandths: u16,
    /// Share of a key's columns that its partial key has, in thousandths. With all of them the
    /// approximate scores are those of attention, but for rounding.
    pub columns_thousandths: u16,
    /// Identity of the text whose queries and keys the skew follows from.
    pub text: u64,
}

/// The current position and those right before it, which are attended to whatever their scores.
pub const RECENT: u32 = 32;

/// Elements of a partial key, which are bf16: bytes.
const ELEMENT_BYTES: usize = 2;

/// Partial keys have a multiple of so many columns, which are summed side by side.
const COLUMN_STEP: usize = 8;

/// A quarter of a key's columns.
pub const COLUMNS_THOUSANDTHS: u16 = 250;

impl KvSelect {
    /// Columns of the partial key of a head.
    pub const fn partial_columns(&self, head_dim: usize) -> usize {
        (head_dim * self.columns_thousandths as usize / 1000).next_multiple_of(COLUMN_STEP)
    }

    /// Bytes of the partial key of a position of a KV head.
    pub const fn partial_key_bytes(&self, head_dim: usize) -> usize {
        self.partial_columns(head_dim) * ELEMENT_BYTES
    }
}

/// Where a cache of keys of so many bytes has its partial keys, which lie behind the keys in the
/// order of their places; `position_bytes` of one key, `partial_bytes` of one partial key.
pub const fn partial_keys_offset(
    size_bytes: usize,
    position_bytes: usize,
    partial_bytes: usize,
) -> usize {
    size_bytes / (position_bytes + partial_bytes) * position_bytes
}

/// Tokens to find a skew by where nobody gives a text: the same for every run of a model.
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
