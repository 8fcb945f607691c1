//! Locates the weights of an operation: in place, or in a slot that they are streamed or read into.

use crate::expert_portions::{first_read, portion};
use crate::formats::decompressed;
use crate::ir::{
    At, BufferId, Copy, Decompress, Instruction, JoinedWeights, Moved, Read, Region,
    RoutingRegions, Rows,
};
use crate::map::{Chunk, ComputeDevice};
use crate::plan::RunShape;
use crate::topology::LaneId;
use crate::weights::Weights;
use model::ops::Value;

use super::buffers::{ProgramBuffer, chunk_of};
use super::emit::Emitter;
use super::schedule::Entry;

impl Emitter<'_, '_> {
    pub(super) fn weights(&mut self, entry: &Entry) -> Vec<Region> {
        if entry.op.weights(self.config.at(entry.layer)).is_none() {
            return Vec::new();
        }
        let blob = Weights::of(entry.op, entry.layer);
        let mut regions = vec![self.weight_region(entry, blob)];
        if let Some(table) = Weights::table_of(entry.op, self.config) {
            regions.push(self.weight_region(entry, table));
        }
        regions
    }

    fn weight_region(&mut self, entry: &Entry, blob: Weights) -> Region {
        if entry.device == ComputeDevice::Cpu {
            return self.host_weights(entry, blob);
        }
        let stored = self.device_weights(entry, blob);
        if decompressed(self.map.weight_formats.of(self.config, blob)).is_none() {
            return stored;
        }
        let layer_slot = entry.layer.unwrap_or(0) % self.map.weight_slots;
        let identity = ProgramBuffer::WideSlot { op: entry.op, layer_slot };
        let wide = Region::whole(self.buffers.program_buffer(self.program, identity));
        if self.decompressed.insert(blob) {
            let at = At { layer: entry.layer, batch: 0, stream: 0 };
            let decompress = Decompress { op: entry.op, at, from: stored, to: wide };
            self.push(self.routes.decompress, Instruction::Decompress(decompress));
        }
        wide
    }

    /// Returns the part of a weight buffer that an entry multiplies.
    fn part_of(entry: &Entry, buffer: BufferId) -> Region {
        let portion = portion(entry.op, entry.chunk);
        let chunk = entry.chunk.filter(|_| portion.is_none() && !entry.op.is_attention());
        Region { buffer, chunk, portion }
    }

    /// Returns the host region of a blob: in place, or in a slot that it is read into.
    fn host_weights(&mut self, entry: &Entry, blob: Weights) -> Region {
        if self.buffers.stored_weights(blob).is_none() {
            return Self::part_of(entry, self.buffers.loaded_weights(blob));
        }
        let routing = self.routing(entry);
        let slot = match (routing, self.cache_slots(entry)) {
            (Some(_), Some(cache)) => cache,
            (is_routed, _) => {
                let identity = match is_routed {
                    Some(_) => ProgramBuffer::ExpertSlots,
                    None => ProgramBuffer::ReadSlot { op: entry.op },
                };
                self.buffers.program_buffer(self.program, identity)
            }
        };
        if self.read.insert(blob) {
            self.read_to(entry, blob, slot, routing);
        }
        Self::part_of(entry, slot)
    }

    /// Returns the cache of experts, if the CPU, which assigns its slots, runs the layer's router.
    fn cache_slots(&self, entry: &Entry) -> Option<BufferId> {
        let is_assigned = self.router_device == Some((entry.layer?, ComputeDevice::Cpu));
        self.buffers.expert_cache().filter(|_| is_assigned).map(|cache| cache.buffer)
    }

    /// Notes the linears of experts that the CPU multiplies, by layer.
    pub(super) fn note_host_experts(&mut self, entries: &[Entry]) {
        for entry in entries.iter().filter(|entry| entry.device == ComputeDevice::Cpu) {
            let Some(layer) = entry.layer.filter(|_| entry.op.is_expert()) else { continue };
            let ops = self.host_experts.entry(layer).or_default();
            *ops = ops.with(entry.op);
        }
    }

    /// Returns the weights that are read together with those of an entry: those of the other
    /// linears of the same experts that are on storages and that the CPU multiplies.
    fn joined_weights(&self, entry: &Entry, routing: Option<RoutingRegions>) -> Vec<Weights> {
        let Some(layer) = entry.layer.filter(|_| routing.is_some()) else { return Vec::new() };
        let ops = self.host_experts.get(&layer).copied().unwrap_or_default();
        let others = ops.iter().filter(|op| *op != entry.op);
        let others = others.map(|op| Weights::Layer { layer, op });
        others.filter(|weights| self.buffers.stored_weights(*weights).is_some()).collect()
    }

