//! Lanes that read weights from a storage into slots of host memory.
//!
//! A storage worker fills its storage once, at load, with the weights whose home it is, in the form
//! in which they are streamed ([`Store::with`]). From then on every `Read` is a read of that file:
//! the worker maps the slots, never the storage. The file has no name and lies where the kernel
//! keeps shared memory; one on a disk would be read by the same lane.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use program::ir::{Instruction, Read};
use program::plan::Plan;
use program::topology::{LaneId, MemoryId};
use shm::{Mapping, Segment};

use crate::error::{LaneError, WorkerError, place};
use crate::lane_executor::{LaneExecutor, Task, Work};
use crate::memory::View;

/// Smallest file: a plan may keep nothing on a storage, a mapping needs a page.
const BYTES_MIN: u64 = 4096;

/// The bytes of one storage.
#[derive(Debug)]
pub struct Store {
    storage: MemoryId,
    file: File,
}

impl Store {
    /// A storage for what `plan` keeps on it, and the mapping through which it is filled.
    ///
    /// # Errors
    /// No memory for it.
    pub fn with(plan: &Plan, storage: MemoryId) -> Result<(Store, Arc<Mapping>), WorkerError> {
        let segments = plan.topology.segments_of(storage);
        let size_bytes = segments.iter().map(|segment| plan.segment_bytes(*segment)).sum::<u64>();
        let segment = Segment::create("tandem-storage", size_bytes.max(BYTES_MIN) as usize)?;
        let owned = segment.fd().try_clone_to_owned().map_err(WorkerError::Storage)?;
        let store = Store { storage, file: File::from(owned) };
        Ok((store, Arc::new(segment.into_mapping())))
    }
}

/// Reads of one lane.
#[derive(Debug)]
pub struct StorageLane {
    lane: LaneId,
    plan: Arc<Plan>,
    /// The host's slots.
    view: View,
    stores: Arc<[Store]>,
}

impl StorageLane {
    /// The lane's reads, from whichever of `stores` keeps a blob.
    pub fn new(lane: LaneId, plan: Arc<Plan>, view: View, stores: Arc<[Store]>) -> StorageLane {
        StorageLane { lane, plan, view, stores }
    }

    fn read(&self, read: &Read) -> std::io::Result<Work> {
        let from = self.plan.buffer(read.from.buffer);
        let store = self.stores.iter().find(|store| store.storage == from.segment.memory);
        let Some(store) = store else {
            return Err(std::io::Error::other("the worker does not have the storage"));
        };
        // A slot may be larger than this layer's blob.
        let size_bytes = (from.size_bytes as usize).min(self.view.size_bytes(read.to.buffer));
        let slot = self.view.write::<u8>(read.to.buffer, 0, size_bytes);
        store.file.read_exact_at(slot, from.offset_bytes)?;
        Ok(Work { bytes: size_bytes as u64, rows: 0 })
    }

    fn failed(&self, task: Task<'_>, error: &std::io::Error) -> LaneError {
        LaneError::Storage {
            lane: self.plan.lane_name(self.lane).to_owned(),
            place: place(&self.plan, self.lane, task.position()),
            reason: error.to_string(),
        }
    }
}

impl LaneExecutor for StorageLane {
    /// # Panics
    /// Work that is no read: a plan that the validator would have refused.
    fn execute(&mut self, task: Task<'_>) -> Result<Option<Work>, LaneError> {
        let Instruction::Read(read) = task.instruction else {
            panic!("a lane of a storage only reads")
        };
        self.read(read).map(Some).map_err(|error| self.failed(task, &error))
    }
}
