//! Lanes that read weights from a staging on a drive into slots of host memory, or directly into
//! slots of a device.
//!
//! Every storage's staging has the same contents, so a lane's list can be run from any of them: a
//! worker runs its own lane, and those of workers that are lost ([`crate::standby`]), from its own
//! staging. The part of a weight that a lane reads follows from the map's shares and from the lanes
//! that no longer have work.

use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kernels::RoutedExpert;
use model::ops::Value;
use program::expert_records::{BlockRange, ExpertOps, ExpertRecord, keep_blocks, max_ranges};
use program::ir::{BufferId, Instruction, ProgramId, Read};
use program::plan::Plan;
use program::shares::{BLOCK_BYTES, bytes_of};
use program::sizes::READ_ALIGN_BYTES;
use program::topology::{LaneId, MemoryId, SegmentId};
use program::weights::Weights;
use protocol::messages::StagedCopyConfig;
use protocol::table::StepTable;
use shm::{Control, StepOfGroup};
use weight_store::{BlobId, IoKind, ReadEvent, Reader, ReaderOptions, StagedCopy};

use crate::device::DirectDevice;
use crate::error::{LaneError, WorkerError, describe_position};
use crate::expert_list::{from_word, select_portion};
use crate::lane_executor::{LaneExecutor, Task, WorkAmount};
use crate::memory::View;
use crate::read_watchdog::ReadWatchdog;
use crate::work_items::row_counts;

const _: () = assert!(BLOCK_BYTES == weight_store::BLOCK_BYTES);
const _: () = assert!(READ_ALIGN_BYTES == weight_store::PAGE_BYTES);

/// A worker's staging, and the blobs of the plan's weights in it.
#[derive(Debug)]
pub struct StagedBlobs {
    staged: StagedCopy,
    /// Maximum time that a drive may take to answer before it is given up.
    pub(crate) silence_max: Duration,
    options: ReaderOptions,
    /// Blob of a weight on any storage, by buffer.
    blobs: Vec<Option<BlobId>>,
}

impl StagedBlobs {
    /// Opens a staging and locates everything that the plan keeps on storages.
    ///
    /// # Errors
    /// Returns an error if the staging cannot be opened, is damaged, or contains other weights than
    /// the plan's.
    pub fn open(plan: &Plan, at: &StagedCopyConfig) -> Result<StagedBlobs, WorkerError> {
        let staged = StagedCopy::open(Path::new(&at.path))
            .map_err(|error| WorkerError::Staging { reason: error.to_string() })?;
        let mut blobs = vec![None; plan.buffers.len()];
        let stored = plan
            .weights
            .iter()
            .filter(|placed| plan.topology.is_storage(plan.buffer(placed.buffer).segment.memory));
        for placed in stored {
            let buffer = plan.buffer(placed.buffer);
            let record = record_of(plan, placed.weights);
            let (name, expected_bytes) = match record {
                Some((layer, record)) => (ExpertRecord::blob_name(layer), record.blob_bytes()),
                None => (buffer.name.clone(), buffer.size_bytes),
            };
            let blob = staged.blob(&name);
            let size_bytes = blob.map(|blob| staged.size_bytes(blob));
            if size_bytes.map(|size| size.next_multiple_of(64)) != Some(expected_bytes) {
                let path = &at.path;
                let reason = match size_bytes {
                    None => format!("{path} does not contain {name}; stage the model again"),
                    Some(size) => format!(
                        "{name} has {size} bytes in {path}, but the run needs {expected_bytes}; \
                         stage the model in this format"
                    ),
                };
                return Err(WorkerError::Staging { reason });
            }
            blobs[placed.buffer.0 as usize] = blob;
        }
        let io = if at.uses_threads { IoKind::Threads } else { IoKind::Auto };
        let faults = at.faults.parse().map_err(|error: weight_store::FaultError| {
            WorkerError::Staging { reason: error.to_string() }
        })?;
        let options = ReaderOptions { io, faults, ..ReaderOptions::default() };
        let silence_max = Duration::from_millis(at.silence_ms);
        Ok(StagedBlobs { staged, silence_max, options, blobs })
    }

    fn reader(&self) -> Result<Reader, WorkerError> {
        Reader::open(&self.staged, self.options.clone())
            .map_err(|error| WorkerError::Staging { reason: error.to_string() })
    }
}

/// Executor of the reads of one lane.
#[derive(Debug)]
pub struct StorageLane {
    lane: LaneId,
    plan: Arc<Plan>,
    control: Control,
    /// Slots of the host, and those of an emulated device that the lane reads to.
    view: View,
    reader: Reader,
    /// CUDA device and the reader to it, for direct reads.
    direct: Option<(Arc<DirectDevice>, Reader)>,
    blobs: Vec<Option<BlobId>>,
    /// All storages with their lanes, in the order of the shares.
    storages: Vec<(MemoryId, LaneId)>,
    /// Set for each storage whose lane has no work in this step.
    is_idle: Vec<bool>,
    table: StepTable,
    /// Flags of the experts that the present read fetches.
    is_routed: Vec<bool>,
    /// Blocks of the present read.
    blocks: Vec<BlockRange>,
    watchdog: Arc<ReadWatchdog>,
}

