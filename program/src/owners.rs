//! Sequences that belong to the device or to the host, in a run that serves.
//!
//! All linears are the device's. K and V of a sequence lie with its owner, who attends for it; but
//! whole prompts, which need no cache, the device attends for. A cache is in two parts,
//! [`DEVICE`] and [`HOST`], so an instruction that names a chunk of two means an owner: for
//! queries and attended values the rows for which that side attends, for keys and values the rows
//! of its sequences, for a cache its part.

use model::config::ModelConfig;
use model::ops::{Op, Value};
use serde::{Deserialize, Serialize};

use crate::map::{Chunk, ChunkOrder, Chunking, Device, DeviceMap, LayerKv, OpChunk, layer_list};
use crate::topology::MemoryId;

/// The device's sequences.
pub const DEVICE: Chunk = Chunk { index: 0, of: 2 };
/// The host's sequences.
pub const HOST: Chunk = Chunk { index: 1, of: 2 };

/// Who attends for the rows of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Attending {
    /// Whom the map says, for sequences of any slot.
    Mapped,
    /// The device, for all rows.
    Device,
    /// The owner of each sequence. Sequences of streams behind the first are the host's, and none
    /// of these is a whole prompt.
    Owners,
    /// The device, but the host for its rows that lag (`crate::lagging`).
    Lagging,
}

/// The same of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Mapped,
    /// The device for all rows; sequences are of both owners.
    Device,
    /// Both owners.
    Both,
    /// The host for all rows; all sequences are its own.
    Host,
    /// The device, but the host for rows that lag, which come and go between layers.
    Lagging,
}

impl Attending {
    /// Who attends for the rows of a stream.
    pub const fn side(self, stream: u16) -> Side {
        match (self, stream) {
            (Attending::Mapped, _) => Side::Mapped,
            (Attending::Device, _) => Side::Device,
            (Attending::Owners, 0) => Side::Both,
            (Attending::Owners, _) => Side::Host,
            (Attending::Lagging, _) => Side::Lagging,
        }
    }
}

impl Side {
    /// Whether attention of a chunk is among a stream's work.
    pub fn attends(self, chunk: Option<Chunk>) -> bool {
        match self {
            Side::Mapped => true,
            Side::Device => chunk == Some(DEVICE),
            Side::Both | Side::Lagging => chunk == Some(DEVICE) || chunk == Some(HOST),
            Side::Host => chunk == Some(HOST),
        }
    }

    /// Whether it is the last attention among a stream's work in a layer.
    pub fn attends_last(self, chunk: Option<Chunk>) -> bool {
        match self {
            Side::Mapped => chunk.is_none_or(|chunk| chunk.index + 1 == chunk.of),
            Side::Device => chunk == Some(DEVICE),
            Side::Both | Side::Host | Side::Lagging => chunk == Some(HOST),
        }
    }

    /// Whether a stream has rows for a part of the caches.
    pub fn fills(self, part: Chunk) -> bool {
        self != Side::Host || part == HOST
    }

    /// Whether a value is cut by owner.
    pub fn cuts(self, value: Value) -> bool {
        match value {
            Value::Query | Value::Attended => matches!(self, Side::Both | Side::Lagging),
            Value::Key | Value::Value => {
                matches!(self, Side::Both | Side::Device | Side::Lagging)
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
        let device = |chunk| if chunk == Some(HOST) { Device::Cpu } else { Device::Gpu };
        list.map(|entry| device(entry.chunk)).collect()
    };
    let layers = 0..config.num_layers;
    let prefill_layer = |layer: usize| {
        let list = layer_list(config, layer, None);
        let devices = map.prefill.layers[layer].iter().zip(list);
        let of = |(device, entry): (&Device, OpChunk)| match entry.op {
            Op::Scores | Op::Softmax | Op::Wv => Device::Gpu,
            _ => *device,
        };
        devices.map(of).collect()
    };
    let homes = vec![MemoryId::VRAM, MemoryId::DRAM];
    let kv = LayerKv { k: homes.clone(), v: homes, device_batches: 0 };
    let mut owned = map.clone();
    owned.chunking = Some(chunking);
    owned.decode.layers = layers.clone().map(decode).collect();
    owned.prefill.layers = layers.map(prefill_layer).collect();
    owned.kv = vec![kv; config.num_layers];
    owned
}
