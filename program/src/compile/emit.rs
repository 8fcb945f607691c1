//! Turns one schedule entry into instructions: locates the operands and inserts the copies that
//! bring them to the device. Fresh K and V are handled in `fresh`.

use model::config::ModelConfig;
use model::ops::{Kv, Op, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::expert_portions;
use crate::expert_records::ExpertOps;
use crate::ir::{At, BufferId, Compute, Copy, Instruction, Moved, ProgramShape, Region, Rows};
use crate::kv_owner::{DEVICE, HOST, StreamSide};
use crate::map::{Chunk, ChunkOrder, Chunking, ComputeDevice, DeviceMap};
use crate::pieces::own_input;
use crate::plan::RunShape;
use crate::pooling;
use crate::topology::{LaneId, MemoryId};
use crate::weights::Weights;

use super::buffers::{Buffers, ProgramBuffer, chunk_of, parts};
use super::pieces::Pieces;
use super::routes::Routes;
use super::schedule::Entry;
use super::valid_parts::{StreamKey, Valid, ValidParts};

/// Number of activation slots in prefill if no value outlives a segment: one is used for
/// computation while the other is still being copied.
const PREFILL_SLOTS: u32 = 2;
/// Number of slots for streamed caches that are whole although others are in parts: one is read
/// while the next arrives.
const WHOLE_KV_SLOTS: u16 = 2;

/// An instruction and its lane, in global order.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) lane: LaneId,
    pub(super) instruction: Instruction,
    /// No lane starts this instruction, or any later one, before all lanes have finished the
    /// preceding ones.
    pub(super) barrier: bool,
}

/// Inputs of a compilation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compiling<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) shape: &'a RunShape,
    pub(super) map: &'a DeviceMap,
    pub(super) routes: &'a Routes<'a>,
}

/// Result of emitting a program: its instructions too, or only the buffers that they use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emitted {
    Instructions,
    BuffersAlone,
}

pub(super) struct Emitter<'a, 'b> {
    pub(super) program: ProgramShape,
    pub(super) config: &'a ModelConfig,
    pub(super) shape: &'a RunShape,
    pub(super) map: &'a DeviceMap,
    pub(super) routes: &'a Routes<'a>,
    pub(super) buffers: &'b mut Buffers<'a>,
    /// Number of slots through which activations rotate; `None`: one per stream.
    rotate: Option<u32>,
    nodes: Vec<Node>,
    emitted: Emitted,
    /// The next node starts after a barrier.
    pub(super) barrier: bool,
    /// Slots of caches that were streamed before the entry that reads them.
    pub(super) prefetched: FxHashMap<(u16, u16, Kv), Region>,
    pieces: Pieces,
    valid: ValidParts,
    pub(super) read: FxHashSet<Weights>,
    /// Linears of experts that the CPU multiplies, by layer.
    pub(super) host_experts: FxHashMap<u16, ExpertOps>,
    pub(super) streamed: FxHashSet<(Weights, Option<Chunk>)>,
    pub(super) decompressed: FxHashSet<Weights>,
    /// The most recent layer with a router, and the device that runs it.
    pub(super) router_device: Option<(u16, ComputeDevice)>,
    kv_used: FxHashMap<(Kv, u16), u32>,
    /// For each kind of cache, the one most recently streamed whole, and its slot.
    streamed_whole: FxHashMap<Kv, (At, Region)>,
}

impl<'a, 'b> Emitter<'a, 'b> {
    pub(super) fn new(
        program: ProgramShape,
        of: Compiling<'a>,
        buffers: &'b mut Buffers<'a>,
        uniform: bool,
        emitted: Emitted,
    ) -> Self {
        let Compiling { config, shape, map, routes } = of;
        let rotate = (program.rows != Rows::Single && uniform).then_some(PREFILL_SLOTS);
        Emitter {
            program,
            config,
            shape,
            map,
            routes,
            buffers,
            rotate,
            nodes: Vec::new(),
            emitted,
            barrier: false,
            prefetched: FxHashMap::default(),
            pieces: Pieces::new(program, config, map),
            valid: ValidParts::default(),
            read: FxHashSet::default(),
            host_experts: FxHashMap::default(),
            streamed: FxHashSet::default(),
            decompressed: FxHashSet::default(),
            router_device: None,
            kv_used: FxHashMap::default(),
            streamed_whole: FxHashMap::default(),
        }
    }

