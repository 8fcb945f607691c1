//! The device map: what a policy decides, and all that it decides.

use model::config::ModelConfig;
use model::ops::{Kv, Op};
use serde::{Deserialize, Serialize};

pub use crate::chunk::Chunk;
use crate::formats::{KvFormat, WeightFormats};
use crate::pieces::divides;
use crate::select::KvSelect;
use crate::shares::ReadShares;
use crate::topology::MemoryId;

/// The two sides of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    Cpu,
    Gpu,
}

/// What is cut, and in which order the chunks stand in the layer's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkOrder {
    /// `scores.0 .. scores.7 softmax wv` (Park-Egger §3.3): only `Scores` is split.
    Scores,
    /// `scores.0 softmax.0 wv.0 scores.1 ..`: whole heads stay on one side.
    Attention,
    /// `fc0.0 .. fc0.7 fc1.0 .. fc1.7`: linears by output rows; attention is whole.
    Linears,
}

/// How operations are split in decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunking {
    pub order: ChunkOrder,
    pub chunks: u16,
}

impl Chunking {
    /// Number of parts of the K cache and of the V cache.
    pub fn parts(self, kv: Kv) -> u16 {
        match (self.order, kv) {
            (ChunkOrder::Scores, Kv::V) | (ChunkOrder::Linears, _) => 1,
            _ => self.chunks,
        }
    }

    /// Itself where attention is what is split.
    pub fn of_attention(self) -> Option<Chunking> {
        (self.order != ChunkOrder::Linears).then_some(self)
    }
}

/// One entry of a layer's list: an operation, or a chunk of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpChunk {
    pub op: Op,
    /// `None` for an operation that is not split.
    pub chunk: Option<Chunk>,
}

impl OpChunk {
    /// `q`, or `scores.3` for a chunk.
    pub fn name(&self, config: &ModelConfig) -> String {
        let name = self.op.name(config.family);
        match self.chunk {
            Some(chunk) => format!("{name}.{}", chunk.index),
            None => name.to_owned(),
        }
    }
}

/// The ordered list of a decoder layer with operations split as `chunking` says.
pub fn layer_list(config: &ModelConfig, layer: usize, chunking: Option<Chunking>) -> Vec<OpChunk> {
    list_of(config, config.layer_ops(layer), chunking)
}

/// The same of the layer by whose operations placements go (`ModelConfig::leading_ops`).
pub fn leading_list(config: &ModelConfig, chunking: Option<Chunking>) -> Vec<OpChunk> {
    list_of(config, config.leading_ops(), chunking)
}

fn list_of(config: &ModelConfig, ops: &[Op], chunking: Option<Chunking>) -> Vec<OpChunk> {
    let whole = |op| OpChunk { op, chunk: None };
    let Some(Chunking { order, chunks }) = chunking else {
        return ops.iter().copied().map(whole).collect();
    };
    let part = |op, index| OpChunk { op, chunk: Some(Chunk { index, of: chunks }) };
    let mut list = Vec::new();
    for &op in ops {
        match (op, order) {
            (Op::Scores, ChunkOrder::Scores) => list.extend((0..chunks).map(|i| part(op, i))),
            (Op::Scores, ChunkOrder::Attention) => list.extend(
                (0..chunks)
                    .flat_map(|i| [part(Op::Scores, i), part(Op::Softmax, i), part(Op::Wv, i)]),
            ),
            (Op::Softmax | Op::Wv, ChunkOrder::Attention) => {}
            (_, ChunkOrder::Linears) if divides(config, op, chunks) => {
                list.extend((0..chunks).map(|i| part(op, i)));
            }
            _ => list.push(whole(op)),
        }
    }
    list
}

/// How far the lanes run ahead of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// As far as data and slots allow.
    #[default]
    Overlapped,
    /// FlexGen's loop: layer by layer, batch by batch, all lanes meeting after each batch. While a
    /// batch is computed the next one's KV is streamed, and while a layer's first batch is computed
    /// all weights of the next layer.
    Barrier,
    /// The same with the weights of the next layer spread over the layer's batches.
    BarrierSpread,
}

/// A placement of the map: where prompts are computed, and where the newest tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    /// As reports and errors name it.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// Who runs what in one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseMap {
    pub embed: Device,
    /// Per layer, one device per entry of the layer's list (decode: [`layer_list`] with the map's
    /// chunking; prefill: without chunking, and `Scores`, `Softmax`, `Wv` on one device).
    pub layers: Vec<Vec<Device>>,
    pub final_norm: Device,
    /// Head and sampling.
    pub head: Device,
}

/// The memory in which a layer's KV cache lives, per part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerKv {
    pub k: Vec<MemoryId>,
    pub v: Vec<MemoryId>,
    /// The caches of so many batches, the first ones, live in the memory of the device instead
    /// (Park-Egger keep one batch's there).
    pub device_batches: u16,
}

impl LayerKv {
    /// The home of a part of a batch's cache.
    pub fn home(&self, kv: Kv, part: u16, batch: u16) -> MemoryId {
        match batch < self.device_batches {
            true => MemoryId::VRAM,
            false => self.homes(kv)[usize::from(part)],
        }
    }

    /// Whether any cache lives in the memory of a device.
    pub fn any_on(&self, memory: MemoryId) -> bool {
        let all = self.k.iter().chain(&self.v);
        (self.device_batches > 0 && memory == MemoryId::VRAM)
            || all.into_iter().any(|home| *home == memory)
    }

    /// Homes of the parts of one of the two caches.
    pub fn homes(&self, kv: Kv) -> &[MemoryId] {
        match kv {
            Kv::K => &self.k,
            Kv::V => &self.v,
        }
    }
}