impl StorageLane {
    /// Returns an executor of the lane's reads from `store`, regardless of which worker the lane
    /// belongs to, to the host's slots and, if `direct` is present, to those of a CUDA device.
    ///
    /// # Errors
    /// Returns an error if the staging cannot be read, or not directly to the device.
    ///
    /// # Safety
    /// No lane runs before all are built.
    pub unsafe fn new(
        lane: LaneId,
        plan: &Arc<Plan>,
        control: &Control,
        view: View,
        store: &StagedBlobs,
        watchdog: &Arc<ReadWatchdog>,
        direct: Option<&Arc<DirectDevice>>,
    ) -> Result<StorageLane, WorkerError> {
        let storages = plan.topology.storages();
        let mut reader = store.reader()?;
        let slots = slots(plan, lane, &view);
        if !slots.is_empty() {
            // SAFETY: needed so that drives write to memory that is pinned once. The lane's view
            // keeps the slots mapped, and it outlives the reader next to it.
            let _ = unsafe { reader.register(&slots) };
        }
        publish_progress(&mut reader, watchdog);
        let direct = match direct {
            Some(direct) => {
                let mut reader = direct.reader(&store.staged, &store.options)?;
                if let Some((buffer, blob)) = first_direct_read(plan, &store.blobs) {
                    // SAFETY: needed to try it. No lane runs yet (contract), and every worker tries
                    // the plan's first read.
                    unsafe { direct.verify_first_block(&mut reader, blob, buffer) }?;
                }
                publish_progress(&mut reader, watchdog);
                Some((Arc::clone(direct), reader))
            }
            None => None,
        };
        let experts = plan.config.experts.map_or(0, |experts| experts.count);
        Ok(StorageLane {
            lane,
            table: StepTable::new(control.extra(0, plan.table.words()), plan),
            is_routed: vec![false; experts],
            // One for a blob that is read whole.
            blocks: Vec::with_capacity(max_ranges(experts) + 1),
            plan: Arc::clone(plan),
            control: control.clone(),
            view,
            reader,
            direct,
            blobs: store.blobs.clone(),
            is_idle: vec![false; storages.len()],
            storages,
            watchdog: Arc::clone(watchdog),
        })
    }

    /// Reads the lane's share of the experts that stay in the cache from the start.
    ///
    /// # Errors
    /// Returns an error if the staging cannot be read.
    ///
    /// # Safety
    /// No lane runs before all are built.
    pub unsafe fn read_pinned(&mut self) -> Result<(), WorkerError> {
        let plan = Arc::clone(&self.plan);
        let Some(cache) = plan.expert_cache else { return Ok(()) };
        let fail = |reason: String| WorkerError::Staging { reason };
        let storage = self.storages.iter().position(|(_, lane)| *lane == self.lane).unwrap_or(0);
        let size_bytes = plan.buffer(cache.buffer).size_bytes as usize;
        let to = NonNull::new(self.view.pointer(cache.buffer, 0, size_bytes));
        let to = to.ok_or_else(|| fail("the cache has no address".to_owned()))?;
        for (slot, pinned) in (0u64..).zip(&plan.map.pinned_experts) {
            let Some((read, blob)) = self.read_of_layer(&plan, pinned.layer) else { continue };
            let ops = read.expert_ops();
            let Some(record) = plan.expert_record(read.at.layer, ops) else { continue };
            self.blocks.clear();
            let to_bytes = slot * cache.slot_bytes;
            record.append_blocks(ops, pinned.expert.into(), to_bytes, &mut self.blocks);
            let count = self.blocks.iter().map(|(blocks, _)| blocks.end - blocks.start).sum();
            let kept = plan.map.shares.blocks(read.op, storage as u16, count, |_| false);
            keep_blocks(&mut self.blocks, kept);
            self.watchdog.begin();
            // SAFETY: needed to let the drive write into the slot. No lane runs yet (contract), and
            // the shares of all storages divide the blocks.
            let outcome = unsafe { self.reader.read_ranges(blob, &self.blocks, to) };
            self.watchdog.end();
            outcome.map_err(|error| fail(error.to_string()))?;
        }
        Ok(())
    }