    pub(super) fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    pub(super) fn emit(&mut self, entry: &Entry) {
        if self.starts_layer(entry) {
            self.forget_layer_values(entry);
        }
        if let (Op::Router, Some(layer)) = (entry.op, entry.layer) {
            self.router_device = Some((layer, entry.device));
        }
        let is_first_piece = entry.chunk.is_none_or(|piece| piece.index == 0);
        let is_out = entry.op == Op::Out && is_first_piece;
        if is_out && entry.layer.is_some() && !self.is_chunked() {
            self.append_fresh(entry);
        }
        if self.has_deferred_rows(entry) {
            self.attend_lagging(entry);
            return;
        }
        let mut inputs = Vec::new();
        let pools = self.shape.pools();
        let model = self.config.at(entry.layer);
        for value in pooling::inputs(entry.op, entry.chunk, model, pools) {
            let input = self.input(entry, value);
            if self.emitted == Emitted::Instructions {
                inputs.push(input);
            }
        }
        let caches = self.caches(entry);
        let weights = self.weights(entry);
        let written = expert_portions::writes(entry.op, self.config.at(entry.layer), entry.chunk);
        let output = written.map(|value| {
            let chunk = self.output_chunk(entry, value);
            self.portion_of(entry, value, chunk)
        });
        let (caches, output) = match self.buffers.checkpointed(entry.batch) {
            Some((caches, to)) if entry.op == Op::Sample => (caches, Some(to)),
            _ => (caches, output),
        };
        let compute = Compute {
            op: entry.op,
            at: at(entry),
            chunk: entry.chunk,
            inputs,
            caches,
            weights,
            output,
            table: self.buffers.table(entry.batch),
        };
        self.push(self.routes.compute(entry.device), Instruction::Compute(compute));
        if let Some(value) = written {
            self.mark_written(entry, value);
        }
        self.after(entry);
    }

    /// Returns true if streams are chunks of prompts, so that attention reads the rows that earlier
    /// streams of the layer appended.
    fn is_chunked(&self) -> bool {
        self.program.rows == Rows::Chunks
    }

    /// Copies results off the device: fresh K and V as soon as they exist, and in prefill the
    /// residual stream after each segment unless it stays on the device.
    fn after(&mut self, entry: &Entry) {
        let is_last_part = self.side(entry).attends_last(entry.chunk);
        let attends = entry.op.is_attention() && !entry.op.prepares_attention();
        if self.is_chunked() && attends && is_last_part {
            self.append_fresh(entry);
        }
        self.send_queries(entry);
        self.send_fresh(entry);
        if self.is_lagging() {
            self.leave(entry);
        }
        let spills = self.shares_hidden_slot(entry)
            && entry.device == ComputeDevice::Gpu
            && entry.ends_segment
            && entry.layer.is_some();
        if spills {
            self.bring(entry, Value::Hidden, 0, ComputeDevice::Cpu);
            self.valid_parts(entry, Value::Hidden)[0].gpu = false;
        }
    }

    pub(super) fn push(&mut self, lane: LaneId, instruction: Instruction) {
        let barrier = std::mem::take(&mut self.barrier);
        if self.emitted == Emitted::Instructions {
            self.nodes.push(Node { lane, instruction, barrier });
        }
    }

    pub(super) fn chunking(&self, layer: Option<u16>) -> Option<Chunking> {
        let layer = layer.filter(|_| self.program.rows.are_behind_caches())?;
        self.map.layer_chunking(self.config, usize::from(layer))
    }

    /// Returns the side that computes attention for an entry's rows.
    pub(super) fn side(&self, entry: &Entry) -> StreamSide {
        self.program.attention_side.side(entry.stream)
    }

    /// Returns the number of parts into which linears or attention split a value of an entry's
    /// layer.
    pub(super) fn value_parts(&self, entry: &Entry, value: Value) -> u16 {
        let pieces = self.pieces.parts(entry.layer, value);
        if pieces > 1 {
            return pieces;
        }
        let Some(chunking) = self.chunking(entry.layer) else {
            return 1;
        };
        if self.side(entry) != StreamSide::Mapped {
            return if self.side(entry).cuts(value) { HOST.of } else { 1 };
        }
        match (value, chunking.order) {
            (Value::Scores, _) => chunking.chunks,
            // The fused operation is split here, regardless of decode.
            (Value::Attended, _) if self.is_chunked() => chunking.chunks,
            (Value::Probabilities | Value::Attended, ChunkOrder::Attention) => chunking.chunks,
            _ => 1,
        }
    }

    fn slot(&self, entry: &Entry, value: Value, device: ComputeDevice) -> u32 {
        if self.is_lagging() {
            // Rows of all streams follow those of the first stream.
            return 0;
        }
        let streams = u32::from(self.program.streams);
        let stream = u32::from(entry.batch) * streams + u32::from(entry.stream);
        let outlives_segments = match value {
            Value::Hidden => device == ComputeDevice::Cpu || self.is_vram(self.map.prefill_hidden),
            // All streams pass between the final norm and a head on the other device.
            Value::LastNormed => true,
            value => value.outlives_layer(),
        };
        match self.rotate {
            Some(slots) if !outlives_segments => stream % slots,
            _ => stream,
        }
    }

