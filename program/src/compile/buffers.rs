//! Buffers of a plan and their addresses in memory.
//!
//! Weights, KV caches and resident weights are laid out once. Activations and streaming slots are
//! laid out per program; programs share addresses, since a barrier separates them.

use model::config::ModelConfig;
use model::ops::{Kv, Op, Value, align_up};
use rustc_hash::FxHashMap;

use crate::checkpoints;
use crate::deferred_rows::KEPT;
use crate::expert_reads::list_words;
use crate::ir::{BufferId, ProgramShape, Region};
use crate::kv_owner::AttentionSide;
use crate::map::{Chunk, Chunking, ComputeDevice, DeviceMap};
use crate::plan::{Buffer, ExpertCacheBuffer, ResidentSource, RunShape, WeightPlacement};
use crate::sizes::{READ_ALIGN_BYTES, Sizes};
use crate::weights::Weights;

use super::residency::CompiledResidency;
use super::routes::Routes;
use crate::topology::{Holds, MemoryId, SegmentId};

/// Alignment of paged caches, one page of the processor: hardware prefetching stops at a page
/// boundary, so an unaligned run of positions would prefetch data that is not read.
const PAGED_ALIGN_BYTES: u64 = 4096;

/// Identity of an activation or slot buffer within a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ProgramBuffer {
    Value {
        value: Value,
        device: ComputeDevice,
        slot: u32,
    },
    WeightSlot {
        op: Op,
        layer_slot: u16,
    },
    /// Target buffer for decompressing the weights of a slot.
    WideSlot {
        op: Op,
        layer_slot: u16,
    },
    PositionsSlot,
    /// Host memory into which storages read the weights of an operation, one layer at a time. It is
    /// refilled as soon as its contents have been used.
    ReadSlot {
        op: Op,
    },
    /// Host memory into which storages read the experts of one layer that rows are routed to.
    ExpertSlots,
    KvSlot {
        kv: Kv,
        of: u16,
        slot: u16,
    },
}

/// Names of buffers, which take longer to write than the buffers take to lay out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BufferNames {
    Given,
    Empty,
}

#[derive(Debug)]
pub(super) struct Buffers<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) shape: &'a RunShape,
    pub(super) map: &'a DeviceMap,
    pub(super) routes: &'a Routes<'a>,
    sizes: Sizes<'a>,
    names: BufferNames,
    list: Vec<Buffer>,
    ends: FxHashMap<SegmentId, u64>,
    program_starts: FxHashMap<SegmentId, u64>,
    program: FxHashMap<ProgramBuffer, BufferId>,
    /// Host buffers into which blobs are loaded.
    loaded: FxHashMap<Weights, BufferId>,
    /// Blobs that every storage holds, in storage order.
    stored: FxHashMap<Weights, Vec<BufferId>>,
    placements: Vec<WeightPlacement>,
    caches: FxHashMap<(u16, u16, Kv, u16), BufferId>,
    /// Checkpoints by batch, if any are taken.
    checkpoints: Vec<BufferId>,
    tables: Vec<BufferId>,
    /// Host buffers that keep the state of deferred rows between steps, one row per slot.
    kept: FxHashMap<Value, BufferId>,
    residency: CompiledResidency,
    /// Resident weights in loading order.
    pub(super) resident: Vec<(Weights, BufferId)>,
    /// Device copies of resident weights.
    resident_copies: FxHashMap<Weights, BufferId>,
    pub(super) expert_cache: Option<ExpertCacheBuffer>,
}

impl<'a> Buffers<'a> {
    pub(super) fn new(
        config: &'a ModelConfig,
        shape: &'a RunShape,
        map: &'a DeviceMap,
        routes: &'a Routes<'a>,
        names: BufferNames,
    ) -> Self {
        let mut buffers = Buffers {
            sizes: Sizes::new(config, shape, map),
            config,
            shape,
            map,
            routes,
            names,
            list: Vec::new(),
            ends: FxHashMap::default(),
            program_starts: FxHashMap::default(),
            program: FxHashMap::default(),
            loaded: FxHashMap::default(),
            stored: FxHashMap::default(),
            placements: Vec::new(),
            caches: FxHashMap::default(),
            checkpoints: Vec::new(),
            tables: Vec::new(),
            kept: FxHashMap::default(),
            residency: CompiledResidency::new(config, shape, map, routes.topology),
            resident: Vec::new(),
            resident_copies: FxHashMap::default(),
            expert_cache: None,
        };
        buffers.add_tables();
        buffers.add_loaded_weights();
        buffers.add_resident_weights();
        buffers.add_caches(map);
        buffers.add_checkpoints();
        buffers.add_kept();
        buffers.add_expert_cache();
        buffers.program_starts = buffers.ends.clone();
        if map.direct_reads {
            let arena = routes.segment(ComputeDevice::Gpu, Holds::Weights);
            let start = buffers.program_starts.entry(arena).or_insert(0);
            *start = start.next_multiple_of(READ_ALIGN_BYTES);
        }
        buffers
    }

