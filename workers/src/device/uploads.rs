//! Rows and units of a step on the device. They are written to pinned memory when an instruction
//! first needs them, copied on the lane's stream, and used by all layers.
//!
//! A slot is written once in a step, by one lane. Its pinned bytes may be overwritten in the next
//! step without a wait: whichever thread enqueues work of that step has waited for the sampler of
//! the step before, which came after work that followed the copy on this stream.

use std::collections::BTreeMap;

use bytemuck::Pod;
use cuda::{CudaError, PinnedBuffer, Stream};
use cuda_kernels::{DeviceAttentionUnit, DeviceAttentionUnits, DevicePointer};
use model::config::ModelConfig;
use model::ops::Kv;
use program::ir::{At, ProgramId};
use program::map::Chunk;
use protocol::table::StepTable;

use super::open::Device;
use super::row_lists::RowList;
use super::scratch::{Key, Range};
use crate::work_items::{SequenceRows, appended_units, logits_rows, sequences, units};

/// Destination of an instruction's lists, and the steps of the program from which they are made.
#[derive(Clone, Copy)]
pub(super) struct UploadContext<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) table: &'a StepTable,
    pub(super) program: ProgramId,
}

/// Rows of an instruction on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadedRows {
    /// Position of each row, u32. The other parts of the list follow.
    pub(super) positions: DevicePointer,
    /// Last row of each sequence, u32.
    pub(super) last_rows: DevicePointer,
    /// Layout of the other parts.
    pub(super) list: RowList,
}

#[derive(Debug)]
struct Slot {
    range: Range,
    /// Run of the lists for which it was filled.
    filled: Option<u64>,
    units: DeviceAttentionUnits,
    /// Number of cached positions of all units.
    cached: u64,
}

/// The slots of one lane.
#[derive(Debug)]
pub(super) struct Uploads {
    pinned: PinnedBuffer,
    slots: BTreeMap<Key, Slot>,
    /// Number of the current run of a list, including prefill.
    run: u64,
    /// Rows whose places by expert the device currently holds: those of a layer's stream, from this
    /// row on.
    grouped: Option<(ProgramId, At, usize)>,
}

impl Uploads {
    /// Allocates the slots of all lists of the plan.
    ///
    /// # Errors
    /// Returns an error if the driver has no pinned memory left.
    pub(super) fn new(device: &Device) -> Result<Uploads, CudaError> {
        let scratch = device.scratch();
        let pinned = PinnedBuffer::allocate(device.context(), scratch.slots.size_bytes as usize)?;
        let slot = |key| {
            let units = DeviceAttentionUnits {
                pointer: 0,
                count: 0,
                rows_max: 0,
                appended_max: 0,
                positions_max: 0,
            };
            (key, Slot { range: scratch.slot(key), filled: None, units, cached: 0 })
        };
        Ok(Uploads { pinned, slots: scratch.keys().map(slot).collect(), run: 0, grouped: None })
    }

    /// Begins a new run, which invalidates everything filled before.
    pub(super) fn next_run(&mut self) {
        self.run += 1;
        self.grouped = None;
    }

    /// Returns true if the places by expert are those of `rows`, and marks them as those of `rows`.
    pub(super) fn has_grouped(&mut self, rows: (ProgramId, At, usize)) -> bool {
        self.grouped.replace(rows) == Some(rows)
    }

    /// Returns the positions, last rows and rotary tables of a stream.
    pub(super) fn rows(
        &mut self,
        config: &ModelConfig,
        context: UploadContext<'_>,
        at: At,
    ) -> Result<UploadedRows, CudaError> {
        let UploadContext { device, stream, table, program } = context;
        let slot = self.slots.get_mut(&Key::rows(program, at));
        let Some(slot) = slot else { panic!("rows of {at:?} have no slot") };
        let list = RowList::new(table.program(program));
        if slot.filled != Some(self.run) {
            let staged = staged::<u32>(&self.pinned, device, slot.range);
            let batch = usize::from(at.batch);
            for (index, sequence) in sequences(table, program, at).enumerate() {
                let SequenceRows { row0, item } = sequence;
                let positions = item.first as u32..(item.first + item.rows) as u32;
                for (to, position) in staged[row0..].iter_mut().zip(positions) {
                    *to = position;
                }
                let length = table.length(batch, item.slot);
                list.write_tables(config, index, sequence, length, staged);
            }
            let with_logits = logits_rows(table, program, at);
            for (to, found) in staged[list.last_rows_at()..].iter_mut().zip(with_logits) {
                *to = found.row as u32;
            }
            copy(&self.pinned, device, stream, slot.range, slot.range.size_bytes as usize)?;
            slot.filled = Some(self.run);
        }
        let positions = device.scratch_address(slot.range);
        let last_rows = positions + list.last_rows_at() as u64 * 4;
        Ok(UploadedRows { positions, last_rows, list })
    }

