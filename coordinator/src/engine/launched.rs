//! What a run reads off the workers that it has launched.

use std::collections::BTreeMap;

use program::plan::Plan;
use program::topology::LaneId;
use shm::TraceReader;

use super::launch::{LaunchError, Launched};

impl Launched {
    /// The kernels of each worker, by its name.
    pub(super) fn kernel_variants(&self, plan: &Plan) -> BTreeMap<String, String> {
        let named = self.variants.iter().map(|(id, variant)| {
            let name = plan.topology.worker(*id).name.clone();
            (name, variant.clone())
        });
        named.collect()
    }

    /// The trace of each lane that has work.
    ///
    /// # Errors
    /// A ring that is read already.
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
