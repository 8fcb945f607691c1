//! The share of a weight that each storage reads.
//!
//! Every storage holds all weights that are stored on drives, so a weight may be divided between
//! them anywhere; it is divided at blocks, which have checksums. The speed of the storages when
//! they read concurrently determines the division (Park-Egger §4.1); a lost storage reads nothing.

use std::ops::Range;

use model::ops::Op;
use serde::{Deserialize, Serialize};

/// Bytes of a block, except for a weight's last one.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// The storages of a map, and their shares of each operation's weights, in arbitrary units.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReadShares {
    /// Default shares, by storage.
    shares: Vec<u32>,
    /// Shares of operations whose weights were balanced separately.
    of_ops: Vec<(Op, Vec<u32>)>,
}

impl ReadShares {
    /// Returns equal shares for the given number of storages.
    pub fn equal(storages: u16) -> ReadShares {
        ReadShares { shares: vec![1; usize::from(storages)], of_ops: Vec::new() }
    }

    /// Returns shares by storage.
    pub fn new(shares: Vec<u32>) -> ReadShares {
        ReadShares { shares, of_ops: Vec::new() }
    }

    /// Replaces the shares of an operation's weights.
    ///
    /// # Panics
    /// If the number of storages differs.
    #[must_use]
    pub fn with(mut self, op: Op, shares: Vec<u32>) -> ReadShares {
        assert_eq!(shares.len(), self.shares.len(), "shares of the same storages");
        self.of_ops.retain(|(other, _)| *other != op);
        self.of_ops.push((op, shares));
        self
    }

    /// Number of storages.
    pub fn storages(&self) -> u16 {
        self.shares.len() as u16
    }

    /// Returns the shares of an operation's weights, by storage.
    pub fn of(&self, op: Op) -> &[u32] {
        let own = self.of_ops.iter().find(|(other, _)| *other == op);
        own.map_or(&self.shares, |(_, shares)| shares)
    }

    /// Returns the range of a weight's `blocks` blocks that a storage reads; storages for which
    /// `is_lost` returns true read nothing.
    pub fn blocks(
        &self,
        op: Op,
        storage: u16,
        blocks: u64,
        is_lost: impl Fn(u16) -> bool,
    ) -> Range<u64> {
        let shares = self.of(op);
        let left = |index: u16, share: u32| if is_lost(index) { 0 } else { u128::from(share) };
        let of = |shares: &[u32]| (0..).zip(shares).map(|(i, share)| left(i, *share)).sum::<u128>();
        let total = of(shares);
        if total == 0 {
            // The remaining storages had no share: the first of them reads everything.
            let first = (0..self.storages()).find(|index| !is_lost(*index));
            return if first == Some(storage) { 0..blocks } else { 0..0 };
        }
        let cut =
            |count: usize| ((u128::from(blocks) * of(&shares[..count]) + total / 2) / total) as u64;
        cut(usize::from(storage))..cut(usize::from(storage) + 1)
    }
}

/// Returns the byte range of some blocks of a weight of `size_bytes` bytes.
pub fn bytes_of(blocks: &Range<u64>, size_bytes: u64) -> Range<u64> {
    let at = |block: u64| (block * BLOCK_BYTES).min(size_bytes);
    at(blocks.start)..at(blocks.end)
}

/// Returns the number of blocks of a weight of `size_bytes` bytes.
pub const fn blocks_of(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(shares: &ReadShares, blocks: u64, lost: &[u16]) -> Vec<Range<u64>> {
        let storages = 0..shares.storages();
        storages.map(|index| shares.blocks(Op::Q, index, blocks, |i| lost.contains(&i))).collect()
    }

    #[test]
    fn a_lost_storage_leaves_its_share_to_the_others() {
        let shares = ReadShares::new(vec![1, 2, 1]);
        assert_eq!(all(&shares, 100, &[]), [0..25, 25..75, 75..100]);
        assert_eq!(all(&shares, 100, &[1]), [0..50, 50..50, 50..100]);
        assert_eq!(all(&shares, 100, &[0, 2]), [0..0, 0..100, 100..100]);
        let idle = ReadShares::new(vec![1, 0]).with(Op::K, vec![0, 1]);
        assert_eq!(all(&idle, 9, &[0]), [0..0, 0..9]);
        assert_eq!(idle.blocks(Op::K, 1, 9, |_| false), 0..9);
    }

    proptest! {
        #[test]
        fn every_block_is_read_once(
            shares in prop::collection::vec(0u32..1000, 1..6),
            blocks in 0u64..10_000,
            lost in prop::collection::vec(0u16..6, 0..5),
        ) {
            let storages = shares.len() as u16;
            prop_assume!((0..storages).any(|index| !lost.contains(&index)));
            let ranges = all(&ReadShares::new(shares), blocks, &lost);
            let mut next = 0;
            for (index, range) in (0u16..).zip(ranges) {
                if range.is_empty() { continue; }
                prop_assert!(!lost.contains(&index));
                prop_assert_eq!(range.start, next);
                next = range.end;
            }
            prop_assert_eq!(next, blocks);
        }
    }
}
