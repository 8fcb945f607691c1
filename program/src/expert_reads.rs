//! Reads of the experts that rows are routed to, instead of all experts of a layer.
//!
//! A blob has the matrices of all experts, one after the other, and then their biases. An expert's
//! bytes are read with the blocks that contain them, since blocks are what is verified.

use std::ops::Range;

use model::config::{Dtype, ModelConfig};
use model::experts::Experts;
use model::ops::Op;
use model::quantized_format::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::shares::BLOCK_BYTES;

/// Experts that are read from storages in every step, among those that the CPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertReads {
    /// The experts that rows are routed to, unless almost all are expected.
    #[default]
    Auto,
    /// The experts that rows are routed to. Reads begin when the layer's router has finished.
    Routed,
    /// All experts, while earlier layers are computed.
    All,
}

/// Expected share of a layer's experts up to which only those that rows are routed to are read:
/// reading all of them takes little longer, and overlaps with earlier layers.
const ROUTED_SHARE_MAX: f64 = 0.9;

impl ExpertReads {
    /// Returns the experts of a model if a decode step of these batches reads only those that its
    /// rows are routed to. With several batches, the rows of the others would have to be routed
    /// first.
    pub fn routed_experts(
        self,
        config: &ModelConfig,
        batches: u16,
        batch_size: u16,
    ) -> Option<Experts> {
        let experts = config.experts.filter(|_| batches == 1)?;
        let are_routed = match self {
            ExpertReads::Auto => experts.expected_share(batch_size.into()) <= ROUTED_SHARE_MAX,
            ExpertReads::Routed => true,
            ExpertReads::All => false,
        };
        are_routed.then_some(experts)
    }
}

/// Locations of the experts in the blob of one of their linears, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertBytes {
    /// Size of an expert's matrix; the first one begins with the blob.
    matrix_bytes: u64,
    /// Offset of the first expert's bias in the blob, and size of a bias.
    biases: Option<(u64, u64)>,
}

impl ExpertBytes {
    /// Returns the locations for an operation whose matrices are in `format`; `None` if it is not a
    /// linear of experts.
    pub fn new(
        config: &ModelConfig,
        op: Op,
        dtype: Dtype,
        format: WeightFormat,
    ) -> Option<ExpertBytes> {
        let count = config.experts.filter(|_| op.is_expert())?.count;
        let shape = op.weights(config)?;
        let layout = shape.layout(dtype, format);
        let [bias, _] = shape.vectors;
        let biases = bias
            .map(|all| (layout.vector_offsets[0] as u64, (all / count * size_of::<f32>()) as u64));
        Some(ExpertBytes { matrix_bytes: (layout.matrix_bytes / count) as u64, biases })
    }

    /// Returns the blocks that contain an expert's matrix, and those that contain its bias.
    pub fn blocks_of(&self, expert: u64) -> [Range<u64>; 2] {
        let blocks = |first_bytes: u64, bytes: u64| {
            let start_bytes = first_bytes + expert * bytes;
            start_bytes / BLOCK_BYTES..(start_bytes + bytes).div_ceil(BLOCK_BYTES)
        };
        let bias = self.biases.map_or(0..0, |(first_bytes, bytes)| blocks(first_bytes, bytes));
        [blocks(0, self.matrix_bytes), bias]
    }

    /// Returns the size of a slot with capacity for any of `count` experts.
    pub fn slot(&self, count: u64) -> ExpertSlot {
        let blocks = (0..count).map(|expert| self.blocks_of(expert));
        let lens = blocks.map(|blocks| blocks.map(|range| (range.end - range.start) * BLOCK_BYTES));
        lens.fold(ExpertSlot::default(), |slot, [matrix_bytes, bias_bytes]| ExpertSlot {
            matrix_bytes: slot.matrix_bytes.max(matrix_bytes),
            bias_bytes: slot.bias_bytes.max(bias_bytes),
        })
    }

    /// Returns the offset of an expert's matrix in a slot, and of its bias if it has one. Blocks
    /// are stored whole, so both keep their distances from the beginning of a block.
    pub fn places_in(&self, slot: ExpertSlot, expert: u64) -> (u64, Option<u64>) {
        let within = |first_bytes: u64, bytes: u64| (first_bytes + expert * bytes) % BLOCK_BYTES;
        let bias = |(first_bytes, bytes)| slot.matrix_bytes + within(first_bytes, bytes);
        (within(0, self.matrix_bytes), self.biases.map(bias))
    }