    /// Discards the activations and slots of the previous program; their addresses are reused.
    pub(super) fn begin_program(&mut self) {
        self.program.clear();
        self.ends = self.program_starts.clone();
    }

    /// Returns the end of each segment, including the buffers of the most recently emitted program.
    pub(super) const fn ends(&self) -> &FxHashMap<SegmentId, u64> {
        &self.ends
    }

    pub(super) fn add(
        &mut self,
        segment: SegmentId,
        name: impl FnOnce() -> String,
        size_bytes: usize,
    ) -> BufferId {
        let name = match self.names {
            BufferNames::Given => name(),
            BufferNames::Empty => String::new(),
        };
        let end = self.ends.entry(segment).or_insert(0);
        let size_bytes = align_up(size_bytes) as u64;
        let offset_bytes = *end;
        *end += size_bytes;
        self.list.push(Buffer { name, segment, offset_bytes, size_bytes });
        BufferId(self.list.len() as u32 - 1)
    }

    fn add_tables(&mut self) {
        for batch in 0..self.shape.batches {
            let id = BufferId(self.list.len() as u32);
            let name = format!("table.{batch}");
            self.list.push(Buffer {
                name,
                segment: SegmentId::CONTROL,
                offset_bytes: 0,
                size_bytes: 0,
            });
            self.tables.push(id);
        }
    }

    fn add_loaded_weights(&mut self) {
        let mut all = vec![Weights::Embedding];
        if self.config.learned_positions.is_some() {
            all.push(Weights::Positions);
        }
        if self.config.features.per_layer_inputs.is_some() {
            all.extend([Weights::PerLayerTable, Weights::PerLayerProjection]);
        }
        if self.config.features.hidden_states.are_joined() {
            all.push(Weights::JoinHidden);
        }
        for layer in 0..self.config.num_layers as u16 {
            let model = self.config.of_layer(layer.into());
            let with_weights = |op: &&Op| op.weights(model).is_some();
            all.extend(
                self.config
                    .layer_ops(layer.into())
                    .iter()
                    .filter(with_weights)
                    .map(|op| Weights::Layer { layer, op: *op }),
            );
        }
        all.push(Weights::FinalNorm);
        if !self.config.tied_embeddings {
            all.push(Weights::Head);
        }
        for weights in all {
            let size = self.sizes.weights_bytes(weights);
            let config = self.config;
            let name = || weights.name(config);
            if self.is_stored(weights) {
                let mut replicas = Vec::new();
                for (storage, _) in self.routes.topology.storages() {
                    let segment = self.routes.segment_of(storage, Holds::Weights);
                    let buffer = self.add(segment, name, size);
                    replicas.push(buffer);
                    self.placements.push(WeightPlacement { buffer, weights });
                }
                self.stored.insert(weights, replicas);
            } else if !self.residency.is_device_only(weights) {
                let segment = self.loaded_segment(weights);
                let buffer = self.add(segment, name, size);
                self.loaded.insert(weights, buffer);
                self.placements.push(WeightPlacement { buffer, weights });
            }
        }
    }

    fn add_resident_weights(&mut self) {
        let config = self.config;
        let arena = self.routes.segment(ComputeDevice::Gpu, Holds::Weights);
        for weights in self.residency.weights.clone() {
            let size = self.sizes.weights_bytes(weights);
            let id = self.add(arena, || format!("vram.{}", weights.name(config)), size);
            self.resident.push((weights, id));
            self.resident_copies.insert(weights, id);
        }
    }

    fn add_caches(&mut self, map: &DeviceMap) {
        for layer in 0..self.config.num_layers as u16 {
            let chunking = map.layer_chunking(self.config, layer as usize);
            for batch in 0..self.shape.batches {
                for kv in self.config.layer_caches(usize::from(layer)).iter().copied() {
                    let of = parts(chunking, kv);
                    for part in 0..of {
                        let tier = map.kv[layer as usize].tier(kv, part, batch);
                        let segment = self.routes.segment_of(tier, Holds::Kv);
                        let name =
                            || format!("cache.{kv:?}.layer{layer}.batch{batch}.{part}of{of}");
                        let size = match self.shape.has_owners() {
                            true => self.sizes.owned_cache_bytes(usize::from(layer), part),
                            false => self.sizes.cache_bytes(usize::from(layer), kv, of),
                        };
                        if self.shape.page_positions > 0 {
                            let end = self.ends.entry(segment).or_insert(0);
                            *end = end.next_multiple_of(PAGED_ALIGN_BYTES);
                        }
                        let id = self.add(segment, name, size);
                        self.caches.insert((layer, batch, kv, part), id);
                    }
                }
            }
        }
    }

