//! Sequences owned by the device or by the host, in a serving run.
//!
//! All linears run on the device. K and V of a sequence are stored with its owner, which computes
//! its attention; for whole prompts, which need no cache, the device computes attention. A cache
//! has two parts, [`DEVICE`] and [`HOST`], so an instruction that names a chunk of two refers to an
//! owner: for queries and attended values the rows for which that side computes attention, for keys
//! and values the rows of its sequences, and for a cache its part.

use model::config::ModelConfig;
use model::ops::{Op, Value};
use serde::{Deserialize, Serialize};

use crate::map::{
    Chunk, ChunkOrder, Chunking, ComputeDevice, DeviceMap, LayerKv, OpChunk, layer_list,
};
use crate::topology::MemoryId;

/// Sequences owned by the device.
pub const DEVICE: Chunk = Chunk { index: 0, of: 2 };
/// Sequences owned by the host.
pub const HOST: Chunk = Chunk { index: 1, of: 2 };

/// Assignment of attention for the rows of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AttentionSide {
    /// The assignment of the device map, for sequences of any slot.
    Mapped,
    /// The device, for all rows.
    Device,
    /// The owner of each sequence. Sequences of all streams after the first belong to the host, and
    /// none of them is a whole prompt.
    Owners,
    /// The device, except for deferred rows, which the host computes (`crate::deferred_rows`).
    Deferred,
}

/// Assignment of attention for one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamSide {
    Mapped,
    /// The device for all rows; the sequences may belong to either owner.
    Device,
    /// Both owners.
    Both,
    /// The host for all rows; it owns all sequences.
    Host,
    /// The device, except for deferred rows on the host, which join and leave between layers.
    Deferred,
}

impl AttentionSide {
    /// Returns the assignment of attention for the rows of a stream.
    pub const fn side(self, stream: u16) -> StreamSide {
        match (self, stream) {
            (AttentionSide::Mapped, _) => StreamSide::Mapped,
            (AttentionSide::Device, _) => StreamSide::Device,
            (AttentionSide::Owners, 0) => StreamSide::Both,
            (AttentionSide::Owners, _) => StreamSide::Host,
            (AttentionSide::Deferred, _) => StreamSide::Deferred,
        }
    }
}

impl StreamSide {
    /// Returns true if attention of a chunk is part of a stream's work.
    pub fn attends(self, chunk: Option<Chunk>) -> bool {
        match self {
            StreamSide::Mapped => true,
            StreamSide::Device => chunk == Some(DEVICE),
            StreamSide::Both | StreamSide::Deferred => chunk == Some(DEVICE) || chunk == Some(HOST),
            StreamSide::Host => chunk == Some(HOST),
        }
    }

    /// Returns true if this is the last attention of a stream's work in a layer.
    pub fn attends_last(self, chunk: Option<Chunk>) -> bool {
        match self {
            StreamSide::Mapped => chunk.is_none_or(|chunk| chunk.index + 1 == chunk.of),
            StreamSide::Device => chunk == Some(DEVICE),
            StreamSide::Both | StreamSide::Host | StreamSide::Deferred => chunk == Some(HOST),
        }
    }

    /// Returns true if a stream has rows for a part of the caches.
    pub fn fills(self, part: Chunk) -> bool {
        self != StreamSide::Host || part == HOST
    }

    /// Returns true if a value is split by owner.
    pub fn cuts(self, value: Value) -> bool {
        match value {
            Value::Query | Value::Attended => {
                matches!(self, StreamSide::Both | StreamSide::Deferred)
            }
            Value::Key | Value::Value => {
                matches!(self, StreamSide::Both | StreamSide::Device | StreamSide::Deferred)
            }
            _ => false,
        }
    }
}

/// A placement, of which the linears are the device's, for sequences with owners.
pub fn with_owners(map: &DeviceMap, config: &ModelConfig) -> DeviceMap {
    let chunking = Chunking { order: ChunkOrder::Attention, chunks: DEVICE.of };
    let decode = |layer: usize| {
        let list = layer_list(config, layer, Some(chunking)).into_iter();
        let device =
            |chunk| if chunk == Some(HOST) { ComputeDevice::Cpu } else { ComputeDevice::Gpu };
        list.map(|entry| device(entry.chunk)).collect()
    };
    let layers = 0..config.num_layers;
    let prefill_layer = |layer: usize| {
        let list = layer_list(config, layer, None);
        let devices = map.prefill.layers[layer].iter().zip(list);
        let of = |(device, entry): (&ComputeDevice, OpChunk)| match entry.op {
            Op::Scores | Op::Softmax | Op::Wv => ComputeDevice::Gpu,
            _ => *device,
        };
        devices.map(of).collect()
    };
    let tiers = vec![MemoryId::VRAM, MemoryId::DRAM];
    let kv = LayerKv { k: tiers.clone(), v: tiers, device_batches: 0 };
    let mut owned = map.clone();
    owned.chunking = Some(chunking);
    owned.decode.layers = layers.clone().map(decode).collect();
    owned.prefill.layers = layers.map(prefill_layer).collect();
    owned.kv = vec![kv; config.num_layers];
    owned
}
