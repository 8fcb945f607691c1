//! Checkpoint of a lane: the stage that it is in, published so that another thread of its worker
//! can resume the lane of a lost worker. All lanes count bases and steps equally.

use std::sync::{Mutex, PoisonError};

/// State of a lane at the beginning of a stage.
#[derive(Debug, Clone, Default)]
pub struct StageStart {
    /// Number of stages that the lane had begun before, of all groups.
    pub(crate) number: u32,
    /// Group, counted from 1; 0 before the first one.
    pub(crate) group: u32,
    /// Index of the stage within the group.
    pub(crate) index: usize,
    /// Timelines, by lane.
    pub(crate) bases: Vec<u32>,
    /// `Control::steps` at the start of the group.
    pub(crate) steps_base: u32,
    /// Number of steps of the group before the stage.
    pub(crate) begun: u32,
}

/// Checkpoint to which a lane publishes its current stage.
#[derive(Debug)]
pub struct LaneCheckpoint(Mutex<CheckpointState>);

#[derive(Debug)]
struct CheckpointState {
    stage: StageStart,
    begun: u32,
    has_ended: bool,
}

impl LaneCheckpoint {
    /// Returns a checkpoint for a topology with `lanes` lanes.
    pub fn new(lanes: usize) -> LaneCheckpoint {
        let stage = StageStart { bases: vec![0; lanes], ..StageStart::default() };
        LaneCheckpoint(Mutex::new(CheckpointState { stage, begun: 0, has_ended: false }))
    }

    /// Publishes that the lane begins a stage of a group. Allocates nothing.
    pub(crate) fn begin_stage(
        &self,
        group: u32,
        index: usize,
        bases: &[u32],
        steps_base: u32,
        begun: u32,
    ) {
        let mut state = self.lock();
        let number = state.begun;
        state.begun += 1;
        let stage = &mut state.stage;
        stage.bases.copy_from_slice(bases);
        (stage.number, stage.group, stage.index) = (number, group, index);
        (stage.steps_base, stage.begun) = (steps_base, begun);
    }

    /// Publishes that the lane has ended.
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
    }

    /// Returns the stage with this number if the lane is in it, and true if the lane has ended.
    pub(crate) fn stage(&self, number: u32) -> (Option<StageStart>, bool) {
        let state = self.lock();
        let is_current = state.begun > 0 && state.stage.number == number;
        (is_current.then(|| state.stage.clone()), state.has_ended)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckpointState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
