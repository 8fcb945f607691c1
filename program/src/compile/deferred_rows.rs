//! Deferred rows (APEX): what is copied to the host once a layer has their keys, and how they join
//! the other rows in the next step.

use model::ops::{Op, Value};

use crate::deferred_rows::{kept, stream_after};
use crate::ir::{Compute, Copy, Instruction, Moved, Region};
use crate::kv_owner::{AttentionSide, HOST};
use crate::map::{Chunk, ComputeDevice};

use super::emit::{Emitter, at};
use super::schedule::Entry;

impl Emitter<'_, '_> {
    /// Returns true if the host computes attention for an entry's rows and defers them.
    pub(super) fn has_deferred_rows(&self, entry: &Entry) -> bool {
        self.is_lagging() && entry.op.is_attention() && entry.chunk == Some(HOST)
    }

    pub(super) fn is_lagging(&self) -> bool {
        self.program.attention_side == AttentionSide::Deferred
    }

    /// Emits attention on the host, over what the previous step left there, and the copies that
    /// join its output with the device's rows. Appends the fresh keys and values of the rows that
    /// were in the previous layer.
    pub(super) fn attend_lagging(&mut self, entry: &Entry) {
        let region = |emitter: &Self, value| {
            let part = emitter.kept_part(entry);
            Region::of_chunk(emitter.buffers.kept(value), Some(part))
        };
        let inputs = entry
            .op
            .reads(self.config.at(entry.layer))
            .iter()
            .map(|value| region(self, *value))
            .collect();
        let caches = self.caches(entry);
        let weights = self.weights(entry);
        let compute = Compute {
            op: entry.op,
            at: at(entry),
            chunk: entry.chunk,
            inputs,
            caches,
            weights,
            output: Some(region(self, Value::Attended)),
            table: self.buffers.table(entry.batch),
        };
        self.push(self.routes.compute(ComputeDevice::Cpu), Instruction::Compute(compute));
        self.append_fresh(&Entry { stream: entry.stream - 1, ..*entry });
        for value in [Value::Hidden, Value::Attended] {
            let to = self.joined(entry, value);
            let from = region(self, value);
            self.copy_lagging(entry, value, from, to, ComputeDevice::Gpu);
        }
        self.mark_joined(entry, Value::Attended);
    }

    /// Emits the copies that take deferred rows off the device after one of their operations.
    pub(super) fn leave(&mut self, entry: &Entry) {
        let value = match entry.op {
            Op::Norm0 => Value::Hidden,
            Op::Q => Value::Query,
            Op::K => Value::Key,
            Op::V => Value::Value,
            _ => return,
        };
        let buffer = self.buffers.kept(value);
        let to = Region::of_chunk(buffer, Some(self.kept_part(entry)));
        let from = self.joined(entry, value);
        self.copy_lagging(entry, value, from, to, ComputeDevice::Cpu);
    }

    fn copy_lagging(
        &mut self,
        entry: &Entry,
        value: Value,
        from: Region,
        to: Region,
        device: ComputeDevice,
    ) {
        let copy = Copy {
            moved: Moved::Deferred(value),
            at: at(entry),
            chunk: Some(HOST),
            from,
            to,
            table: Some(self.buffers.table(entry.batch)),
        };
        self.push(self.routes.copy_to(device), Instruction::Copy(copy));
    }

    /// Returns the deferred rows of a value on the device.
    fn joined(&mut self, entry: &Entry, value: Value) -> Region {
        let buffer = self.value_buffer(entry, value, ComputeDevice::Gpu);
        Region::of_chunk(buffer, Some(HOST))
    }

    fn kept_part(&self, entry: &Entry) -> Chunk {
        kept(entry.stream - stream_after(0), self.config.num_layers as u16)
    }
}
