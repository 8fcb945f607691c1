//! Records of experts on storages: the weights of all linears of one expert of a layer, one after
//! the other, so that one read fetches an expert.
//!
//! A record begins and ends with a block, the unit that is verified. Its parts, a linear's matrix
//! and bias each, begin on 64 bytes. A layer's records follow each other in the order of experts,
//! as one blob. If only some linears of a layer are read, the blocks that contain these are; blocks
//! that two of them share are read once.
//!
//! In memory an expert takes a *slot*, its blocks in ascending order, so that every expert's parts
//! have the same offsets in their slots.

#[cfg(test)]
mod tests;

use std::ops::Range;

use model::config::{Dtype, ModelConfig};
use model::ops::{Op, align_up};
use serde::{Deserialize, Serialize};

use crate::formats::WeightFormats;
use crate::ir::Read;
use crate::shares::BLOCK_BYTES;
use crate::weights::Weights;

/// Linears of an expert, in the order of a record.
const LINEARS: [Op; 3] = [Op::ExpertGate, Op::ExpertUp, Op::ExpertDown];

/// Set of linears of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ExpertOps(u8);

impl ExpertOps {
    /// Returns the set of those operations that are linears of experts.
    pub fn from_ops(ops: impl IntoIterator<Item = Op>) -> ExpertOps {
        ops.into_iter().fold(ExpertOps::default(), ExpertOps::with)
    }

    /// Returns the set with `op`, if it is a linear of experts.
    #[must_use]
    pub fn with(self, op: Op) -> ExpertOps {
        match LINEARS.iter().position(|linear| *linear == op) {
            Some(place) => ExpertOps(self.0 | 1 << place),
            None => self,
        }
    }

    /// Returns true if `op` is in the set.
    pub fn contains(self, op: Op) -> bool {
        self.iter().any(|own| own == op)
    }

    /// Returns true if all of `other` are in the set.
    pub const fn includes(self, other: ExpertOps) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set has no operation.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the operations in the order of a record.
    pub fn iter(self) -> impl Iterator<Item = Op> {
        let all = LINEARS.into_iter().enumerate();
        all.filter(move |(place, _)| self.0 >> place & 1 == 1).map(|(_, op)| op)
    }
}

/// Part of a record: a linear of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPart {
    /// Offset of the matrix in the record.
    pub offset_bytes: u64,
    pub matrix_bytes: u64,
    /// Offset of the bias from that of the matrix.
    pub bias_offset_bytes: u64,
    /// 0 for a linear without a bias.
    pub bias_bytes: u64,
}

impl RecordPart {
    const fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.bias_offset_bytes + self.bias_bytes
    }
}

/// Layout of the records of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRecord {
    /// Number of experts.
    pub count: u64,
    parts: [Option<RecordPart>; LINEARS.len()],
    /// Size of a record, a multiple of a block.
    pub size_bytes: u64,
}

/// Blocks of a blob, and the offset in bytes to which the first of them is read.
pub type BlockRange = (Range<u64>, u64);

impl ExpertRecord {
    /// Returns the layout of a layer's records; `None` for a layer without experts.
    pub fn new(
        config: &ModelConfig,
        layer: u16,
        dtype: Dtype,
        formats: &WeightFormats,
    ) -> Option<ExpertRecord> {
        let count = config.experts?.count;
        let model = config.of_layer(layer.into());
        let mut end_bytes = 0;
        let parts = LINEARS.map(|op| {
            config.index_in_layer(layer.into(), op)?;
            let shape = op.weights(model)?;
            let format = formats.of(config, Weights::Layer { layer, op });
            let matrix_bytes = shape.layout(dtype, format).matrix_bytes / count;
            let part = RecordPart {
                offset_bytes: end_bytes,
                matrix_bytes: matrix_bytes as u64,
                bias_offset_bytes: align_up(matrix_bytes) as u64,
                bias_bytes: (shape.vectors[0].unwrap_or(0) / count * size_of::<f32>()) as u64,
            };
            end_bytes = align_up(part.end_bytes() as usize) as u64;
            Some(part)
        });
        let size_bytes = end_bytes.next_multiple_of(BLOCK_BYTES);
        let record = ExpertRecord { count: count as u64, parts, size_bytes };
        (end_bytes > 0).then_some(record)
    }