    /// Appends the blocks that contain the experts with `is_routed` to `reads`, as ascending ranges
    /// of which no two touch, each with its offset in the blob: at most two for each expert.
    pub fn blocks(&self, is_routed: &[bool], reads: &mut Vec<BlockRange>) {
        let experts = || (0u64..).zip(is_routed).filter(|(_, is_routed)| **is_routed);
        for part in 0..2 {
            for (expert, _) in experts() {
                let blocks = self.blocks_of(expert)[part].clone();
                match reads.last_mut() {
                    _ if blocks.is_empty() => {}
                    Some((last, _)) if last.end >= blocks.start => {
                        last.end = last.end.max(blocks.end);
                    }
                    _ => {
                        let offset_bytes = blocks.start * BLOCK_BYTES;
                        reads.push((blocks, offset_bytes));
                    }
                }
            }
        }
    }

    /// Appends the blocks of missing experts, each with its offset in a cache of such slots.
    /// `missing` are the experts and the numbers of their slots. Blocks that two experts share are
    /// read for each.
    pub fn missing_blocks(
        &self,
        slot: ExpertSlot,
        missing: impl Iterator<Item = (u64, u32)> + Clone,
        reads: &mut Vec<BlockRange>,
    ) {
        for (part, within_bytes) in [0, slot.matrix_bytes].into_iter().enumerate() {
            for (expert, number) in missing.clone() {
                let blocks = self.blocks_of(expert)[part].clone();
                if !blocks.is_empty() {
                    reads.push((blocks, u64::from(number) * slot.size_bytes() + within_bytes));
                }
            }
        }
    }
}

/// Blocks of a blob, and the offset in bytes to which the first of them is read.
pub type BlockRange = (Range<u64>, u64);

/// Part of a cache in which an expert's weights of one operation are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExpertSlot {
    /// Size of the blocks of a matrix.
    pub matrix_bytes: u64,
    /// Size of the blocks of a bias, which follow.
    pub bias_bytes: u64,
}

impl ExpertSlot {
    /// Returns the size of the slot, a multiple of a block.
    pub const fn size_bytes(self) -> u64 {
        self.matrix_bytes + self.bias_bytes
    }

    /// Returns a slot with capacity for what either has capacity for.
    #[must_use]
    pub fn max(self, other: ExpertSlot) -> ExpertSlot {
        ExpertSlot {
            matrix_bytes: self.matrix_bytes.max(other.matrix_bytes),
            bias_bytes: self.bias_bytes.max(other.bias_bytes),
        }
    }
}

/// Returns the slot that an operation has for each expert in the cache of a map, large enough for
/// every layer whose weights are on storages; `None` if there is no such layer.
pub fn cache_slot(
    config: &ModelConfig,
    dtype: Dtype,
    op: Op,
    mut stored_formats: impl Iterator<Item = WeightFormat>,
) -> Option<ExpertSlot> {
    let count = config.experts?.count as u64;
    let slot = |format| Some(ExpertBytes::new(config, op, dtype, format)?.slot(count));
    let first = slot(stored_formats.next()?)?;
    Some(stored_formats.filter_map(slot).fold(first, ExpertSlot::max))
}

/// Returns the smallest number of slots of a cache for steps of up to `rows` rows: all experts that
/// they are routed to in a layer are needed together.
pub fn min_slots(experts: &Experts, rows: usize) -> u32 {
    experts.count.min(rows.saturating_mul(experts.per_token)) as u32
}

/// Number of words of a layer's list of cached experts, which follows `Value::Routing`: a word for
/// each expert.
pub fn list_words(config: &ModelConfig) -> usize {
    config.experts.map_or(0, |experts| experts.count)
}