    fn add_checkpoints(&mut self) {
        if self.shape.checkpoints == 0 {
            return;
        }
        let segment = self.routes.segment(ComputeDevice::Cpu, Holds::Kv);
        let size = self.shape.checkpoints as usize * checkpoints::size_bytes(&self.sizes);
        for batch in 0..self.shape.batches {
            let id = self.add(segment, || format!("checkpoints.batch{batch}"), size);
            self.checkpoints.push(id);
        }
    }

    /// Returns the caches that the checkpoints of a batch include, and their buffer, if any.
    pub(super) fn checkpointed(&self, batch: u16) -> Option<(Vec<Region>, Region)> {
        let checkpoints = self.checkpoints.get(usize::from(batch))?;
        let slots = checkpoints::slot_caches(&self.sizes).into_iter();
        let caches = slots.map(|(layer, kv, _)| self.cache(layer, batch, kv, 0));
        Some((caches.collect(), Region::whole(*checkpoints)))
    }

    fn add_kept(&mut self) {
        let programs = self.shape.programs(self.config);
        if programs.iter().all(|program| program.attention_side != AttentionSide::Deferred) {
            return;
        }
        let segment = self.routes.segment(ComputeDevice::Cpu, Holds::Activations);
        let rows = usize::from(self.shape.batch_size);
        for value in KEPT.into_iter().chain([Value::Attended]) {
            let size = self.sizes.value_bytes(value, rows, rows);
            let id = self.add(segment, || format!("kept.{value:?}").to_lowercase(), size);
            self.kept.insert(value, id);
        }
    }

    /// Returns the size of a slot through which an operation's weights pass, large enough for every
    /// layer: as streamed, or as multiplied if `wide`.
    fn slot_bytes(&self, op: Op, layer_slot: u16, slots: u16, wide: bool) -> usize {
        let bytes = |layer: Option<u16>| {
            let weights = Weights::of(op, layer);
            if wide { self.sizes.wide_bytes(weights) } else { self.sizes.weights_bytes(weights) }
        };
        if !self.config.has_layer_op(op.weights_op()) {
            return bytes(None);
        }
        let slots = usize::from(slots);
        let layers = (usize::from(layer_slot)..self.config.num_layers).step_by(slots);
        let layers = layers.filter(|layer| self.config.index_in_layer(*layer, op).is_some());
        layers.map(|layer| bytes(Some(layer as u16))).max().unwrap_or(0)
    }

    fn value_bytes(&self, program: ProgramShape, value: Value) -> usize {
        let sequences = usize::from(program.sequences);
        let rows = match value {
            Value::LastNormed | Value::Logits => program.logits_rows as usize,
            _ => program.stream_rows as usize,
        };
        self.sizes.value_bytes(value, rows, sequences)
    }

    /// Returns the activation or slot buffer with this identity, creating it on first use.
    pub(super) fn program_buffer(
        &mut self,
        program: ProgramShape,
        identity: ProgramBuffer,
    ) -> BufferId {
        if let Some(id) = self.program.get(&identity) {
            return *id;
        }
        let arena = self.routes.segment(ComputeDevice::Gpu, Holds::Weights);
        let (segment, size) = match identity {
            ProgramBuffer::Value { value, device, .. } => {
                let segment = self.routes.segment(device, Holds::Activations);
                let has_list = value == Value::Routing && self.expert_cache.is_some();
                let list_bytes = if has_list { align_up(4 * list_words(self.config)) } else { 0 };
                (segment, align_up(self.value_bytes(program, value)) + list_bytes)
            }
            ProgramBuffer::WeightSlot { op, layer_slot } => {
                let bytes = self.slot_bytes(op, layer_slot, self.map.weight_slots, false);
                match self.map.direct_reads {
                    true => (arena, self.whole_pages(arena, bytes)),
                    false => (arena, bytes),
                }
            }
            ProgramBuffer::WideSlot { op, layer_slot } => {
                (arena, self.slot_bytes(op, layer_slot, self.map.weight_slots, true))
            }
            ProgramBuffer::PositionsSlot => (arena, self.sizes.weights_bytes(Weights::Positions)),
            ProgramBuffer::ReadSlot { .. } | ProgramBuffer::ExpertSlots => {
                let host = self.routes.segment(ComputeDevice::Cpu, Holds::Weights);
                let bytes = match identity {
                    ProgramBuffer::ReadSlot { op } if op.is_expert() => self.linear_slots(op),
                    ProgramBuffer::ReadSlot { op } => self.slot_bytes(op, 0, 1, false),
                    _ => self.routed_slots(),
                };
                (host, self.whole_pages(host, bytes))
            }
            ProgramBuffer::KvSlot { of, .. } => (arena, self.sizes.largest_cache_bytes(of)),
        };
        let name = program.name();
        let id = self.add(segment, || format!("{name}.{identity:?}").to_lowercase(), size);
        self.program.insert(identity, id);
        id
    }

