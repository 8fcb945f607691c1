//! Unit of measurement and pricing: instructions that do the same work on the same lane.
//!
//! The recorder sorts the spans of hand-made programs by [`WorkKey`], and the cost model looks up
//! compiled programs by it, with the same function. Every instruction of a compiled program is
//! therefore either priced by a measurement of the same instruction or reported as missing.

use model::ops::{Kv, Op, Value};
use model::quantized_format::WeightFormat;
use program::formats::KvFormat;
use program::ir::{Instruction, Moved};
use program::map::Chunk;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;
use program::weights::Weights;
use serde::{Deserialize, Serialize};

use crate::lane_names;

/// The work of an instruction, without its place in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfiledWork {
    Compute {
        op: Op,
        chunk: Option<Chunk>,
        /// Format in which the host stores the matrix; `Plain` if there is none.
        weights: WeightFormat,
        /// Format in which the cache is stored; `None` for operations that read none.
        kv: Option<KvFormat>,
    },
    CopyWeights {
        op: Op,
        weights: WeightFormat,
    },
    CopyValue {
        value: Value,
        chunk: Option<Chunk>,
    },
    CopyCache {
        cache: Kv,
        chunk: Option<Chunk>,
        kv: KvFormat,
    },
    Append {
        cache: Kv,
        chunk: Option<Chunk>,
        kv: KvFormat,
    },
    Decompress {
        op: Op,
        weights: WeightFormat,
    },
    /// A read from a storage to the host, which profiles do not measure yet.
    Read {
        op: Op,
        weights: WeightFormat,
    },
}

/// A kind of work on a lane; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkKey {
    /// The lane. Appends of `cpu.append` count as those of `cpu.compute`: they run the same code on
    /// the same host.
    #[serde(with = "lane_names")]
    pub lane: LaneId,
    /// The phase, only if the same instruction has another cost in the other phase.
    pub phase: Option<Phase>,
    pub work: ProfiledWork,
}

/// Quantities on which the cost of a kind of work depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CostDependency {
    Nothing,
    /// Rows of the residual stream.
    Rows,
    /// Sequences, each with one row.
    Sequences,
    /// Sequences, and the positions of each.
    SequencesAndPositions,
}

/// A point at which work is measured or priced; an irrelevant coordinate is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    pub rows: u32,
    pub positions: u32,
}

/// Sequences of equal length: in decode with this number of cached positions each, in prefill with
/// this number of prompt tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub sequences: u32,
    pub positions: u32,
}

fn proper_chunk(chunk: Option<Chunk>) -> Option<Chunk> {
    chunk.filter(|chunk| chunk.of > 1)
}

/// Returns the operation whose measurements contain those of `op`: the last linear of experts
/// includes the sum over a row's experts.
const fn measured_op(op: Op) -> Op {
    match op {
        Op::ExpertCombine => Op::ExpertDown,
        other => other,
    }
}

impl WorkKey {
    /// Returns the key of a work instruction of `plan`; `None` for `Wait` and `Signal`.
    pub fn from_instruction(
        plan: &Plan,
        phase: Phase,
        lane: LaneId,
        instruction: &Instruction,
    ) -> Option<WorkKey> {
        let stored =
            |op: Op, layer| plan.map.weight_formats.of(&plan.config, Weights::of(op, layer));
        let kv = plan.map.kv_format;
        let work = match instruction {
            Instruction::Compute(compute) => {
                let op = measured_op(compute.op);
                let weights = match op.weights(&plan.config) {
                    Some(shape) if shape.matrix.is_some() => stored(op, compute.at.layer),
                    _ => WeightFormat::Plain,
                };
                // A state is f32 in every run.
                let has_cache = op.is_attention() && !op.caches(&plan.config).is_empty();
                let (chunk, kv) = (proper_chunk(compute.chunk), has_cache.then_some(kv));
                ProfiledWork::Compute { op, chunk, weights, kv }
            }
            Instruction::Copy(copy) => match copy.moved {
                // Attention in one operation has the weights of its softmax.
                Moved::Weights(op) => ProfiledWork::CopyWeights {
                    op: op.weights_op(),
                    weights: stored(op, copy.at.layer),
                },
                Moved::Value(value) | Moved::Deferred(value) => {
                    ProfiledWork::CopyValue { value, chunk: proper_chunk(copy.chunk) }
                }
                Moved::Cache(cache) | Moved::Sequences(cache) => {
                    ProfiledWork::CopyCache { cache, chunk: proper_chunk(copy.chunk), kv }
                }
            },
            Instruction::Append(append) => ProfiledWork::Append {
                cache: append.kv,
                chunk: proper_chunk(Some(append.chunk)),
                kv,
            },
            Instruction::Decompress(decompress) => ProfiledWork::Decompress {
                op: decompress.op,
                weights: stored(decompress.op, decompress.at.layer),
            },
            Instruction::Read(read) => {
                ProfiledWork::Read { op: read.op, weights: stored(read.op, read.at.layer) }
            }
            Instruction::Wait(_) | Instruction::Signal => return None,
        };
        let lane = if lane == LaneId::CPU_APPEND { LaneId::CPU_COMPUTE } else { lane };
        let phase = (work.dependency() == CostDependency::SequencesAndPositions).then_some(phase);
        Some(WorkKey { lane, phase, work })
    }

    /// Returns true if the cost depends on the positions of sequences.
    pub(crate) fn depends_on_positions(&self) -> bool {
        self.work.dependency() == CostDependency::SequencesAndPositions
    }

    /// Returns true if each position attends to the preceding ones: attention over prompts.
    pub(crate) fn attends_to_prompt(&self) -> bool {
        let attends = matches!(self.work, ProfiledWork::Compute { op, .. } if op.is_attention());
        attends && self.phase == Some(Phase::Prefill)
    }

    /// Returns true if the cost depends on the number of rows.
    pub(crate) fn depends_on_rows(&self) -> bool {
        self.work.dependency() == CostDependency::Rows
    }

    /// Returns the point of an instruction over `extent`.
    pub fn point(&self, phase: Phase, extent: Extent) -> Point {
        let Extent { sequences, positions } = extent;
        match (self.work.dependency(), phase) {
            (CostDependency::Nothing, _) => Point { rows: 0, positions: 0 },
            (CostDependency::Sequences, _) | (CostDependency::Rows, Phase::Decode) => {
                Point { rows: sequences, positions: 0 }
            }
            (CostDependency::Rows, Phase::Prefill) => {
                Point { rows: sequences * positions, positions: 0 }
            }
            (CostDependency::SequencesAndPositions, _) => Point { rows: sequences, positions },
        }
    }
}

impl ProfiledWork {
    fn dependency(self) -> CostDependency {
        match self {
            ProfiledWork::CopyWeights { .. }
            | ProfiledWork::Decompress { .. }
            | ProfiledWork::Read { .. } => CostDependency::Nothing,
            ProfiledWork::Compute { op: Op::FinalNorm | Op::Head | Op::Sample, .. }
            | ProfiledWork::CopyValue { value: Value::LastNormed | Value::Logits, .. } => {
                CostDependency::Sequences
            }
            ProfiledWork::Compute { op, .. } if op.is_attention() || op.updates_state() => {
                CostDependency::SequencesAndPositions
            }
            ProfiledWork::CopyValue { value: Value::Scores | Value::Probabilities, .. }
            | ProfiledWork::CopyCache { .. }
            | ProfiledWork::Append { .. } => CostDependency::SequencesAndPositions,
            ProfiledWork::Compute { .. } | ProfiledWork::CopyValue { .. } => CostDependency::Rows,
        }
    }
}