    /// Returns this lane's read of a layer's experts into the cache, and the blob that it reads.
    fn read_of_layer<'p>(&self, plan: &'p Plan, layer: u16) -> Option<(&'p Read, BlobId)> {
        let lists = plan.programs.iter().filter_map(|program| program.lane(self.lane));
        let read = lists.flat_map(|list| &list.instructions).find_map(|work| match work {
            Instruction::Read(read)
                if read.at.layer == Some(layer)
                    && plan.expert_cache_of(read.to.buffer).is_some() =>
            {
                Some(read)
            }
            _ => None,
        })?;
        Some((read, self.blobs[read.from.buffer.0 as usize]?))
    }

    /// Returns a description of how the lane reads, for users.
    pub fn describe(&self) -> String {
        let reads_to = |on_host| {
            let lists = self.plan.programs.iter().filter_map(|program| program.lane(self.lane));
            let mut works = lists.flat_map(|list| &list.instructions);
            works.any(|work| match work {
                Instruction::Read(read) => self.view.is_mapped(read.to.buffer) == on_host,
                _ => false,
            })
        };
        match &self.direct {
            Some((_, direct)) if reads_to(false) => match reads_to(true) {
                true => format!("{}; to the host {}", direct.describe(), self.reader.describe()),
                false => direct.describe(),
            },
            _ => self.reader.describe(),
        }
    }

    /// Lists the blocks that this lane reads of a blob.
    fn list_blocks(&mut self, program: ProgramId, read: &Read, storage: u16, blob: BlobId) {
        self.blocks.clear();
        let ops = read.expert_ops();
        match (self.plan.expert_record(read.at.layer, ops), read.routing) {
            (None, _) => self.blocks.push((0..self.reader.staged().blocks(blob), 0)),
            (Some(record), None) => {
                for expert in 0..record.count {
                    let to_bytes = expert * record.slot_bytes(ops);
                    record.append_blocks(ops, expert, to_bytes, &mut self.blocks);
                }
            }
            (Some(record), Some(regions)) => {
                self.list_routed(program, read, &record, regions.routing.buffer);
            }
        }
        let count = self.blocks.iter().map(|(blocks, _)| blocks.end - blocks.start).sum();
        let is_idle = |index: u16| self.is_idle[usize::from(index)];
        let kept = self.plan.map.shares.blocks(read.op, storage, count, is_idle);
        keep_blocks(&mut self.blocks, kept);
    }

    /// Lists the blocks of the experts that rows are routed to and that no cache has, or of a
    /// portion of them.
    fn list_routed(
        &mut self,
        program: ProgramId,
        read: &Read,
        record: &ExpertRecord,
        routing: BufferId,
    ) {
        let StorageLane { plan, view, table, is_routed, blocks, .. } = self;
        let (ops, cache) = (read.expert_ops(), plan.expert_cache_of(read.to.buffer));
        let list: Option<&[u32]> =
            cache.map(|_| view.read(routing, plan.expert_list_offset(routing), is_routed.len()));
        if let Some(list) = list {
            for (is_routed, word) in is_routed.iter_mut().zip(list) {
                *is_routed = from_word(*word).is_some_and(|assigned| assigned.is_missing);
            }
        } else {
            let (_, rows) = row_counts(table, program, read.at);
            let words = Value::Routing.row_elements(&plan.config).unwrap_or(0) * rows;
            let routed: &[f32] = view.read(routing, 0, words);
            is_routed.fill(false);
            for one in bytemuck::cast_slice::<_, RoutedExpert>(routed) {
                is_routed[one.expert as usize] = true;
            }
        }
        if let Some(portion) = read.to.portion {
            select_portion(is_routed, list, portion);
        }
        let slot_bytes = cache.map_or_else(|| record.slot_bytes(ops), |cache| cache.slot_bytes);
        let experts = (0u64..).zip(&*is_routed).filter(|(_, is_routed)| **is_routed);
        for (expert, _) in experts {
            let assigned = list.and_then(|list| from_word(list[expert as usize]));
            let slot = assigned.map_or(expert, |assigned| assigned.slot.into());
            record.append_blocks(ops, expert, slot * slot_bytes, blocks);
        }
    }

    fn read(&mut self, program: ProgramId, read: &Read) -> Result<WorkAmount, String> {
        let memory = self.plan.buffer(read.from.buffer).segment.memory;
        let storage = self.storages.iter().position(|(storage, _)| *storage == memory);
        let blob = self.blobs[read.from.buffer.0 as usize];
        let (Some(storage), Some(blob)) = (storage, blob) else {
            return Err("the staging does not contain it".to_owned());
        };
        let size_bytes = self.reader.staged().size_bytes(blob);
        self.list_blocks(program, read, storage as u16, blob);
        let to = read.to.buffer;
        let whole_bytes = match read.op.is_expert() {
            true => self.plan.buffer(to).size_bytes,
            false => size_bytes.next_multiple_of(weight_store::PAGE_BYTES),
        };
        let whole_bytes = whole_bytes as usize;
        let (reader, slot) = match &mut self.direct {
            Some((device, reader)) if !self.view.is_mapped(to) => {
                (reader, device.slot(to, whole_bytes))
            }
            _ => (&mut self.reader, NonNull::new(self.view.pointer(to, 0, whole_bytes))),
        };
        let slot = slot.ok_or("the slot has no address")?;
        let bytes = self.blocks.iter().map(|(blocks, _)| {
            let range = bytes_of(blocks, size_bytes);
            range.end - range.start
        });
        let bytes = bytes.sum();
        if bytes == 0 {
            return Ok(WorkAmount::default());
        }
        self.watchdog.begin();
        let requests_before = reader.requests();
        // SAFETY: needed to let the drive write into the slot. The lane executes its list in order
        // after its waits (contract of `View::new`), so nothing reads the slot, and other lanes
        // write other blocks of it: the shares of all lanes divide them (`ReadShares::blocks`).
        let outcome = unsafe { reader.read_ranges(blob, &self.blocks, slot) };
        self.watchdog.end();
        outcome.map_err(|error| error.to_string())?;
        Ok(WorkAmount { bytes, rows: (reader.requests() - requests_before) as u32 })
    }

    fn failed(&self, task: Task<'_>, reason: String) -> LaneError {
        LaneError::Storage {
            lane: self.plan.lane_name(self.lane).to_owned(),
            place: describe_position(&self.plan, self.lane, task.position()),
            reason,
        }
    }
}

