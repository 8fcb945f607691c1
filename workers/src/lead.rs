//! Which stage a lane is in: what another thread of its worker has to know to go on with the lane
//! of a worker that is gone. All lanes count bases and steps alike.

use std::sync::{Mutex, PoisonError};

/// A lane at the beginning of a stage.
#[derive(Debug, Clone, Default)]
pub struct StageStart {
    /// Stages that the lane has begun before, of all groups.
    pub(crate) number: u32,
    /// Counted from 1; 0: there was none yet.
    pub(crate) group: u32,
    /// Of the group's stages.
    pub(crate) index: usize,
    /// Timelines, by lane.
    pub(crate) bases: Vec<u32>,
    /// `Control::steps` at the start of the group.
    pub(crate) steps_base: u32,
    /// Steps of the group before the stage.
    pub(crate) begun: u32,
}

/// Where a lane says so.
#[derive(Debug)]
pub struct Lead(Mutex<State>);

#[derive(Debug)]
struct State {
    stage: StageStart,
    begun: u32,
    is_over: bool,
}

impl Lead {
    /// Of a topology with so many lanes.
    pub fn new(lanes: usize) -> Lead {
        let stage = StageStart { bases: vec![0; lanes], ..StageStart::default() };
        Lead(Mutex::new(State { stage, begun: 0, is_over: false }))
    }

    /// The lane begins a stage of a group. Allocates nothing.
    pub(crate) fn begin_stage(
        &self,
        (group, index): (u32, usize),
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

    /// The lane has left for good.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
    }

    /// The stage of this number, once the lane is in it; and whether the lane has left.
    pub(crate) fn stage(&self, number: u32) -> (Option<StageStart>, bool) {
        let state = self.lock();
        let is_there = state.begun > 0 && state.stage.number == number;
        (is_there.then(|| state.stage.clone()), state.is_over)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
