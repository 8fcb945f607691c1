//! Kernel variants and traces of launched workers.

use std::collections::BTreeMap;

use program::plan::Plan;
use program::topology::LaneId;
use shm::TraceReader;

use super::launch::{LaunchError, Launched};

impl Launched {
    /// Returns the kernel variant of each worker, by the worker's name.
    pub(super) fn kernel_variants(&self, plan: &Plan) -> BTreeMap<String, String> {
        let named = self.variants.iter().map(|(id, variant)| {
            let name = plan.topology.worker(*id).name.clone();
            (name, variant.clone())
        });
        named.collect()
    }

    /// Returns a trace reader for each lane that has work.
    ///
    /// # Errors
    /// A ring that already has a reader.
    pub(super) fn trace_readers(
        &self,
        plan: &Plan,
    ) -> Result<Vec<(LaneId, TraceReader)>, LaunchError> {
        let mut readers = Vec::new();
        for lane in plan.lanes() {
            readers.push((lane, self.trace.reader(lane.index())?));
        }
        Ok(readers)
    }
}
