//! What part of a weight each storage reads.
//!
//! Every storage holds all weights that live on storages, so a weight may be cut between them
//! anywhere; it is cut at blocks, which have checksums. How fast storages read beside each other
//! decides where (Park-Egger §4.1), and a storage that is lost reads nothing any more.

use std::ops::Range;

use model::ops::Op;
use serde::{Deserialize, Serialize};

/// Bytes of a block, but for a weight's last one.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// The storages of a map, and their shares of each operation's weights, in any unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReadShares {
    /// By storage.
    shares: Vec<u32>,
    /// Those of operations whose weights were balanced by themselves.
    of_ops: Vec<(Op, Vec<u32>)>,
}

impl ReadShares {
    /// The same share of everything for each of so many storages.
    pub fn equal(storages: u16) -> ReadShares {
        ReadShares { shares: vec![1; usize::from(storages)], of_ops: Vec::new() }
    }

    /// Shares by storage.
    pub fn new(shares: Vec<u32>) -> ReadShares {
        ReadShares { shares, of_ops: Vec::new() }
    }

    /// The same with other shares of an operation's weights.
    ///
    /// # Panics
    /// Shares of another number of storages.
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

    /// Shares of an operation's weights, by storage.
    pub fn of(&self, op: Op) -> &[u32] {
        let own = self.of_ops.iter().find(|(other, _)| *other == op);
        own.map_or(&self.shares, |(_, shares)| shares)
    }

    /// Which of a weight's `blocks` blocks a storage reads, where those for which `is_lost` holds
    /// read nothing.
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
            // Who is left had no share: the first of them reads everything.
            let first = (0..self.storages()).find(|index| !is_lost(*index));
            return if first == Some(storage) { 0..blocks } else { 0..0 };
        }
        let cut =
            |count: usize| ((u128::from(blocks) * of(&shares[..count]) + total / 2) / total) as u64;
        cut(usize::from(storage))..cut(usize::from(storage) + 1)
    }
}

/// Where the bytes of some blocks of a weight of so many bytes lie in it.
pub fn bytes_of(blocks: &Range<u64>, size_bytes: u64) -> Range<u64> {
    let at = |block: u64| (block * BLOCK_BYTES).min(size_bytes);
    at(blocks.start)..at(blocks.end)
}

/// Blocks of a weight of so many bytes.
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