/// A complete placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMap {
    /// Name of the policy that made it, for reports.
    pub policy: String,
    /// Split of attention or of linears in decode, where both devices take part in it.
    pub chunking: Option<Chunking>,
    pub prefill: PhaseMap,
    pub decode: PhaseMap,
    /// Per layer, per operation of `ModelConfig::layer_ops`: the memory where the weights stay.
    /// Those in a device's memory are loaded once; those on the host, in the memory that it works
    /// in or in a further one ([`MemoryId::far`]), are streamed whenever the GPU runs the
    /// operation; those on [`MemoryId::STORAGES`] are read to the host, and streamed from there, in
    /// every step, or as `direct_reads` says.
    pub weights: Vec<Vec<MemoryId>>,
    /// The same for the final norm and the head.
    pub outer_weights: MemoryId,
    pub kv: Vec<LayerKv>,
    /// Attention whole on one device runs as one operation.
    pub fuse_attention: bool,
    /// How many layers' streamed weights may be on the device at once (at least 1).
    pub weight_slots: u16,
    /// Weights on storages that the GPU multiplies are read straight into their slots on the
    /// device, past the host (Park-Egger §3.4).
    #[serde(default)]
    pub direct_reads: bool,
    /// The storages, and what part each reads of a weight.
    #[serde(default)]
    pub shares: ReadShares,
    /// How many streamed KV parts of a kind may be on the device at once (at least 1); where
    /// attention is cut, two of the caches that are whole.
    pub kv_slots: u16,
    /// Hidden states of prefill stay on the device between layers, or spill to the host.
    pub prefill_hidden: MemoryId,
    pub weight_formats: WeightFormats,
    pub kv_format: KvFormat,
    /// New tokens attend to some cached positions only, on the CPU.
    #[serde(default)]
    pub kv_select: Option<KvSelect>,
    pub schedule: Schedule,
}

impl DeviceMap {
    /// Who runs what in a phase.
    pub const fn of_phase(&self, phase: Phase) -> &PhaseMap {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    /// Whether any weights are read from storages.
    pub fn uses_storages(&self) -> bool {
        let mut homes = self.weights.iter().flatten().chain([&self.outer_weights]);
        homes.any(|home| *home == MemoryId::STORAGES)
    }

    /// Further memories of the host that the map needs.
    pub fn far_memories(&self) -> u8 {
        let homes = self.weights.iter().flatten().chain([&self.outer_weights]);
        homes.filter_map(|home| home.far_number()).map(|number| number + 1).max().unwrap_or(0)
    }

    /// Whether any operation runs on the GPU.
    pub fn uses_gpu(&self) -> bool {
        [&self.prefill, &self.decode].iter().any(|phase| {
            [phase.embed, phase.final_norm, phase.head].contains(&Device::Gpu)
                || phase.layers.iter().any(|layer| layer.contains(&Device::Gpu))
        })
    }

    /// Where the weights of an operation stay; `layer` is `None` for final norm and head.
    pub fn weights_of(&self, config: &ModelConfig, layer: Option<u16>, op: Op) -> MemoryId {
        match layer {
            None => self.outer_weights,
            Some(layer) => {
                let layer = usize::from(layer);
                self.weights[layer][config.place_in_layer(layer, op).unwrap_or(0)]
            }
        }
    }

    /// The chunking of attention that a layer really uses in decode: none when one device runs all
    /// its chunks.
    pub fn layer_chunking(&self, config: &ModelConfig, layer: usize) -> Option<Chunking> {
        let chunking = self.attention_chunking()?;
        let list = layer_list(config, layer, Some(chunking));
        let mut devices = list
            .iter()
            .zip(&self.decode.layers[layer])
            .filter(|(entry, _)| entry.chunk.is_some())
            .map(|(_, device)| *device);
        let first = devices.next()?;
        devices.any(|device| device != first).then_some(chunking)
    }

    /// The split of attention in decode.
    pub fn attention_chunking(&self) -> Option<Chunking> {
        self.chunking.and_then(Chunking::of_attention)
    }

    /// The decode list of a layer with its devices, chunks collapsed where one device runs them
    /// all.
    pub fn decode_layer(&self, config: &ModelConfig, layer: usize) -> Vec<(OpChunk, Device)> {
        let devices = &self.decode.layers[layer];
        let full = layer_list(config, layer, self.chunking);
        if self.chunking.is_some_and(|cut| cut.order == ChunkOrder::Linears) {
            let list: Vec<_> = full.into_iter().zip(devices.iter().copied()).collect();
            return whole_where_alike(&list);
        }
        if self.layer_chunking(config, layer) == self.chunking {
            return full.into_iter().zip(devices.iter().copied()).collect();
        }
        layer_list(config, layer, None)
            .into_iter()
            .map(|entry| {
                let place = full.iter().position(|other| other.op == entry.op);
                (entry, devices[place.unwrap_or(0)])
            })
            .collect()
    }
}

/// A list with the pieces of each operation as one where one device runs them all.
fn whole_where_alike(list: &[(OpChunk, Device)]) -> Vec<(OpChunk, Device)> {
    let of_one = list.chunk_by(|(one, _), (other, _)| one.op == other.op);
    let collapsed = of_one.flat_map(|pieces| {
        let (OpChunk { op, .. }, device) = pieces[0];
        match pieces.iter().all(|(_, other)| *other == device) {
            true => vec![(OpChunk { op, chunk: None }, device)],
            false => pieces.to_vec(),
        }
    });
    collapsed.collect()
}
