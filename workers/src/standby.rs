//! A lane of another worker, ready to be run here should that worker be lost.
//!
//! Every storage holds all that the others hold, so any storage worker can run any other's list.
//! How far the lost one came is in shared memory: the ends of stages at which it arrived, and its
//! timeline, which counts the signals it gave. Work behind its last signal is done again; nobody
//! relies on it yet, and whoever did it is gone, with all that it had under way, before the
//! coordinator hands its lane over.

use std::sync::Arc;
use std::time::Duration;

use program::ir::{Instruction, LaneProgram};
use program::topology::WorkerId;
use shm::{Control, StepOfGroup, TraceSegment, WaitError};

use crate::error::LaneError;
use crate::lane::{LaneRunner, Resumed};
use crate::lead::{Lead, StageStart};

/// Between two looks at what a handover or the end of the run would have signalled.
const SLICE: Duration = Duration::from_millis(500);
/// Between two looks at the own lane, which is about to reach the stage of the lost one.
const STAGE_SLICE: Duration = Duration::from_millis(1);
/// How long those that have counted their arrival at the end of a stage may take to get there.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);
/// Steps from one in which a lane is, to the first that no other lane can have begun: they run at
/// most one step ahead of each other.
const STEPS_AHEAD: u32 = 2;

/// See the module header.
#[derive(Debug)]
pub struct Standby {
    /// The worker that stands by.
    worker: WorkerId,
    runner: LaneRunner,
    /// Of the worker's own lane.
    lead: Arc<Lead>,
    trace: TraceSegment,
    control: Control,
}

impl Standby {
    /// `runner` is another worker's lane, built for `worker`, whose own lane says to `lead` where
    /// it is.
    pub fn new(
        worker: WorkerId,
        runner: LaneRunner,
        lead: Arc<Lead>,
        (control, trace): (Control, TraceSegment),
    ) -> Standby {
        Standby { worker, runner, lead, trace, control }
    }

    /// The lane.
    pub fn runner(&self) -> &LaneRunner {
        &self.runner
    }

    /// Waits until the lane is handed over and runs it from there, or until the run ends.
    ///
    /// # Errors
    /// As [`LaneRunner::run`].
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
        // A lane that was handed over before is idle from a step that others may be in by now.
        if self.control.lane(lane).idle_from().is_none() {
            self.control.lane(lane).set_idle_from(from);
        }
        // SAFETY: needed to go on with the lost worker's ring. The coordinator hands a lane over
        // once the process that ran it has ended.
        let trace = unsafe { self.trace.inherit(lane) };
        self.runner.set_trace(trace.ok());
        self.runner.run_from(Some(resumed))
    }

    /// False at the end of the run.
    fn wait_for_handover(&self) -> Result<bool, LaneError> {
        let words = self.control.lane(self.runner.lane().index());
        let mut seen = 0;
        loop {
            if words.successor() == Some(self.worker.index()) {
                return Ok(true);
            }
            let is_over = self.control.groups().value() > 0;
            if is_over && self.control.stages().next().is_none() {
                return Ok(false);
            }
            let takeovers = self.control.takeovers();
            match takeovers.wait_at_least(seen + 1, self.control.poison(), SLICE) {
                Ok(()) => seen = takeovers.value(),
                Err(WaitError::TimedOut { .. }) => {}
                Err(WaitError::Poisoned(_)) => return Err(LaneError::Poisoned),
            }
        }
    }

    /// The stage of this number, once the own lane is there; `None`: there is none any more.
    ///
    /// # Errors
    /// Poison; or a worker that was lost between counting its arrival and arriving, so that the
    /// others wait for it at the end of a stage.
    fn wait_for_stage(&self, number: u32) -> Result<Option<StageStart>, LaneError> {
        let lanes = self.runner.plan().lanes();
        let mut waited = Duration::ZERO;
        loop {
            match self.lead.stage(number) {
                (Some(stage), _) => return Ok(Some(stage)),
                (None, true) => return Ok(None),
                (None, false) => std::thread::sleep(STAGE_SLICE),
            }
            if self.control.poison().check().is_err() {
                return Err(LaneError::Poisoned);
            }
            // All have counted themselves, so all are there in a moment, or one never will be.
            let have_arrived = lanes.iter().all(|lane| {
                self.control.lane(lane.index()).arrivals().wrapping_sub(number) as i32 >= 0
            });
            let is_between_groups = self.control.barrier().timeline().value() == number;
            waited = if have_arrived && !is_between_groups {
                waited + STAGE_SLICE
            } else {
                Duration::ZERO
            };
            if waited > ARRIVAL_MAX {
                return Err(LaneError::Silent {
                    reason: format!(
                        "The worker of lane {} was lost just as a stage ended, which cannot be \
                         made up for",
                        self.runner.name()
                    ),
                });
            }
        }
    }

    /// Where the lost worker was in a stage, by the signals it gave.
    fn resumed(&self, stage: StageStart) -> Resumed {
        let lane = self.runner.lane();
        let program = self.control.stages().nth(stage.index).map_or(0, |stage| stage.program);
        let list = self.runner.plan().programs[program as usize].lane(lane);
        let value = self.control.lane(lane.index()).timeline.value();
        let given = value.wrapping_sub(stage.bases[lane.index()]);
        let (step, instruction) = place_of(list, given);
        Resumed { stage, step, instruction }
    }
}

/// The step, and the instruction of the list in it, behind so many signals of a stage.
fn place_of(list: Option<&LaneProgram>, given: u32) -> (u32, usize) {
    let Some(list) = list.filter(|list| list.signals_per_step > 0) else { return (0, 0) };
    let (step, of_step) = (given / list.signals_per_step, given % list.signals_per_step);
    let signals = list.instructions.iter().enumerate();
    let mut signals = signals.filter(|(_, instruction)| **instruction == Instruction::Signal);
    let last = of_step.checked_sub(1).and_then(|last| signals.nth(last as usize));
    (step, last.map_or(0, |(index, _)| index + 1))
}

#[cfg(test)]
mod tests {
    use program::ir::Wait;
    use program::topology::LaneId;

    use super::*;

    #[test]
    fn a_lane_goes_on_behind_its_last_signal() {
        let wait = Instruction::Wait(Wait { lane: LaneId(0), offset: 1, previous_step: false });
        let (signal, lane) = (Instruction::Signal, LaneId(1));
        let instructions = vec![wait.clone(), signal.clone(), wait.clone(), signal, wait];
        let list = LaneProgram { lane, instructions, signals_per_step: 2 };
        let places: Vec<_> = (0..6).map(|given| place_of(Some(&list), given)).collect();
        assert_eq!(places, [(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]);
        assert_eq!(place_of(None, 0), (0, 0));
    }
}