    /// Returns what determines the experts that an operation of the CPU reads; `None` if it reads
    /// its whole weights.
    pub(super) fn routing(&mut self, entry: &Entry) -> Option<RoutingRegions> {
        let RunShape { batches, batch_size, serves, .. } = *self.shape;
        let reads = self.map.expert_reads;
        // Prompts of a batch job reach almost all experts.
        let is_routed = entry.op.is_expert()
            && entry.device == ComputeDevice::Cpu
            && self.program.streams == 1
            && (self.program.rows == Rows::Single || serves)
            && reads.routed_experts(self.config, &self.map.routing, batches, batch_size).is_some();
        is_routed.then(|| {
            let routing = self.value_buffer(entry, Value::Routing, ComputeDevice::Cpu);
            RoutingRegions {
                routing: Region::whole(routing),
                table: self.buffers.table(entry.batch),
            }
        })
    }

    /// Returns the portions in which the experts of an entry are read; `None` alone if they, or
    /// other weights, are read at once.
    fn read_portions(&self, entry: &Entry, routing: Option<RoutingRegions>) -> Vec<Option<Chunk>> {
        let portion = routing.and_then(|_| portion(entry.op, entry.chunk));
        let Some(Chunk { of, .. }) = portion else { return vec![None] };
        let first = first_read(self.cache_slots(entry).is_some());
        (first..of).map(|index| Some(Chunk { index, of })).collect()
    }

    /// Emits the reads of each storage's share of a blob into a slot. Returns false if the blob is
    /// on no storage.
    fn read_to(
        &mut self,
        entry: &Entry,
        blob: Weights,
        slot: BufferId,
        routing: Option<RoutingRegions>,
    ) -> bool {
        let Some(replicas) = self.buffers.stored_weights(blob).map(<[BufferId]>::to_vec) else {
            return false;
        };
        let joined = self.joined_weights(entry, routing);
        self.read.extend(&joined);
        let at = At { layer: entry.layer, batch: 0, stream: 0 };
        let of = replicas.len() as u16;
        let lanes = self.routes.topology.storages().into_iter().map(|(_, lane)| lane);
        let lanes: Vec<(LaneId, BufferId)> = lanes.zip(replicas).collect();
        for portion in self.read_portions(entry, routing) {
            for (index, (lane, replica)) in (0..).zip(&lanes) {
                let part = |buffer| Region::of_chunk(buffer, chunk_of(index, of));
                let (from, to) = (part(*replica), Region { portion, ..part(slot) });
                let joined = joined.iter().filter_map(|weights| {
                    let Weights::Layer { op, .. } = *weights else { return None };
                    let replica = self.buffers.stored_weights(*weights)?[usize::from(index)];
                    Some(JoinedWeights { op, from: part(replica) })
                });
                let read = Read { op: entry.op, at, from, to, joined: joined.collect(), routing };
                self.push(*lane, Instruction::Read(read));
            }
        }
        true
    }

    /// Returns the device region of a blob as stored: in place, or in a slot that it is streamed or
    /// read into.
    fn device_weights(&mut self, entry: &Entry, blob: Weights) -> Region {
        if self.is_vram(self.map.weights_of(self.config, entry.layer, entry.op))
            && let Some(resident) = self.buffers.resident_weights(blob)
        {
            return Self::part_of(entry, resident);
        }
        let layer_slot = entry.layer.unwrap_or(0) % self.map.weight_slots;
        let identity = match blob {
            Weights::Positions => ProgramBuffer::PositionsSlot,
            _ => ProgramBuffer::WeightSlot { op: entry.op, layer_slot },
        };
        let slot = Self::part_of(entry, self.buffers.program_buffer(self.program, identity));
        if self.streamed.insert((blob, slot.chunk)) {
            // A device multiplies matrices that follow each other, which records do not have.
            let is_direct = self.map.direct_reads && !entry.op.is_expert();
            if is_direct && self.read_to(entry, blob, slot.buffer, None) {
                return slot;
            }
            let host = self.host_weights(entry, blob);
            let at = At { layer: entry.layer, batch: 0, stream: 0 };
            let moved = Moved::Weights(entry.op);
            let copy = Copy { moved, at, chunk: slot.chunk, from: host, to: slot, table: None };
            self.push(self.routes.upload_weights, Instruction::Copy(copy));
        }
        slot
    }
}