    /// Returns the units of a chunk of a stream in a kind of layer, and the number of cached
    /// positions of all of them.
    pub(super) fn units(
        &mut self,
        context: UploadContext<'_>,
        at: At,
        kind: usize,
        chunk: Option<Chunk>,
    ) -> Result<(DeviceAttentionUnits, u64), CudaError> {
        let UploadContext { device, stream, table, program } = context;
        let listed = || units(table, program, at, chunk);
        self.listed(device, stream, Key::units(program, at, kind, chunk), listed)
    }

    /// Returns the units whose fresh rows an append takes.
    pub(super) fn appended(
        &mut self,
        context: UploadContext<'_>,
        at: At,
        kind: usize,
        chunk: Chunk,
    ) -> Result<DeviceAttentionUnits, CudaError> {
        let UploadContext { device, stream, table, program } = context;
        let listed = || appended_units(table, program, at, chunk, Kv::K);
        let found = self.listed(
            device,
            stream,
            Key::appended(program, table.program(program).rows, at, kind, chunk),
            listed,
        );
        found.map(|(units, _)| units)
    }

    fn listed<I: Iterator<Item = kernels::AttentionUnit>>(
        &mut self,
        device: &Device,
        stream: &Stream,
        key: Key,
        listed: impl FnOnce() -> I,
    ) -> Result<(DeviceAttentionUnits, u64), CudaError> {
        let slot = self.slots.get_mut(&key);
        let Some(slot) = slot else { panic!("{key:?} has no slot") };
        if slot.filled != Some(self.run) {
            let staged = staged::<DeviceAttentionUnit>(&self.pinned, device, slot.range);
            let (mut count, mut cached) = (0, 0);
            let (mut rows_max, mut appended_max, mut positions_max) = (0, 0, 0);
            for unit in listed() {
                let found = DeviceAttentionUnit {
                    row0: unit.row0,
                    rows: unit.rows,
                    past: unit.past,
                    kv_head: unit.kv_head,
                    cache_offset: unit.cache_offset as u64,
                    scores_offset: unit.scores_offset as u64,
                    shared_row: unit.shared_row.unwrap_or(DeviceAttentionUnit::CACHED),
                    cache_positions: unit.cache_positions,
                };
                staged[count] = found;
                count += 1;
                appended_max = appended_max.max(found.appended());
                rows_max = rows_max.max(unit.rows);
                positions_max = positions_max.max(unit.past + unit.rows);
                cached += u64::from(unit.cached());
            }
            copy(
                &self.pinned,
                device,
                stream,
                slot.range,
                count * size_of::<DeviceAttentionUnit>(),
            )?;
            let pointer = device.scratch_address(slot.range);
            let count = count as u32;
            slot.units =
                DeviceAttentionUnits { pointer, count, rows_max, appended_max, positions_max };
            (slot.cached, slot.filled) = (cached, Some(self.run));
        }
        Ok((slot.units, slot.cached))
    }
}

/// Returns the pinned bytes of a slot as values.
#[expect(clippy::mut_from_ref, reason = "slots are disjoint, and one lane writes them")]
fn staged<'a, T: Pod>(staging: &'a PinnedBuffer, device: &Device, range: Range) -> &'a mut [T] {
    let offset = (range.offset_bytes - device.scratch().slots.offset_bytes) as usize;
    assert!(offset + range.size_bytes as usize <= staging.size_bytes(), "the slot is staged");
    // SAFETY: needed to write what the device will read. The range is within the buffer (asserted),
    // it begins on 256 bytes, any bytes are a `Pod`, and copies of an earlier step are done (module
    // header), so nothing else touches it.
    unsafe {
        let first = staging.base().add(offset).cast::<T>();
        std::slice::from_raw_parts_mut(first, range.size_bytes as usize / size_of::<T>())
    }
}

fn copy(
    staging: &PinnedBuffer,
    device: &Device,
    stream: &Stream,
    range: Range,
    size_bytes: usize,
) -> Result<(), CudaError> {
    if size_bytes == 0 {
        return Ok(());
    }
    let offset = (range.offset_bytes - device.scratch().slots.offset_bytes) as usize;
    let to = device.scratch_address(range);
    // SAFETY: needed to bring the list to the device. Both ranges are as long as the slot; the
    // pinned one is not written before the copy is done (module header), the other is read by this
    // stream only.
    unsafe { stream.copy_to_device(to, staging.base().add(offset), size_bytes) }
}
