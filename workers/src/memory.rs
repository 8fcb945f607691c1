//! The only module that turns buffers of a plan into slices of mapped memory.
//!
//! Every access is checked against the buffer's size and the type's alignment; a worker that lacks
//! the buffer's memory panics, so the emulated device cannot read host memory even by mistake.
//!
//! No two lanes alias for the following reasons. A lane touches a buffer only while it executes an
//! instruction that lists it, and the validator has proved that any two instructions of which one
//! writes overlapping regions are ordered by the waits and signals of the lanes. Different chunks
//! of one buffer may be in use at once. Chunks of `Scores` and `Probabilities` are disjoint ranges
//! and are sliced as such. Chunks of `Attended`, and of the outputs of linears in pieces, are
//! columns of a row-major matrix, of which each of two lanes writes its own: kernels receive them
//! by pointer (`kernels::Columns`), and copies never make a slice. Of weights, only the piece's own
//! rows are sliced. A page that no list names may be filled from the prompt store while a lane has
//! a slice of the whole cache, from which kernels read the listed pages alone.

use std::sync::Arc;

use bytemuck::Pod;
use program::ir::BufferId;
use program::plan::Plan;
use program::topology::{Holds, SegmentId};
use shm::{Access, Mapping};

/// Reason why mappings do not fit a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A buffer ends after the end of its mapping.
    #[error(
        "The plan's buffer {buffer} ends at byte {end_bytes} of a mapping of {size_bytes} bytes; \
         plan and memory must come from the same coordinator."
    )]
    Outside {
        /// Name of the buffer.
        buffer: String,
        /// End of the buffer.
        end_bytes: u64,
        /// Size of the mapping.
        size_bytes: u64,
    },
}

#[derive(Debug, Clone, Copy)]
struct BufferPlacement {
    segment: SegmentId,
    offset_bytes: usize,
    size_bytes: usize,
}

/// Maximum size of a KV cache that is faulted in whole at load, which takes a tenth of a second.
const SMALL_KV_BYTES: usize = 256 << 20;
/// Size of the ranges in which a larger cache is faulted in. A step that needs one of them waits
/// for no more than that.
const KV_PIECE_BYTES: usize = 2 << 20;

/// The mapped memory of a worker, and the places of the plan's buffers in it.
#[derive(Debug)]
pub struct Memories {
    mappings: Vec<(SegmentId, Arc<Mapping>)>,
    places: Vec<BufferPlacement>,
}

impl Memories {
    /// Returns the memory for the buffers of `plan`; buffers in unmapped memories are inaccessible.
    ///
    /// # Errors
    /// Returns an error if a buffer exceeds its mapping.
    pub fn new(
        plan: &Plan,
        mappings: Vec<(SegmentId, Arc<Mapping>)>,
    ) -> Result<Memories, MemoryError> {
        let mut places = Vec::with_capacity(plan.buffers.len());
        for buffer in &plan.buffers {
            let end_bytes = buffer.offset_bytes.saturating_add(buffer.size_bytes);
            let mapping = mappings.iter().find(|(memory, _)| *memory == buffer.segment);
            if let Some((_, mapping)) = mapping
                && end_bytes > mapping.size_bytes() as u64
            {
                return Err(MemoryError::Outside {
                    buffer: buffer.name.clone(),
                    end_bytes,
                    size_bytes: mapping.size_bytes() as u64,
                });
            }
            places.push(BufferPlacement {
                segment: buffer.segment,
                offset_bytes: buffer.offset_bytes as usize,
                size_bytes: buffer.size_bytes as usize,
            });
        }
        Ok(Memories { mappings, places })
    }

    /// Faults in the pages that the first step would otherwise fault in, which takes seconds for an
    /// emulated device: everything except host weights, which loading has touched where they are
    /// written, and a large KV cache, of which short answers use little. A server faults it in
    /// while it runs.
    pub(crate) fn populate(&self) {
        for (memory, mapping) in &self.mappings {
            let wanted = match memory.holds {
                Holds::Weights => mapping.access() == Access::ReadOnly,
                Holds::Kv => mapping.size_bytes() <= SMALL_KV_BYTES,
                _ => true,
            };
            if wanted {
                mapping.populate(0, mapping.size_bytes());
            }
        }
    }

    /// Faults in the KV caches that [`Memories::populate`] leaves out, from the lowest address,
    /// until `is_over` returns true. Steps may use the caches meanwhile.
    pub(crate) fn populate_large_caches(&self, is_over: impl Fn() -> bool) {
        let caches = self.mappings.iter().filter(|(memory, _)| memory.holds == Holds::Kv);
        for (_, mapping) in caches.filter(|(_, mapping)| mapping.size_bytes() > SMALL_KV_BYTES) {
            for first in (0..mapping.size_bytes()).step_by(KV_PIECE_BYTES) {
                if is_over() {
                    return;
                }
                mapping.populate(first, KV_PIECE_BYTES.min(mapping.size_bytes() - first));
            }
        }
    }

    /// Returns the mappings by segment.
    pub(crate) fn mappings(&self) -> &[(SegmentId, Arc<Mapping>)] {
        &self.mappings
    }

