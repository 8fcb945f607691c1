//! Memory full of NaN, with the weights loaded: the initial state of every in-process run.

use std::sync::Arc;

use model::source::WeightSource;
use program::plan::Plan;
use program::topology::{SegmentId, WorkerId};
use shm::{Control, Mapping, TraceSegment};

use crate::error::WorkerError;
use kernels::Variant;

use crate::load::{EmulatedTarget, load, load_resident};
use crate::memory::Memories;

/// Byte value of unwritten memory; f32 and bf16 numbers made of it are NaN.
const UNWRITTEN: u8 = 0xFF;

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) plan: Arc<Plan>,
    pub(super) control: Control,
    pub(super) trace: TraceSegment,
    mappings: Vec<(SegmentId, Arc<Mapping>)>,
    /// All memory, for loading and for inspecting results.
    pub(super) all: Arc<Memories>,
}

impl Prepared {
    pub(super) fn new(plan: Plan, source: &dyn WeightSource) -> Result<Prepared, WorkerError> {
        let plan = Arc::new(plan);
        let control = Control::create(plan.lanes().len() as u32, plan.table.words() * 4)?;
        let trace = TraceSegment::create(plan.topology.lanes.len(), 1 << 16)?;
        let mut mappings = Vec::new();
        for memory in plan.topology.segments() {
            let size_bytes = plan.segment_bytes(memory).max(4096) as usize;
            let mapping = Mapping::private(size_bytes)?;
            // SAFETY: needed to mark the memory as unwritten. Nothing else has the mapping yet.
            unsafe { mapping.slice_mut::<u8>(0, size_bytes) }.fill(UNWRITTEN);
            mappings.push((memory, Arc::new(mapping)));
        }
        let all = Arc::new(Memories::new(&plan, mappings.clone())?);
        load(&plan, &all, source, Variant::best(), 2, &|_, _| {})?;
        // SAFETY: needed to fill device buffers; nothing runs yet.
        let device = unsafe { EmulatedTarget::new(&all) };
        load_resident(&plan, &all, &device, source, Variant::best(), &|_, _| {})?;
        Ok(Prepared { plan, control, trace, mappings, all })
    }

    /// Returns the memory that a worker's process would map.
    pub(super) fn memories(&self, worker: WorkerId) -> Result<Arc<Memories>, WorkerError> {
        let topology = &self.plan.topology;
        let mapped = self.mappings.iter();
        let mapped = mapped.filter(|(segment, _)| topology.maps(worker, segment.memory));
        Ok(Arc::new(Memories::new(&self.plan, mapped.cloned().collect())?))
    }
}
