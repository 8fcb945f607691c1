//! Loading of the weights that stay on a device: piece by piece through staging buffers, so that
//! the host never has a copy of its own of more than a few pieces.

use std::sync::{Arc, Mutex};

use kernels::Variant;
use model::source::WeightSource;
use program::ir::BufferId;
use program::plan::{Plan, ResidentSource};

use super::encoding::{self, TensorPiece};
use super::error::LoadError;
use super::{BlobFormat, PIECE_BYTES, list_pieces, lock, run_parallel_with};
use crate::memory::{Memories, View};

/// Maximum number of threads that load, each with a staging buffer of the largest piece.
const THREADS_MAX: usize = 4;

/// A device to which resident weights are loaded.
pub trait ResidentTarget: Sync {
    /// Returns a staging buffer of the calling thread.
    ///
    /// # Errors
    /// Returns an error if memory for it is unavailable.
    fn staging(&self, size_bytes: usize) -> Result<Box<dyn StagingBuffer + '_>, LoadError>;
}

/// Host memory of one thread through which weights pass on their way to a device.
pub trait StagingBuffer {
    /// Returns the buffer's memory, aligned to 4 bytes.
    fn bytes(&mut self) -> &mut [u8];

    /// Writes the first bytes of the buffer to device memory and waits for their arrival.
    ///
    /// # Errors
    /// Returns the device's error.
    fn upload(&mut self, to: UploadRange) -> Result<(), LoadError>;
}

/// Range of a device buffer that an upload fills.
#[derive(Debug, Clone, Copy)]
pub struct UploadRange {
    pub buffer: BufferId,
    pub offset_bytes: usize,
    pub size_bytes: usize,
}

/// Returns the number of bytes that [`load_resident`] reads from the model.
pub fn resident_model_bytes(plan: &Plan) -> u64 {
    let resident = plan.resident.iter();
    let of_model = resident.filter(|one| matches!(one.source, ResidentSource::Model(_)));
    of_model.map(|one| plan.buffer(one.to).size_bytes).sum()
}

/// Loads the weights that stay on the device: those of which the host has no copy from `source`,
/// quantising with `variant`, all others from their host buffers. `progress(done, total)` counts
/// the bytes from `source`.
///
/// # Errors
/// Returns the first error of the source or the device.
pub fn load_resident(
    plan: &Plan,
    memories: &Arc<Memories>,
    target: &dyn ResidentTarget,
    source: &dyn WeightSource,
    variant: Variant,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(), LoadError> {
    let tasks = list_tasks(plan, source)?;
    let staging_bytes = tasks.iter().map(Task::size_bytes).max().unwrap_or(0);
    let from_model = |task: &Task| match task.part {
        TaskPart::Tensor(_) => task.size_bytes() as u64,
        TaskPart::Host { .. } => 0,
    };
    let total: u64 = tasks.iter().map(from_model).sum();
    let done = Mutex::new(0u64);
    progress(0, total);
    // SAFETY: needed to read host weights. No lane runs before all weights are in place, and the
    // host weights are complete when this is called.
    let view = unsafe { View::new(Arc::clone(memories)) };
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = available.min(THREADS_MAX).min(tasks.len());
    run_parallel_with(
        threads,
        &tasks,
        || target.staging(staging_bytes),
        |staging, task| {
            let size_bytes = task.size_bytes();
            let out = &mut staging.bytes()[..size_bytes];
            match &task.part {
                TaskPart::Tensor(piece) => encoding::read(piece, variant, source, out)?,
                TaskPart::Host { from, .. } => {
                    out.copy_from_slice(view.read::<u8>(*from, task.offset_bytes, size_bytes));
                }
            }
            let (buffer, offset_bytes) = (task.to, task.offset_bytes);
            staging.upload(UploadRange { buffer, offset_bytes, size_bytes })?;
            let mut done = lock(&done);
            *done += from_model(task);
            progress(*done, total);
            Ok(())
        },
    )
}

/// A range of a device buffer and the bytes that it receives.
#[derive(Debug)]
struct Task {
    to: BufferId,
    offset_bytes: usize,
    part: TaskPart,
}

#[derive(Debug)]
enum TaskPart {
    Tensor(TensorPiece),
    /// Range of a host buffer, at the offset of the device range.
    Host {
        from: BufferId,
        size_bytes: usize,
    },
}

impl Task {
    fn size_bytes(&self) -> usize {
        match &self.part {
            TaskPart::Tensor(piece) => piece.size_bytes(),
            TaskPart::Host { size_bytes, .. } => *size_bytes,
        }
    }
}

fn list_tasks(plan: &Plan, source: &dyn WeightSource) -> Result<Vec<Task>, LoadError> {
    let format = BlobFormat {
        config: &plan.config,
        dtype: plan.shape.dtype,
        formats: &plan.map.weight_formats,
    };
    let mut tasks = Vec::new();
    for resident in &plan.resident {
        let to = resident.to;
        match resident.source {
            ResidentSource::Model(weights) => {
                let pieces = list_pieces(format, weights, source)?.into_iter();
                tasks.extend(pieces.map(|piece| Task {
                    to,
                    offset_bytes: piece.offset_bytes,
                    part: TaskPart::Tensor(piece),
                }));
            }
            ResidentSource::Host(from) => {
                let blob_bytes = plan.buffer(from).size_bytes.min(plan.buffer(to).size_bytes);
                let blob_bytes = blob_bytes as usize;
                tasks.extend((0..blob_bytes).step_by(PIECE_BYTES).map(|offset_bytes| {
                    let size_bytes = PIECE_BYTES.min(blob_bytes - offset_bytes);
                    Task { to, offset_bytes, part: TaskPart::Host { from, size_bytes } }
                }));
            }
        }
    }
    Ok(tasks)
}

/// The memory of an emulated device.
#[derive(Debug)]
pub struct EmulatedTarget {
    view: View,
}

impl EmulatedTarget {
    /// Creates a target for the device buffers in `memories`.
    ///
    /// # Safety
    /// No lane runs before all weights are in place, and nothing else writes resident weights.
    pub unsafe fn new(memories: &Arc<Memories>) -> EmulatedTarget {
        // SAFETY: the contract of this function.
        EmulatedTarget { view: unsafe { View::new(Arc::clone(memories)) } }
    }
}

impl ResidentTarget for EmulatedTarget {
    fn staging(&self, size_bytes: usize) -> Result<Box<dyn StagingBuffer + '_>, LoadError> {
        let words = vec![0; size_bytes.div_ceil(size_of::<u32>())];
        Ok(Box::new(EmulatedStaging { words, view: &self.view }))
    }
}

struct EmulatedStaging<'a> {
    words: Vec<u32>,
    view: &'a View,
}

impl StagingBuffer for EmulatedStaging<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    fn upload(&mut self, to: UploadRange) -> Result<(), LoadError> {
        let bytes = &bytemuck::cast_slice::<u32, u8>(&self.words)[..to.size_bytes];
        self.view.write::<u8>(to.buffer, to.offset_bytes, to.size_bytes).copy_from_slice(bytes);
        Ok(())
    }
}