    /// Returns the mapping and the first byte in it of a range of a buffer.
    fn locate(&self, id: BufferId, offset_bytes: usize, size_bytes: usize) -> (&Mapping, usize) {
        let place = self.places[id.0 as usize];
        assert!(
            offset_bytes.checked_add(size_bytes).is_some_and(|end| end <= place.size_bytes),
            "{size_bytes} bytes at {offset_bytes} leave buffer {} of {} bytes",
            id.0,
            place.size_bytes
        );
        let mapping = self.mappings.iter().find(|(memory, _)| *memory == place.segment);
        let Some((_, mapping)) = mapping else {
            panic!("buffer {} lies in {:?}, which this worker does not map", id.0, place.segment)
        };
        (mapping, place.offset_bytes + offset_bytes)
    }

    /// Returns true if a buffer is in mapped memory.
    pub(crate) fn is_mapped(&self, id: BufferId) -> bool {
        let segment = self.places[id.0 as usize].segment;
        self.mappings.iter().any(|(mapped, _)| *mapped == segment)
    }

    /// Returns the size of a buffer, in bytes.
    pub fn size_bytes(&self, id: BufferId) -> usize {
        self.places[id.0 as usize].size_bytes
    }
}

/// Access of one owner (a lane, or the loader) to the memories.
#[derive(Debug, Clone)]
pub struct View {
    memories: Arc<Memories>,
}

impl View {
    /// Returns a view for one owner.
    ///
    /// # Safety
    /// The owner is the only user of whatever it touches through this view, for as long as it holds
    /// a slice: it executes the instructions of its lane of a validated plan, in order and only
    /// after their waits, touches only the regions that the current instruction lists, and keeps no
    /// slice from one instruction to the next; or it loads weights before any lane runs; or it
    /// reads after all lanes have drained; or it reads positions of pages of caches that are not
    /// written until it has reported that it has read them, and writes pages that no list names
    /// until it has reported that they are written.
    pub unsafe fn new(memories: Arc<Memories>) -> View {
        View { memories }
    }

    /// Returns the size of a buffer, in bytes.
    pub(crate) fn size_bytes(&self, id: BufferId) -> usize {
        self.memories.size_bytes(id)
    }

    /// Returns true if a buffer is in mapped memory.
    pub(crate) fn is_mapped(&self, id: BufferId) -> bool {
        self.memories.is_mapped(id)
    }

    /// Returns `count` values of a buffer from `offset_bytes`, for reading.
    pub(crate) fn read<T: Pod>(&self, id: BufferId, offset_bytes: usize, count: usize) -> &[T] {
        let (mapping, at) = self.memories.locate(id, offset_bytes, count * size_of::<T>());
        // SAFETY: needed to view memory as values. Nothing writes the range meanwhile by the
        // contract of `View::new`, and `Mapping` checks alignment.
        unsafe { mapping.slice(at, count) }
    }

    /// Returns `count` values of a buffer from `offset_bytes`, for writing.
    #[expect(clippy::mut_from_ref, reason = "exclusiveness is the contract of View::new")]
    pub(crate) fn write<T: Pod>(
        &self,
        id: BufferId,
        offset_bytes: usize,
        count: usize,
    ) -> &mut [T] {
        let (mapping, at) = self.memories.locate(id, offset_bytes, count * size_of::<T>());
        // SAFETY: needed to view memory as values. Nothing else touches the range meanwhile by the
        // contract of `View::new`, and `Mapping` checks alignment.
        unsafe { mapping.slice_mut(at, count) }
    }

    /// Faults in the pages of a range that is about to be written for the first time.
    pub(crate) fn populate(&self, id: BufferId, offset_bytes: usize, size_bytes: usize) {
        let (mapping, at) = self.memories.locate(id, offset_bytes, size_bytes);
        mapping.populate(at, size_bytes);
    }

    /// Returns the first byte of a range of a buffer, for a device that copies it.
    pub(crate) fn pointer(&self, id: BufferId, offset_bytes: usize, size_bytes: usize) -> *mut u8 {
        let (mapping, at) = self.memories.locate(id, offset_bytes, size_bytes);
        mapping.pointer::<u8>(at, size_bytes).as_ptr()
    }

    /// Copies `size_bytes` between two different buffers, each with its own offset.
    pub(crate) fn copy(&self, from: (BufferId, usize), to: (BufferId, usize), size_bytes: usize) {
        assert_ne!(from.0, to.0, "a copy has two buffers");
        let (source, source_at) = self.memories.locate(from.0, from.1, size_bytes);
        let (target, target_at) = self.memories.locate(to.0, to.1, size_bytes);
        let source = source.pointer::<u8>(source_at, size_bytes);
        let target = target.pointer::<u8>(target_at, size_bytes);
        // SAFETY: needed to copy without making slices, which may overlap other lanes' chunks. Both
        // ranges are mapped (checked by `pointer`); two buffers in use at the same time do not
        // overlap (validator); nothing else writes either range (contract of `View::new`).
        unsafe { target.copy_from_nonoverlapping(source, size_bytes) };
    }
}
