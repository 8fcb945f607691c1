//! The device map: the complete set of decisions that a policy makes.

use model::config::ModelConfig;
use model::ops::{Kv, Op};
use serde::{Deserialize, Serialize};

pub use crate::chunk::Chunk;
use crate::expert_reads::ExpertReads;
use crate::formats::{KvFormat, WeightFormats};
use crate::pieces::divides;
use crate::routing_counts::{PinnedExpert, RoutingSkew};
use crate::select::KvSelect;
use crate::shares::ReadShares;
use crate::topology::MemoryId;

/// One of the two compute devices of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDevice {
    Cpu,
    Gpu,
}

/// Operations that are split, and the order of their chunks in the layer's list.
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

/// Split of operations in decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunking {
    pub order: ChunkOrder,
    pub chunks: u16,
}

impl Chunking {
    /// Returns the number of parts of the K cache or of the V cache.
    pub fn parts(self, kv: Kv) -> u16 {
        match (self.order, kv) {
            (ChunkOrder::Scores, Kv::V) | (ChunkOrder::Linears, _) => 1,
            _ => self.chunks,
        }
    }

    /// Returns `Some(self)` if attention, not a linear, is split.
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
    /// Returns the name: `q`, or `scores.3` for a chunk.
    pub fn name(&self, config: &ModelConfig) -> String {
        let name = self.op.name(config.family);
        match self.chunk {
            Some(chunk) => format!("{name}.{}", chunk.index),
            None => name.to_owned(),
        }
    }
}

/// Returns the ordered list of a decoder layer, with operations split according to `chunking`.
pub fn layer_list(config: &ModelConfig, layer: usize, chunking: Option<Chunking>) -> Vec<OpChunk> {
    list_of(config.of_layer(layer), config.layer_ops(layer), chunking)
}

/// Returns the ordered list of the layer by whose operations placements are specified
/// (`ModelConfig::leading_ops`).
pub fn leading_list(config: &ModelConfig, chunking: Option<Chunking>) -> Vec<OpChunk> {
    list_of(config.of_layer(config.leading_layer()), config.leading_ops(), chunking)
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

/// Constraint on how far the lanes run ahead of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// No constraint beyond data dependencies and slots.
    #[default]
    Overlapped,
    /// FlexGen's loop: layer by layer and batch by batch, with a barrier for all lanes after each
    /// batch. While a batch is computed, the KV of the next one is streamed, and while a layer's
    /// first batch is computed, all weights of the next layer.
    Barrier,
    /// FlexGen's loop with the weights of the next layer spread over the layer's batches.
    BarrierSpread,
}

/// Phase of the map: placement of prompt computation (prefill) or of the newest tokens (decode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    /// Returns the name used in reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// Device assignment of one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseMap {
    pub embed: ComputeDevice,
    /// One device per entry of each layer's list (decode: [`layer_list`] with the map's chunking;
    /// prefill: without chunking, and `Scores`, `Softmax`, `Wv` on one device).
    pub layers: Vec<Vec<ComputeDevice>>,
    pub final_norm: ComputeDevice,
    /// Device of the head and of sampling.
    pub head: ComputeDevice,
}

/// Memory in which each part of a layer's KV cache is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerKv {
    pub k: Vec<MemoryId>,
    pub v: Vec<MemoryId>,
    /// Number of batches, from the first, whose caches are stored in device memory instead
    /// (Park-Egger keep the cache of one batch there).
    pub device_batches: u16,
}

impl LayerKv {
    /// Returns the memory that stores a part of a batch's cache.
    pub fn tier(&self, kv: Kv, part: u16, batch: u16) -> MemoryId {
        match batch < self.device_batches {
            true => MemoryId::VRAM,
            false => self.tiers(kv)[usize::from(part)],
        }
    }

    /// Returns true if any cache is stored in the memory of a device.
    pub fn any_on(&self, memory: MemoryId) -> bool {
        let all = self.k.iter().chain(&self.v);
        (self.device_batches > 0 && memory == MemoryId::VRAM)
            || all.into_iter().any(|home| *home == memory)
    }

    /// Returns the memories of the parts of one of the two caches.
    pub fn tiers(&self, kv: Kv) -> &[MemoryId] {
        match kv {
            Kv::K => &self.k,
            Kv::V => &self.v,
        }
    }
}

