//! Locates the weights of an operation: in place, or in a slot that they are streamed or read into.

use crate::formats::decompressed;
use crate::ir::{
    At, BufferId, Copy, Decompress, Instruction, Moved, Read, Region, RoutingRegions, Rows,
};
use crate::map::ComputeDevice;
use crate::plan::RunShape;
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
        let chunk = entry.chunk.filter(|_| !entry.op.is_attention());
        Region { buffer, chunk }
    }

    /// Returns the host region of a blob: in place, or in a slot that it is read into.
    fn host_weights(&mut self, entry: &Entry, blob: Weights) -> Region {
        if self.buffers.stored_weights(blob).is_none() {
            return Self::part_of(entry, self.buffers.loaded_weights(blob));
        }
        let routing = self.routing(entry);
        let slot = match self.cache_slots(entry).filter(|_| routing.is_some()) {
            Some(cache) => cache,
            None => {
                let identity = ProgramBuffer::ReadSlot { op: entry.op };
                self.buffers.program_buffer(self.program, identity)
            }
        };
        if self.read.insert(blob) {
            self.read_to(entry, blob, slot, routing);
        }
        Self::part_of(entry, slot)
    }

    /// Returns the cache of an operation's experts, if the CPU, which assigns its slots, runs the
    /// layer's router.
    fn cache_slots(&self, entry: &Entry) -> Option<BufferId> {
        let is_assigned = self.router_device == Some((entry.layer?, ComputeDevice::Cpu));
        self.buffers.expert_cache_of(entry.op).filter(|_| is_assigned)
    }

    /// Returns what determines the experts that an operation of the CPU reads; `None` if it reads
    /// its whole weights.
    fn routing(&mut self, entry: &Entry) -> Option<RoutingRegions> {
        let RunShape { batches, batch_size, serves, .. } = *self.shape;
        let reads = self.map.expert_reads;
        // Prompts of a batch job reach almost all experts.
        let is_routed = entry.op.is_expert()
            && entry.device == ComputeDevice::Cpu
            && self.program.streams == 1
            && (self.program.rows == Rows::Single || serves)
            && reads.routed_experts(self.config, batches, batch_size).is_some();
        is_routed.then(|| {
            let routing = self.value_buffer(entry, Value::Routing, ComputeDevice::Cpu);
            RoutingRegions {
                routing: Region::whole(routing),
                table: self.buffers.table(entry.batch),
            }
        })
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
        let at = At { layer: entry.layer, batch: 0, stream: 0 };
        let of = replicas.len() as u16;
        let lanes = self.routes.topology.storages().into_iter().map(|(_, lane)| lane);
        for ((index, replica), lane) in (0..).zip(replicas).zip(lanes) {
            let part = |buffer| Region { buffer, chunk: chunk_of(index, of) };
            let (from, to) = (part(replica), part(slot));
            self.push(lane, Instruction::Read(Read { op: entry.op, at, from, to, routing }));
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
            if self.map.direct_reads && self.read_to(entry, blob, slot.buffer, None) {
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