/// Keeps the blocks whose positions among all blocks of `reads` are in `kept`.
pub fn keep_blocks(reads: &mut Vec<BlockRange>, kept: Range<u64>) {
    let mut before = 0;
    reads.retain_mut(|(blocks, offset_bytes)| {
        let (first, count) = (blocks.start, blocks.end - blocks.start);
        let within = |position: u64| position.clamp(before, before + count) - before;
        *blocks = first + within(kept.start)..first + within(kept.end);
        *offset_bytes += within(kept.start) * BLOCK_BYTES;
        before += count;
        !blocks.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the blocks of some experts byte by byte.
    fn expected(expert_bytes: &ExpertBytes, is_routed: &[bool]) -> Vec<u64> {
        let mut blocks = Vec::new();
        for (first, bytes) in
            [Some((0, expert_bytes.matrix_bytes)), expert_bytes.biases].into_iter().flatten()
        {
            for expert in (0..is_routed.len()).filter(|expert| is_routed[*expert]) {
                let start = first + expert as u64 * bytes;
                blocks.extend((start..start + bytes).step_by(512).map(|byte| byte / BLOCK_BYTES));
                blocks.push((start + bytes - 1) / BLOCK_BYTES);
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    proptest! {
        #[test]
        fn blocks_contain_the_experts_and_no_others(
            matrix_bytes in 1u64..200_000,
            bias_bytes in prop::option::of(1u64..9_000),
            is_routed in prop::collection::vec(any::<bool>(), 1..20),
            cuts in prop::collection::vec(0.0..1.0, 0..4),
        ) {
            let count = is_routed.len() as u64;
            let first_bias = (count * matrix_bytes).next_multiple_of(64);
            let biases = bias_bytes.map(|bytes| (first_bias, bytes));
            let expert_bytes = ExpertBytes { matrix_bytes, biases };
            let mut reads = Vec::new();
            expert_bytes.blocks(&is_routed, &mut reads);
            prop_assert!(reads.windows(2).all(|pair| pair[0].0.end < pair[1].0.start));
            prop_assert!(reads.iter().all(|(blocks, at)| *at == blocks.start * BLOCK_BYTES));
            let all: Vec<u64> = reads.iter().flat_map(|(blocks, _)| blocks.clone()).collect();
            prop_assert_eq!(&all, &expected(&expert_bytes, &is_routed));
            // Any division keeps each block once.
            let at = |cut: &f64| (cut * all.len() as f64) as u64;
            let mut bounds: Vec<u64> = cuts.iter().map(at).collect();
            bounds.extend([0, all.len() as u64]);
            bounds.sort_unstable();
            let kept = bounds.windows(2).flat_map(|pair| {
                let mut own = reads.clone();
                keep_blocks(&mut own, pair[0]..pair[1]);
                assert!(own.iter().all(|(blocks, at)| *at == blocks.start * BLOCK_BYTES));
                own.into_iter().flat_map(|(blocks, _)| blocks).collect::<Vec<u64>>()
            });
            prop_assert_eq!(kept.collect::<Vec<u64>>(), all);
        }

        #[test]
        fn cached_experts_lie_in_their_slots(
            matrix_bytes in 1u64..200_000,
            bias_bytes in prop::option::of(1u64..9_000),
            count in 1u64..20,
        ) {
            let first_bias = (count * matrix_bytes).next_multiple_of(64);
            let biases = bias_bytes.map(|bytes| (first_bias, bytes));
            let expert_bytes = ExpertBytes { matrix_bytes, biases };
            let slot = expert_bytes.slot(count);
            // Every other expert is missing; slots are assigned backwards.
            let missing = (0..count).filter(|expert| expert.is_multiple_of(2));
            let number = |expert: u64| (expert, (count - expert) as u32);
            let mut reads = Vec::new();
            expert_bytes.missing_blocks(slot, missing.clone().map(number), &mut reads);
            for expert in missing {
                let start = (count - expert) * slot.size_bytes();
                let (matrix, bias) = expert_bytes.places_in(slot, expert);
                let parts = [Some((0, matrix_bytes, matrix)), biases.zip(bias).map(
                    |((first, bytes), place)| (first, bytes, place)
                )];
                for (first, bytes, place) in parts.into_iter().flatten() {
                    let blob_bytes = first + expert * bytes;
                    prop_assert!(place + bytes <= slot.size_bytes());
                    // Each byte is read to its place.
                    for byte in [0, bytes / 2, bytes - 1] {
                        let block = (blob_bytes + byte) / BLOCK_BYTES;
                        let found = reads.iter().any(|(blocks, at)| {
                            blocks.contains(&block)
                                && at + (blob_bytes + byte - blocks.start * BLOCK_BYTES)
                                    == start + place + byte
                        });
                        prop_assert!(found, "expert {} byte {}", expert, byte);
                    }
                }
            }
        }
    }
}