    /// Returns true if another stream's residual stream overwrites this one on the device.
    fn shares_hidden_slot(&self, entry: &Entry) -> bool {
        let Some(slots) = self.rotate.filter(|_| !self.is_vram(self.map.prefill_hidden)) else {
            return false;
        };
        let streams = u32::from(self.shape.batches) * u32::from(self.program.streams);
        let slot = self.slot(entry, Value::Hidden, ComputeDevice::Gpu);
        (slot..streams).step_by(slots as usize).count() > 1
    }

    pub(super) fn value_buffer(
        &mut self,
        entry: &Entry,
        value: Value,
        device: ComputeDevice,
    ) -> BufferId {
        let slot = self.slot(entry, value, device);
        self.buffers.program_buffer(self.program, ProgramBuffer::Value { value, device, slot })
    }

    /// Returns true for the first operation of a layer.
    fn starts_layer(&self, entry: &Entry) -> bool {
        let first = entry.layer.and_then(|layer| self.config.layer_ops(layer.into()).first());
        first == Some(&entry.op)
    }

    /// Invalidates the values of the previous layer.
    fn forget_layer_values(&mut self, entry: &Entry) {
        self.valid.forget_layer(self.rows_of(entry));
    }

    pub(super) fn valid_parts(&mut self, entry: &Entry, value: Value) -> &mut Vec<Valid> {
        let (parts, rows) = (usize::from(self.value_parts(entry, value)), self.rows_of(entry));
        self.valid.parts(rows, value, parts)
    }

    /// Returns the batch and the stream whose buffers hold an entry's values.
    fn rows_of(&self, entry: &Entry) -> StreamKey {
        let stream = if self.is_lagging() { 0 } else { entry.stream };
        StreamKey { batch: entry.batch, stream }
    }

    /// Marks the deferred rows of a value as joined with the other rows on the device.
    pub(super) fn mark_joined(&mut self, entry: &Entry, value: Value) {
        self.valid_parts(entry, value)[usize::from(HOST.index)].gpu = true;
    }

    fn mark_written(&mut self, entry: &Entry, value: Value) {
        let device = entry.device;
        let chunk = self.output_chunk(entry, value);
        let parts = self.valid_parts(entry, value);
        let range =
            chunk.map_or(0..parts.len(), |c| usize::from(c.index)..usize::from(c.index) + 1);
        for valid in &mut parts[range] {
            *valid = Valid::default();
            *valid.on(device) = true;
        }
    }

    fn output_chunk(&self, entry: &Entry, value: Value) -> Option<Chunk> {
        // The device computes attention for whole prompts of either owner, so it reads K and V of
        // all rows.
        let is_whole = self.side(entry) != StreamSide::Mapped
            && matches!(value, Value::Key | Value::Value)
            && entry.chunk == Some(DEVICE);
        // A piece of a linear reads all columns of its first input.
        let is_own = entry.op.is_attention()
            || entry.op.writes(self.config.at(entry.layer)) == Some(value)
            || own_input(self.config.at(entry.layer), entry.op) == Some(value);
        entry.chunk.filter(|_| is_own && !is_whole && self.value_parts(entry, value) > 1)
    }

    /// Returns the region of an input on the entry's device, copying the missing parts.
    fn input(&mut self, entry: &Entry, value: Value) -> Region {
        let parts = self.value_parts(entry, value);
        let chunk = self.output_chunk(entry, value);
        let range = chunk.map_or(0..parts, |chunk| chunk.index..chunk.index + 1);
        if chunk.is_none() && self.is_elsewhere(entry, value) {
            self.bring_whole(entry, value);
        }
        for part in range {
            self.bring(entry, value, part, entry.device);
        }
        self.portion_of(entry, value, chunk)
    }

    /// Returns a chunk of a value on the entry's device; of a value of experts the portion that the
    /// entry computes.
    fn portion_of(&mut self, entry: &Entry, value: Value, chunk: Option<Chunk>) -> Region {
        let portion = expert_portions::portion(entry.op, entry.chunk);
        let portion = portion.filter(|_| expert_portions::is_divided(value));
        let buffer = self.value_buffer(entry, value, entry.device);
        Region { buffer, chunk, portion }
    }