    /// Returns the name of the blob with a layer's records.
    pub fn blob_name(layer: u16) -> String {
        format!("weights.layer{layer}.experts")
    }

    /// Returns the size of the blob with all records.
    pub const fn blob_bytes(&self) -> u64 {
        self.count * self.size_bytes
    }

    /// Returns a linear's part; `None` for a linear that the layer lacks.
    pub fn part(&self, op: Op) -> Option<RecordPart> {
        self.parts[LINEARS.iter().position(|linear| *linear == op)?]
    }

    /// Returns the linears of the layer.
    pub fn ops(&self) -> ExpertOps {
        ExpertOps::from_ops(LINEARS.into_iter().filter(|op| self.part(*op).is_some()))
    }

    /// Returns the blocks of a record that contain `ops`, as ascending ranges of which no two
    /// touch, followed by empty ones.
    fn runs(&self, ops: ExpertOps) -> [Range<u64>; LINEARS.len()] {
        let mut runs = [const { 0..0 }; LINEARS.len()];
        let mut last = 0;
        for part in ops.iter().filter_map(|op| self.part(op)) {
            let blocks = part.offset_bytes / BLOCK_BYTES..part.end_bytes().div_ceil(BLOCK_BYTES);
            let run = &mut runs[last];
            if run.start >= run.end {
                *run = blocks;
            } else if blocks.start <= run.end {
                run.end = blocks.end;
            } else {
                last += 1;
                runs[last] = blocks;
            }
        }
        runs
    }

    /// Returns the size of a slot for the linears `ops` of an expert.
    pub fn slot_bytes(&self, ops: ExpertOps) -> u64 {
        self.runs(ops).iter().map(|run| (run.end - run.start) * BLOCK_BYTES).sum()
    }

    /// Returns the offset of a linear's matrix in a slot for `ops`, which include it; `None` for a
    /// linear that the layer lacks.
    pub fn place_in_slot(&self, ops: ExpertOps, op: Op) -> Option<u64> {
        let part = self.part(op)?;
        let mut before_bytes = 0;
        for run in self.runs(ops) {
            let (start, end) = (run.start * BLOCK_BYTES, run.end * BLOCK_BYTES);
            if (start..end).contains(&part.offset_bytes) {
                return Some(before_bytes + part.offset_bytes - start);
            }
            before_bytes += end - start;
        }
        None
    }

    /// Appends the blocks of the linears `ops` of an expert to `reads`, to a slot at `to_bytes`.
    /// Blocks that continue the last range, at its source and at its destination, extend it.
    pub fn append_blocks(
        &self,
        ops: ExpertOps,
        expert: u64,
        mut to_bytes: u64,
        reads: &mut Vec<BlockRange>,
    ) {
        let first = expert * (self.size_bytes / BLOCK_BYTES);
        for run in self.runs(ops).into_iter().filter(|run| run.start < run.end) {
            let blocks = first + run.start..first + run.end;
            match reads.last_mut() {
                Some((last, at_bytes))
                    if last.end == blocks.start
                        && *at_bytes + (last.end - last.start) * BLOCK_BYTES == to_bytes =>
                {
                    last.end = blocks.end;
                }
                _ => reads.push((blocks, to_bytes)),
            }
            to_bytes += (run.end - run.start) * BLOCK_BYTES;
        }
    }
}

/// Maximum number of ranges of blocks that a read of `count` experts has.
pub const fn max_ranges(count: usize) -> usize {
    // Adjacent linears are in one range.
    count * LINEARS.len().div_ceil(2)
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
        blocks.start < blocks.end
    });
}

impl Read {
    /// Returns the linears of experts that the read fetches; none for other weights.
    pub fn expert_ops(&self) -> ExpertOps {
        let joined = self.joined.iter().map(|joined| joined.op);
        ExpertOps::from_ops(joined.chain([self.op]))
    }
}