    /// Returns the size of a slot rounded up to whole pages. The slot is the next buffer of a
    /// segment: drives bypass the page cache and read whole pages.
    pub(super) fn whole_pages(&mut self, segment: SegmentId, size_bytes: usize) -> usize {
        let end = self.ends.entry(segment).or_insert(0);
        *end = end.next_multiple_of(READ_ALIGN_BYTES);
        size_bytes.next_multiple_of(READ_ALIGN_BYTES as usize)
    }

    /// Returns the host buffer into which a weight blob is loaded; the head of a tied model is the
    /// embedding.
    ///
    /// # Panics
    /// For a blob that only a device or storages have.
    pub(super) fn loaded_weights(&self, weights: Weights) -> BufferId {
        self.loaded[&self.loaded_as(weights)]
    }

    /// Returns the blob that is loaded in place of a blob.
    fn loaded_as(&self, weights: Weights) -> Weights {
        let tied = weights == Weights::Head && self.config.tied_embeddings;
        if tied { Weights::Embedding } else { weights }
    }

    /// Returns the origin of a resident blob.
    pub(super) fn resident_source(&self, weights: Weights) -> ResidentSource {
        let loaded = self.loaded.get(&self.loaded_as(weights));
        loaded.map_or(ResidentSource::Model(weights), |buffer| ResidentSource::Host(*buffer))
    }

    /// Returns true if a blob is stored on the storages.
    pub(super) fn is_stored(&self, weights: Weights) -> bool {
        self.tier(weights) == MemoryId::STORAGES
    }

    /// Returns the memory in which a blob stays; the embedding stays on the host.
    fn tier(&self, weights: Weights) -> MemoryId {
        match weights {
            Weights::Embedding
            | Weights::Positions
            | Weights::PerLayerTable
            | Weights::PerLayerProjection
            | Weights::JoinHidden => MemoryId::DRAM,
            Weights::Head if self.config.tied_embeddings => MemoryId::DRAM,
            Weights::FinalNorm | Weights::Head => self.map.outer_weights,
            Weights::Layer { layer, op } => self.map.weights_of(self.config, Some(layer), op),
        }
    }

    /// Returns the host segment into which a blob is loaded.
    fn loaded_segment(&self, weights: Weights) -> SegmentId {
        let slow_tier = self.tier(weights).slow_tier_index();
        match slow_tier.and_then(|number| self.routes.topology.slow_tier(number)) {
            Some(memory) => self.routes.segment_of(memory, Holds::Weights),
            None => self.routes.segment(ComputeDevice::Cpu, Holds::Weights),
        }
    }

    /// Returns a blob's buffer on each storage, or `None` if it is stored elsewhere.
    pub(super) fn stored_weights(&self, weights: Weights) -> Option<&[BufferId]> {
        self.stored.get(&weights).map(Vec::as_slice)
    }

    /// Returns the device copy of a blob that stays on the device.
    pub(super) fn resident_weights(&self, weights: Weights) -> Option<BufferId> {
        self.resident_copies.get(&weights).copied()
    }

    pub(super) fn cache(&self, layer: u16, batch: u16, kv: Kv, part: u16) -> Region {
        Region::whole(self.caches[&(layer, batch, kv, part)])
    }

    pub(super) fn table(&self, batch: u16) -> Region {
        Region::whole(self.tables[batch as usize])
    }

    /// Returns the host buffer that keeps a value of deferred rows.
    pub(super) fn kept(&self, value: Value) -> BufferId {
        self.kept[&value]
    }

    pub(super) fn placements(&self) -> Vec<WeightPlacement> {
        self.placements.clone()
    }

    pub(super) fn into_list(self) -> Vec<Buffer> {
        self.list
    }
}

/// Returns the number of parts of a layer's K or V cache.
pub(super) fn parts(chunking: Option<Chunking>, kv: Kv) -> u16 {
    chunking.map_or(1, |chunking| chunking.parts(kv))
}

/// Returns the chunk for part `index` of `of`, or `None` if there is only one part.
pub(super) fn chunk_of(index: u16, of: u16) -> Option<Chunk> {
    (of > 1).then_some(Chunk { index, of })
}