    /// Copies part `part` of a value to `device` unless it is there.
    pub(super) fn bring(&mut self, entry: &Entry, value: Value, part: u16, device: ComputeDevice) {
        let valid = &mut self.valid_parts(entry, value)[usize::from(part)];
        if std::mem::replace(valid.on(device), true) {
            return;
        }
        assert!(*valid.on(device.other()), "{value:?} of {entry:?} was never computed");
        let chunk = chunk_of(part, self.value_parts(entry, value));
        self.copy_value(entry, value, chunk, device);
    }

    /// Returns true if every part of a value split by linears is on the other device and none is on
    /// this one.
    fn is_elsewhere(&mut self, entry: &Entry, value: Value) -> bool {
        let other = entry.device.other();
        self.pieces.parts(entry.layer, value) > 1
            && self.valid_parts(entry, value).iter_mut().all(|valid| {
                let is_here = *valid.on(entry.device);
                *valid.on(other) && !is_here
            })
    }

    /// Copies a whole value to the entry's device in one transfer.
    fn bring_whole(&mut self, entry: &Entry, value: Value) {
        for valid in self.valid_parts(entry, value) {
            *valid.on(entry.device) = true;
        }
        self.copy_value(entry, value, None, entry.device);
    }

    fn copy_value(
        &mut self,
        entry: &Entry,
        value: Value,
        chunk: Option<Chunk>,
        device: ComputeDevice,
    ) {
        let copy = Copy {
            moved: Moved::Value(value),
            at: at(entry),
            chunk,
            from: Region::of_chunk(self.value_buffer(entry, value, device.other()), chunk),
            to: Region::of_chunk(self.value_buffer(entry, value, device), chunk),
            table: Some(self.buffers.table(entry.batch)),
        };
        self.push(self.routes.copy_to(device), Instruction::Copy(copy));
    }

    pub(super) fn is_vram(&self, memory: MemoryId) -> bool {
        self.routes.topology.is_vram(memory)
    }

    /// Returns the caches read by an attention operation, streamed to the device where necessary;
    /// none if nothing is cached yet. A state is stored where it is computed, in every program.
    pub(super) fn caches(&mut self, entry: &Entry) -> Vec<Region> {
        let behind_caches = self.program.rows.are_behind_caches() || entry.op.updates_state();
        let Some(layer) = entry.layer.filter(|_| behind_caches) else { return Vec::new() };
        let stored = self.config.cache_layer(layer.into()) as u16;
        entry
            .op
            .caches(self.config.at(entry.layer))
            .iter()
            .map(|kv| {
                let of = parts(self.chunking(entry.layer), *kv);
                let part = if of > 1 { entry.chunk.map_or(0, |chunk| chunk.index) } else { 0 };
                let cache = self.buffers.cache(stored, entry.batch, *kv, part);
                let tier = self.map.kv[stored as usize].tier(*kv, part, entry.batch);
                if entry.device == ComputeDevice::Cpu || self.is_vram(tier) {
                    return cache;
                }
                if let Some(slot) = self.prefetched.remove(&(layer, entry.batch, *kv)) {
                    return slot;
                }
                // Parts of an operation that all read one whole cache are consecutive.
                match self.streamed_whole.get(kv) {
                    Some((of, slot)) if *of == at(entry) => *slot,
                    _ => self.stream_cache(entry, *kv, Chunk { index: part, of }, cache),
                }
            })
            .collect()
    }

    fn stream_cache(&mut self, entry: &Entry, kv: Kv, chunk: Chunk, from: Region) -> Region {
        let slots = kv_slots(self.map, chunk.of);
        let used = self.kv_used.entry((kv, chunk.of)).or_insert(0);
        let slot = (*used % u32::from(slots)) as u16;
        *used += 1;
        let identity = ProgramBuffer::KvSlot { kv, of: chunk.of, slot };
        let to = Region::whole(self.buffers.program_buffer(self.program, identity));
        let copy = Copy {
            moved: Moved::Cache(kv),
            at: at(entry),
            chunk: Some(chunk),
            from,
            to,
            table: Some(self.buffers.table(entry.batch)),
        };
        self.push(self.routes.upload_weights, Instruction::Copy(copy));
        if chunk == Chunk::WHOLE {
            self.streamed_whole.insert(kv, (at(entry), to));
        }
        to
    }
}

/// Returns the number of slots for streamed caches in `parts` parts. If a map splits attention, its
/// slots hold parts, and a whole cache takes all of them.
fn kv_slots(map: &DeviceMap, parts: u16) -> u16 {
    match map.attention_chunking() {
        Some(_) if parts == 1 => map.kv_slots.min(WHOLE_KV_SLOTS),
        _ => map.kv_slots,
    }
}

pub(super) fn at(entry: &Entry) -> At {
    At { layer: entry.layer, batch: entry.batch, stream: entry.stream }
}