/// A complete placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMap {
    /// Name of the policy that created the map, for reports.
    pub policy: String,
    /// Split of attention or of linears in decode, if both devices take part in it.
    pub chunking: Option<Chunking>,
    pub prefill: PhaseMap,
    pub decode: PhaseMap,
    /// Memory of the weights, per layer and per operation of `ModelConfig::layer_ops`. Weights in
    /// device memory are loaded once. Those on the host, in its near memory or in another one
    /// ([`MemoryId::slow_tier`]), are streamed whenever the GPU runs the operation. Those on
    /// [`MemoryId::STORAGES`] are read to the host, and streamed from there, in every step, or as
    /// `direct_reads` specifies.
    pub weights: Vec<Vec<MemoryId>>,
    /// Memory of the final norm and the head.
    pub outer_weights: MemoryId,
    pub kv: Vec<LayerKv>,
    /// Attention computed entirely on one device runs as one fused operation.
    pub fuse_attention: bool,
    /// Maximum number of layers whose streamed weights are on the device at once (at least 1).
    pub weight_slots: u16,
    /// Weights on storages that the GPU multiplies are read directly into their slots on the
    /// device, bypassing the host (Park-Egger §3.4).
    #[serde(default)]
    pub direct_reads: bool,
    /// The storages, and the share of a weight that each reads.
    #[serde(default)]
    pub shares: ReadShares,
    #[serde(default)]
    pub expert_reads: ExpertReads,
    /// Number of experts of any layer that stay in host memory after they were read, where only
    /// those are read that rows are routed to; 0: none stays. Memory for the experts of a step in a
    /// layer is added where there are fewer (`crate::expert_cache`).
    #[serde(default)]
    pub expert_slots: u32,
    /// Experts that are in the first of these slots from the start and are never given up, in
    /// ascending order.
    #[serde(default)]
    pub pinned_experts: Vec<PinnedExpert>,
    /// Measured distribution of rows over experts, on which prices count.
    #[serde(default)]
    pub routing: RoutingSkew,
    /// Maximum number of streamed KV parts of a kind on the device at once (at least 1); if
    /// attention is split, of two caches those that are whole.
    pub kv_slots: u16,
    /// Memory of prefill's hidden states between layers: the device, or the host if they spill.
    pub prefill_hidden: MemoryId,
    pub weight_formats: WeightFormats,
    pub kv_format: KvFormat,
    /// Selection of cached positions to which new tokens attend, on the CPU.
    #[serde(default)]
    pub kv_select: Option<KvSelect>,
    pub schedule: Schedule,
}

impl DeviceMap {
    /// Returns the device assignment of a phase.
    pub const fn of_phase(&self, phase: Phase) -> &PhaseMap {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }

    /// Returns true if any weights are read from storages.
    pub fn uses_storages(&self) -> bool {
        let mut tiers = self.weights.iter().flatten().chain([&self.outer_weights]);
        tiers.any(|home| *home == MemoryId::STORAGES)
    }

    /// Returns the number of additional host memories that the map needs.
    pub fn slow_tier_count(&self) -> u8 {
        let tiers = self.weights.iter().flatten().chain([&self.outer_weights]);
        tiers.filter_map(|home| home.slow_tier_index()).map(|number| number + 1).max().unwrap_or(0)
    }

    /// Returns true if any operation runs on the GPU.
    pub fn uses_gpu(&self) -> bool {
        [&self.prefill, &self.decode].iter().any(|phase| {
            [phase.embed, phase.final_norm, phase.head].contains(&ComputeDevice::Gpu)
                || phase.layers.iter().any(|layer| layer.contains(&ComputeDevice::Gpu))
        })
    }

    /// Returns the memory of an operation's weights; `layer` is `None` for the final norm and the
    /// head.
    pub fn weights_of(&self, config: &ModelConfig, layer: Option<u16>, op: Op) -> MemoryId {
        match layer {
            None => self.outer_weights,
            Some(layer) => {
                let layer = usize::from(layer);
                self.weights[layer][config.index_in_layer(layer, op).unwrap_or(0)]
            }
        }
    }

    /// Returns the chunking of attention in effect for a layer in decode: none if one device runs
    /// all of its chunks.
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

    /// Returns the split of attention in decode.
    pub fn attention_chunking(&self) -> Option<Chunking> {
        self.chunking.and_then(Chunking::of_attention)
    }

    /// Returns the decode list of a layer with its devices, with chunks merged if one device runs
    /// them all.
    pub fn decode_layer(
        &self,
        config: &ModelConfig,
        layer: usize,
    ) -> Vec<(OpChunk, ComputeDevice)> {
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

/// Merges the pieces of each operation that one device runs entirely.
fn whole_where_alike(list: &[(OpChunk, ComputeDevice)]) -> Vec<(OpChunk, ComputeDevice)> {
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
