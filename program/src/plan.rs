//! A plan: everything workers need to know, in one value that travels to them.

use model::config::{Dtype, ModelConfig};
use serde::{Deserialize, Serialize};

use crate::ir::{BufferId, Lane, Program};
use crate::map::DeviceMap;
use crate::step_table::StepTableLayout;
use crate::weights::Weights;

/// The maxima that bound every size in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// N of `--batches NxB`.
    pub batches: u16,
    /// B of `--batches NxB`, sequences.
    pub batch_size: u16,
    /// Longest prompt of any group, positions.
    pub max_prompt: u32,
    /// Positions with which all prompts of all groups begin alike, and which a micro-batch of prefill computes once;
    /// 0: each prompt is computed whole.
    pub shared_prompt: u32,
    /// Longest prompt + output of any sequence, positions.
    pub max_context: u32,
    /// Largest number of new tokens of any sequence.
    pub max_new: u32,
    /// Log-probabilities that are kept of each new token, at most: its own, then those of the most likely tokens.
    pub logprobs: u16,
    /// Whole sequences per micro-batch of prefill.
    pub micro_sequences: u16,
    pub dtype: Dtype,
}

impl RunShape {
    /// Micro-batches of a batch in prefill.
    pub fn micros(&self) -> u16 {
        self.batch_size.div_ceil(self.micro_sequences)
    }

    /// Most rows of a micro-batch in prefill.
    pub fn micro_rows(&self) -> usize {
        let others = usize::from(self.micro_sequences).saturating_sub(1);
        self.max_prompt as usize + others * self.own_rows() as usize
    }

    /// Most rows of a sequence of a micro-batch in prefill that is not its first.
    pub fn own_rows(&self) -> u32 {
        self.max_prompt.saturating_sub(self.shared_prompt).max(1)
    }
}

/// A kind of memory; each is one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Memory {
    HostWeights,
    HostKv,
    HostActivations,
    /// The device arena.
    Device,
    /// The step table, in the control segment; buffers here have no address.
    Control,
}

impl Memory {
    /// Those that are segments of their own.
    pub const SEGMENTS: [Memory; 4] =
        [Memory::HostWeights, Memory::HostKv, Memory::HostActivations, Memory::Device];
}

/// A named range of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    pub name: String,
    pub memory: Memory,
    pub offset_bytes: u64,
    pub size_bytes: u64,
}

/// Which weights fill a host buffer at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightPlacement {
    pub buffer: BufferId,
    pub weights: Weights,
}

/// Host weights that the transfer worker puts into device memory once, at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentWeights {
    pub from: BufferId,
    pub to: BufferId,
}

/// A compiled, self-contained run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub config: ModelConfig,
    pub shape: RunShape,
    pub map: DeviceMap,
    pub buffers: Vec<Buffer>,
    pub weights: Vec<WeightPlacement>,
    pub resident: Vec<ResidentWeights>,
    pub table: StepTableLayout,
    pub prefill: Program,
    pub decode: Program,
}

/// What memory a plan takes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub host_weights_bytes: u64,
    pub host_kv_bytes: u64,
    pub host_activations_bytes: u64,
    /// The device arena.
    pub device_bytes: u64,
    pub step_table_bytes: u64,
}

impl Footprint {
    pub(crate) fn new(buffers: &[Buffer], table: &StepTableLayout) -> Footprint {
        Footprint {
            host_weights_bytes: end_bytes(buffers, Memory::HostWeights),
            host_kv_bytes: end_bytes(buffers, Memory::HostKv),
            host_activations_bytes: end_bytes(buffers, Memory::HostActivations),
            device_bytes: end_bytes(buffers, Memory::Device),
            step_table_bytes: table.words() as u64 * 4,
        }
    }
}

/// The end of the last buffer of a segment.
fn end_bytes(buffers: &[Buffer], memory: Memory) -> u64 {
    buffers
        .iter()
        .filter(|buffer| buffer.memory == memory)
        .map(|buffer| buffer.offset_bytes + buffer.size_bytes)
        .max()
        .unwrap_or(0)
}

impl Plan {
    /// Size of a segment: the end of its last buffer.
    pub fn memory_bytes(&self, memory: Memory) -> u64 {
        end_bytes(&self.buffers, memory)
    }

    /// What memory the plan takes.
    pub fn footprint(&self) -> Footprint {
        Footprint::new(&self.buffers, &self.table)
    }

    /// A buffer by id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Lanes with work in either phase, in timeline order.
    pub fn lanes(&self) -> Vec<Lane> {
        Lane::ALL
            .into_iter()
            .filter(|lane| self.prefill.lane(*lane).is_some() || self.decode.lane(*lane).is_some())
            .collect()
    }
}