/// Returns the layout of the records that contain some weights, and their layer; `None` for weights
/// that are a blob of their own.
fn record_of(plan: &Plan, weights: Weights) -> Option<(u16, ExpertRecord)> {
    let Weights::Layer { layer, op } = weights else { return None };
    Some((layer, plan.expert_record(Some(layer), ExpertOps::from_ops([op]))?))
}

fn publish_progress(reader: &mut Reader, watchdog: &Arc<ReadWatchdog>) {
    let watchdog = Arc::clone(watchdog);
    reader.observe(Box::new(move |flying| {
        if flying == ReadEvent::Progressed {
            watchdog.begin();
        }
    }));
}

/// Returns the slot and the weight of the plan's first read to a device.
fn first_direct_read(plan: &Plan, blobs: &[Option<BlobId>]) -> Option<(BufferId, BlobId)> {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    lists.flat_map(|list| &list.instructions).find_map(|instruction| match instruction {
        Instruction::Read(read)
            if plan.topology.is_vram(plan.buffer(read.to.buffer).segment.memory) =>
        {
            Some((read.to.buffer, blobs[read.from.buffer.0 as usize]?))
        }
        _ => None,
    })
}

/// Returns the mapped memory that a lane reads into: of each segment, the range from the first slot
/// to the last.
fn slots(plan: &Plan, lane: LaneId, view: &View) -> Vec<(NonNull<u8>, usize)> {
    let lists = plan.programs.iter().filter_map(|program| program.lane(lane));
    let slots =
        lists.flat_map(|list| &list.instructions).filter_map(|instruction| match instruction {
            Instruction::Read(read) => Some(read.to.buffer),
            _ => None,
        });
    let mut ranges: BTreeMap<SegmentId, (BufferId, u64)> = BTreeMap::new();
    for slot in slots.filter(|slot| view.is_mapped(*slot)) {
        let buffer = plan.buffer(slot);
        let end = buffer.offset_bytes + buffer.size_bytes;
        let range = ranges.entry(buffer.segment).or_insert((slot, end));
        if buffer.offset_bytes < plan.buffer(range.0).offset_bytes {
            range.0 = slot;
        }
        range.1 = range.1.max(end);
    }
    let address = |(first, end): (BufferId, u64)| {
        let buffer = plan.buffer(first);
        let address = view.pointer(first, 0, buffer.size_bytes as usize);
        Some((NonNull::new(address)?, (end - buffer.offset_bytes) as usize))
    };
    ranges.into_values().filter_map(address).collect()
}

impl LaneExecutor for StorageLane {
    fn begin_list(&mut self, step: StepOfGroup) {
        for ((_, lane), is_idle) in self.storages.iter().zip(&mut self.is_idle) {
            let from = self.control.lane(lane.index()).idle_from();
            *is_idle = from.is_some_and(|from| from <= step);
        }
    }

    /// # Panics
    /// Panics on work that is not a read, as in a plan that the validator would have refused.
    fn execute(&mut self, task: Task<'_>) -> Result<Option<WorkAmount>, LaneError> {
        let Instruction::Read(read) = task.instruction else {
            panic!("a lane of a storage only reads")
        };
        self.read(task.program, read).map(Some).map_err(|reason| self.failed(task, reason))
    }
}
