//! A standby lane: a lane of another worker, which runs here if that worker is lost.
//!
//! Every storage has the same contents, so any storage worker can run any other's list. The
//! progress of the lost worker is in shared memory: the ends of stages at which it arrived, and its
//! timeline, which counts the signals it gave. Work after its last signal is repeated; no lane
//! relies on it yet, and the worker that did it has ended, with all its work in progress, before
//! the coordinator hands its lane over.

use std::sync::Arc;
use std::time::Duration;

use program::ir::{Instruction, LaneProgram};
use program::topology::WorkerId;
use shm::{Control, StepOfGroup, TraceSegment, WaitError};

use crate::checkpoint::{LaneCheckpoint, StageStart};
use crate::error::LaneError;
use crate::lane::{LaneRunner, ResumePoint};

/// Interval between checks for a handover or the end of the run, which are normally signalled.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between checks of the worker's own lane, which is about to reach the stage of the lost
/// one.
const STAGE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time in which lanes that have counted their arrival at the end of a stage reach it.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);
/// Number of steps from a lane's current step to the first one that no other lane can have begun:
/// lanes are at most one step ahead of each other.
const STEPS_AHEAD: u32 = 2;

/// A standby lane; see the module documentation.
#[derive(Debug)]
pub struct Standby {
    /// Worker that stands by.
    worker: WorkerId,
    runner: LaneRunner,
    /// Checkpoint of the worker's own lane.
    checkpoint: Arc<LaneCheckpoint>,
    trace: TraceSegment,
    control: Control,
}

impl Standby {
    /// Creates a standby lane. `runner` is another worker's lane, built for `worker`, whose own
    /// lane publishes its stage in `checkpoint`.
    pub fn new(
        worker: WorkerId,
        runner: LaneRunner,
        checkpoint: Arc<LaneCheckpoint>,
        control: Control,
        trace: TraceSegment,
    ) -> Standby {
        Standby { worker, runner, checkpoint, trace, control }
    }

    /// Returns the lane.
    pub fn runner(&self) -> &LaneRunner {
        &self.runner
    }

    /// Waits until the lane is handed over and resumes it, or until the run ends.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`LaneRunner::run`].
    pub fn run(&mut self) -> Result<(), LaneError> {
        if !self.wait_for_handover()? {
            return Ok(());
        }
        let lane = self.runner.lane().index();
        let Some(stage) = self.wait_for_stage(self.control.lane(lane).arrivals())? else {
            return Ok(());
        };
        let resumed = self.resumed(stage);
        let step = resumed.stage.begun + resumed.step;
        let from = StepOfGroup { group: resumed.stage.group, step: step + STEPS_AHEAD };
        // A lane that was handed over before is already idle from a step that others may have
        // reached.
        if self.control.lane(lane).idle_from().is_none() {
            self.control.lane(lane).set_idle_from(from);
        }
        // SAFETY: needed to continue the lost worker's ring. The coordinator hands a lane over once
        // the process that ran it has ended.
        let trace = unsafe { self.trace.inherit(lane) };
        self.runner.set_trace(trace.ok());
        self.runner.run_from(Some(resumed))
    }

    /// Waits for the handover. Returns false at the end of the run.
    fn wait_for_handover(&self) -> Result<bool, LaneError> {
        let words = self.control.lane(self.runner.lane().index());
        let mut seen = 0;
        loop {
            if words.successor() == Some(self.worker.index()) {
                return Ok(true);
            }
            let has_ended = self.control.groups().value() > 0;
            if has_ended && self.control.stages().next().is_none() {
                return Ok(false);
            }
            let takeovers = self.control.takeovers();
            match takeovers.wait_until(seen + 1, self.control.poison(), CHECK_INTERVAL) {
                Ok(()) => seen = takeovers.value(),
                Err(WaitError::TimedOut { .. }) => {}
                Err(WaitError::Poisoned(_)) => return Err(LaneError::Poisoned),
            }
        }
    }

    /// Returns the stage of this number once the worker's own lane is in it, or `None` if the run
    /// ended before.
    ///
    /// # Errors
    /// Returns poison, or an error if a worker was lost between counting its arrival and arriving,
    /// so that the others wait for it at the end of a stage.
    fn wait_for_stage(&self, number: u32) -> Result<Option<StageStart>, LaneError> {
        let lanes = self.runner.plan().lanes();
        let mut waited = Duration::ZERO;
        loop {
            match self.checkpoint.stage(number) {
                (Some(stage), _) => return Ok(Some(stage)),
                (None, true) => return Ok(None),
                (None, false) => std::thread::sleep(STAGE_CHECK_INTERVAL),
            }
            if self.control.poison().check().is_err() {
                return Err(LaneError::Poisoned);
            }
            // All lanes have counted their arrival, so they will all arrive shortly, or one never
            // will.
            let have_arrived = lanes.iter().all(|lane| {
                self.control.lane(lane.index()).arrivals().wrapping_sub(number) as i32 >= 0
            });
            let is_between_groups = self.control.barrier().timeline().value() == number;
            waited = if have_arrived && !is_between_groups {
                waited + STAGE_CHECK_INTERVAL
            } else {
                Duration::ZERO
            };
            if waited > ARRIVAL_MAX {
                return Err(LaneError::Silent {
                    reason: format!(
                        "The worker of lane {} was lost just as a stage ended, from which a run \
                         cannot recover",
                        self.runner.name()
                    ),
                });
            }
        }
    }

    /// Returns the position of the lost worker in a stage, according to the signals it gave.
    fn resumed(&self, stage: StageStart) -> ResumePoint {
        let lane = self.runner.lane();
        let program = self.control.stages().nth(stage.index).map_or(0, |stage| stage.program);
        let list = self.runner.plan().programs[program as usize].lane(lane);
        let value = self.control.lane(lane.index()).timeline.value();
        let given = value.wrapping_sub(stage.bases[lane.index()]);
        let (step, instruction) = position_after(list, given);
        ResumePoint { stage, step, instruction }
    }
}

/// Returns the step, and the instruction of the list in it, that follow `given` signals of a stage.
fn position_after(list: Option<&LaneProgram>, given: u32) -> (u32, usize) {
    let Some(list) = list.filter(|list| list.signals_per_step > 0) else { return (0, 0) };
    let (step, of_step) = (given / list.signals_per_step, given % list.signals_per_step);
    let signals = list.instructions.iter().enumerate();
    let mut signals = signals.filter(|(_, instruction)| **instruction == Instruction::Signal);
    let last = of_step.checked_sub(1).and_then(|last| signals.nth(last as usize));
    (step, last.map_or(0, |(index, _)| index + 1))
}

#[cfg(test)]
mod tests {
    use program::ir::TimelineWait;
    use program::topology::LaneId;

    use super::*;

    #[test]
    fn a_lane_goes_on_behind_its_last_signal() {
        let wait =
            Instruction::Wait(TimelineWait { lane: LaneId(0), offset: 1, previous_step: false });
        let (signal, lane) = (Instruction::Signal, LaneId(1));
        let instructions = vec![wait.clone(), signal.clone(), wait.clone(), signal, wait];
        let list = LaneProgram { lane, instructions, signals_per_step: 2 };
        let places: Vec<_> = (0..6).map(|given| position_after(Some(&list), given)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]);
        assert_eq!(position_after(None, 0), (0, 0));
    }
}
