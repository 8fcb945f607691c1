//! Busy times of the lanes of a server, read from their traces while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use engine_api::serving::LaneActivity;
use program::plan::Plan;
use shm::TraceReader;

use crate::launch::{LaunchError, LaunchedWorkers};

/// Busy times of all lanes, in the order of the plan, which other threads read.
pub(super) type SharedLaneActivity = Arc<Mutex<Vec<LaneActivity>>>;

/// Sums up the busy times of lanes.
#[derive(Debug)]
pub(super) struct LaneActivityRecorder {
    lanes: SharedLaneActivity,
    /// Reader of each lane's trace.
    readers: Vec<TraceReader>,
}

impl LaneActivityRecorder {
    /// Starts to read the traces of workers.
    ///
    /// # Errors
    /// A trace that already has a reader.
    pub(super) fn new(
        plan: &Plan,
        launched: &LaunchedWorkers,
        lanes: SharedLaneActivity,
    ) -> Result<LaneActivityRecorder, LaunchError> {
        let activity =
            |lane| LaneActivity { name: plan.topology.lane(lane).name.clone(), busy_ns: 0 };
        *lanes.lock().unwrap_or_else(PoisonError::into_inner) =
            plan.lanes().into_iter().map(activity).collect();
        let mut recorder = LaneActivityRecorder { lanes, readers: Vec::new() };
        recorder.attach(plan, launched)?;
        Ok(recorder)
    }

    /// Reads the traces of workers that replace lost ones.
    ///
    /// # Errors
    /// A trace that already has a reader.
    pub(super) fn attach(
        &mut self,
        plan: &Plan,
        launched: &LaunchedWorkers,
    ) -> Result<(), LaunchError> {
        let skip = |(_, mut reader): (_, TraceReader)| {
            // Records of measurements before the first request.
            reader.drain(|_| {});
            reader
        };
        self.readers = launched.trace_readers(plan)?.into_iter().map(skip).collect();
        Ok(())
    }

    /// Adds what the lanes have recorded since the last call.
    pub(super) fn drain(&mut self) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for (lane, reader) in lanes.iter_mut().zip(&mut self.readers) {
            reader.drain(|record| {
                lane.busy_ns += record.end_ns.saturating_sub(record.start_ns);
            });
        }
    }
}
