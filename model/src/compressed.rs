//! Sizes of the compressed forms of weights and of the KV cache: pure arithmetic, for the planner,
//! the compiler and the kernels, which must agree on every byte. `kernels::grouped` makes and reads
//! the forms themselves.
//!
//! **Grouped weights.** A matrix `[n, k]` is cut into groups of consecutive inputs; a value is
//! `scale * q + min` with an f16 scale and minimum per output row and group. Output rows lie
//! interleaved in blocks of [`ROWS`], so that a vector lane is an output row. The matrix is `blocks
//! x groups` records, all groups of a block behind each other. A record is a multiple of 64 bytes:
//! 16 scales, 16 minimums, then the integers of 16 rows and one group. `n` is padded to whole
//! blocks and `k` to whole groups, with zeros.
//!
//! **4-bit KV.** One record per sequence, KV head and position: `head_dim / 2` bytes of 4-bit
//! integers, then an f16 scale per group, then an f16 minimum per group.

use serde::{Deserialize, Serialize};

/// Output rows of a block, interleaved in a record.
pub const ROWS: usize = 16;

/// Elements along the head that share a scale and a minimum in a 4-bit KV cache; the last group of
/// a head is shorter when the head is no multiple of it.
pub const KV_GROUP: usize = 64;

/// Bits of one integer of a grouped matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Bits {
    /// Unsigned, 0 to 15.
    Four,
    /// Signed, -128 to 127.
    Eight,
}

impl Bits {
    /// 4 or 8.
    pub const fn count(self) -> usize {
        match self {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }
}

/// A grouped form of a weight matrix; see the module header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grouped {
    /// Bits of an integer.
    pub bits: Bits,
    /// Consecutive inputs that share a scale and a minimum: 32 or 64.
    pub group: usize,
}

impl Grouped {
    /// What `--compress w4` makes of a weight: 4 bits in groups of 64.
    pub const W4: Grouped = Grouped { bits: Bits::Four, group: 64 };
    /// What GGUF's Q4_0 and Q4_1 become without loss: 4 bits in groups of 32.
    pub const GGUF_Q4: Grouped = Grouped { bits: Bits::Four, group: 32 };
    /// What GGUF's Q8_0 becomes without loss: 8 bits in groups of 32.
    pub const GGUF_Q8: Grouped = Grouped { bits: Bits::Eight, group: 32 };

    /// The form that decompression widens this one to: 8 bits, the same groups, the same values.
    pub const fn widened(self) -> Grouped {
        Grouped { bits: Bits::Eight, group: self.group }
    }

    /// Bytes of a record, [`ROWS`] rows of one group: a multiple of 64.
    pub const fn record_bytes(self) -> usize {
        4 * ROWS + ROWS * self.group * self.bits.count() / 8
    }

    /// Blocks of [`ROWS`] output rows that hold `n` rows.
    pub const fn blocks(self, n: usize) -> usize {
        n.div_ceil(ROWS)
    }

    /// Groups that hold `k` inputs.
    pub const fn groups(self, k: usize) -> usize {
        k.div_ceil(self.group)
    }

    /// Bytes of one block of [`ROWS`] output rows of `k` inputs.
    pub const fn block_bytes(self, k: usize) -> usize {
        self.groups(k) * self.record_bytes()
    }

    /// Bytes of a matrix `[n, k]`.
    pub const fn size_bytes(self, n: usize, k: usize) -> usize {
        self.blocks(n) * self.block_bytes(k)
    }
}

/// How a weight matrix is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum WeightFormat {
    /// Row-major `[n, k]` in the run's dtype.
    #[default]
    Plain,
    /// Groups of low-bit integers.
    Grouped(Grouped),
}

/// Groups of a head of `head_dim` elements in a 4-bit KV cache.
pub const fn kv4_groups(head_dim: usize) -> usize {
    head_dim.div_ceil(KV_GROUP)
}

/// Bytes of one position of one KV head (K or V) in a 4-bit KV cache; `None` when `head_dim` is odd
/// or 0, which that cache cannot hold.
pub const fn kv4_position_bytes(head_dim: usize) -> Option<usize> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return None;
    }
    Some(head_dim / 2 + 4 * kv4_groups(head_dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_their_documented_sizes() {
        assert_eq!(Grouped::W4.record_bytes(), 576);
        assert_eq!(Grouped::GGUF_Q4.record_bytes(), 320);
        assert_eq!(Grouped::W4.widened().record_bytes(), 1088);
        assert_eq!(Grouped::GGUF_Q8.record_bytes(), 576);
        assert_eq!(Grouped::GGUF_Q4.widened(), Grouped::GGUF_Q8);
        for form in [Grouped::W4, Grouped::GGUF_Q4, Grouped::GGUF_Q8, Grouped::W4.widened()] {
            assert_eq!(form.record_bytes() % 64, 0, "{form:?}");
        }
    }

    #[test]
    fn matrices_are_padded_to_whole_blocks_and_groups() {
        let w4 = Grouped::W4;
        assert_eq!((w4.blocks(16), w4.blocks(17), w4.groups(64), w4.groups(65)), (1, 2, 1, 2));
        assert_eq!(w4.size_bytes(16, 64), 576);
        assert_eq!(w4.size_bytes(17, 65), 4 * 576);
        assert_eq!(Grouped::GGUF_Q8.size_bytes(32, 96), 2 * 3 * 576);
        // 4.5 bits a weight where nothing is padded.
        assert_eq!(w4.size_bytes(7168, 7168) * 16, 7168 * 7168 * 9);
    }

    #[test]
    fn kv_positions_hold_their_groups_and_odd_heads_are_refused() {
        let cases = [(2, 5), (8, 8), (64, 36), (66, 41), (80, 48), (96, 56), (128, 72), (256, 144)];
        for (head_dim, bytes) in cases {
            assert_eq!(kv4_position_bytes(head_dim), Some(bytes), "head_dim {head_dim}");
        }
        assert_eq!(kv4_position_bytes(63), None);
        assert_eq!(kv4_position_bytes(0), None);
    }
}
