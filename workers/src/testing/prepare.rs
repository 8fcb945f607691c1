//! Memory full of NaN, with the weights loaded: where every run in one process starts from.

use std::sync::Arc;

use model::source::WeightSource;
use program::ir::Lane;
use program::plan::{Memory, Plan};
use shm::{Control, Mapping, TraceSegment};

use crate::error::WorkerError;
use kernels::Variant;

use crate::load::{load, load_resident};
use crate::memory::Memories;
use crate::protocol::Role;

/// Every f32 and bf16 made of these bytes is NaN.
const UNWRITTEN: u8 = 0xFF;

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) plan: Arc<Plan>,
    pub(super) control: Control,
    pub(super) trace: TraceSegment,
    mappings: Vec<(Memory, Arc<Mapping>)>,
    /// All memory, for loading and for looking at results.
    pub(super) all: Arc<Memories>,
}

impl Prepared {
    pub(super) fn new(plan: Plan, source: &dyn WeightSource) -> Result<Prepared, WorkerError> {
        let plan = Arc::new(plan);
        let control = Control::create(plan.lanes().len() as u32, plan.table.words() * 4)?;
        let trace = TraceSegment::create(Lane::ALL.len(), 1 << 16)?;
        let mut mappings = Vec::new();
        for memory in Memory::SEGMENTS {
            let size_bytes = plan.memory_bytes(memory).max(4096) as usize;
            let mapping = Mapping::private(size_bytes)?;
            // SAFETY: needed to mark the memory as unwritten. Nobody else has the mapping yet.
            unsafe { mapping.slice_mut::<u8>(0, size_bytes) }.fill(UNWRITTEN);
            mappings.push((memory, Arc::new(mapping)));
        }
        let all = Arc::new(Memories::new(&plan, mappings.clone())?);
        load(&plan, &all, source, Variant::best(), 2, &|_, _| {})?;
        load_resident(&plan, &all);
        Ok(Prepared { plan, control, trace, mappings, all })
    }

    /// What a role's process would map.
    pub(super) fn memories(&self, role: Role) -> Result<Arc<Memories>, WorkerError> {
        let mapped = self.mappings.iter().filter(|(memory, _)| role.memories().contains(memory));
        Ok(Arc::new(Memories::new(&self.plan, mapped.cloned().collect())?))
    }
}
