//! Fresh K and V, and the migration of caches between owners.

use model::ops::{Kv, Op, Value};

use crate::ir::{Append, At, Copy, Instruction, Moved, Region};
use crate::kv_owner::{AttentionSide, DEVICE, HOST};
use crate::map::{Chunk, ComputeDevice};

use super::buffers::{chunk_of, parts};
use super::emit::{Emitter, at};
use super::schedule::Entry;

impl Emitter<'_, '_> {
    /// Copies fresh K and V off the device as soon as they exist, if any of their caches is stored
    /// elsewhere.
    pub(super) fn send_fresh(&mut self, entry: &Entry) {
        let kv = match entry.op {
            Op::K => Kv::K,
            Op::V | Op::Compress => Kv::V,
            _ => return,
        };
        let value = kv.fresh(self.config.at(entry.layer));
        let Some(layer) = entry.layer.filter(|_| entry.device == ComputeDevice::Gpu) else {
            return;
        };
        let layer_kv = &self.map.kv[layer as usize];
        let tier = |part| layer_kv.tier(kv, part, entry.batch);
        let mut all = 0..layer_kv.tiers(kv).len() as u16;
        if all.any(|part| !self.is_vram(tier(part))) {
            // If sequences have owners, the host's part is the last.
            let part = self.value_parts(entry, value) - 1;
            self.bring(entry, value, part, ComputeDevice::Cpu);
        }
    }

    /// Copies the queries of the host's rows off the device as soon as they exist and before the
    /// next stream's transfers: a link's lane keeps its order and would delay them until that
    /// stream's linears are done.
    pub(super) fn send_queries(&mut self, entry: &Entry) {
        let is_query = entry.op.writes(self.config.at(entry.layer)) == Some(Value::Query);
        let is_sent = is_query && entry.device == ComputeDevice::Gpu;
        if is_sent && self.program.attention_side == AttentionSide::Owners {
            let part = self.value_parts(entry, Value::Query) - 1;
            self.bring(entry, Value::Query, part, ComputeDevice::Cpu);
        }
    }

    /// Appends fresh K and V to the caches. The append follows the layer's attention, which reads
    /// only the preceding positions, so that a streamed cache need not wait for this step's append.
    pub(super) fn append_fresh(&mut self, entry: &Entry) {
        let Some(layer) = entry.layer else { return };
        let chunking = self.chunking(entry.layer);
        let of_layer = self.map.layer_chunking(self.config, layer as usize);
        for kv in self.config.layer_caches(layer as usize).iter().copied() {
            let value = kv.fresh(self.config.at(entry.layer));
            let of = parts(of_layer, kv);
            let side = self.side(entry);
            let chunks = (0..of).map(|index| Chunk { index, of });
            for chunk in chunks.filter(|chunk| side.fills(*chunk)) {
                let tier = self.map.kv[layer as usize].tier(kv, chunk.index, entry.batch);
                let device =
                    if self.is_vram(tier) { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
                let rows_of = self.value_parts(entry, value);
                let rows = if rows_of > 1 { chunk.index } else { 0 };
                let on_gpu_before = self.valid_parts(entry, value)[usize::from(rows)].gpu;
                self.bring(entry, value, rows, device);
                let lane = match (device, on_gpu_before || chunking.is_some()) {
                    // The append waits for a copy, which must not block the CPU's own work.
                    (ComputeDevice::Cpu, true) => self.routes.append,
                    (device, _) => self.routes.compute(device),
                };
                let buffer = self.value_buffer(entry, value, device);
                let append = Append {
                    kv,
                    at: at(entry),
                    chunk,
                    from: Region::of_chunk(buffer, chunk_of(rows, rows_of)),
                    to: self.buffers.cache(layer, entry.batch, kv, chunk.index),
                    table: self.buffers.table(entry.batch),
                };
                self.push(lane, Instruction::Append(append));
            }
        }
    }

    /// Copies all caches of the listed sequences to a side, layer by layer.
    pub(super) fn move_caches(&mut self, to: ComputeDevice, layers: &[usize]) {
        let (from, chunk, lane) = match to {
            ComputeDevice::Cpu => (DEVICE.index, HOST, self.routes.copy_to(to)),
            ComputeDevice::Gpu => (HOST.index, DEVICE, self.routes.upload_weights),
        };
        for layer in layers.iter().map(|layer| *layer as u16) {
            for kv in self.config.layer_caches(usize::from(layer)).iter().copied() {
                let copy = Copy {
                    moved: Moved::Sequences(kv),
                    at: At { layer: Some(layer), batch: 0, stream: 0 },
                    chunk: Some(chunk),
                    from: self.buffers.cache(layer, 0, kv, from),
                    to: self.buffers.cache(layer, 0, kv, chunk.index),
                    table: Some(self.buffers.table(0)),
                };
                self.push(lane, Instruction::Copy(copy));
            }
        }
    }
}
