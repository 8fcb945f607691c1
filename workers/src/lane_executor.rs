//! What carries out a lane's work: the seam behind which a new kind of lane is a new file.
//!
//! The lane itself ([`crate::lane`]) knows order only: lists, waits, signals, steps.

use std::fmt;

use program::ir::{Instruction, ProgramId};
use program::topology::LaneId;
use shm::{Position, StepOfGroup, Timeline};

use crate::error::LaneError;

/// What an instruction did, for the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes moved; for `Compute` the weights and cached positions read.
    pub bytes: u64,
    /// Rows worked on.
    pub rows: u32,
}

/// An instruction that is work, and where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    pub program: ProgramId,
    /// Of the program, from 0.
    pub step: u32,
    /// In the lane's list.
    pub index: usize,
    pub instruction: &'a Instruction,
}

impl Task<'_> {
    /// Where it stands, as the control segment says it.
    pub fn position(&self) -> Position {
        let program = self.program.0.into();
        Position { program, step: self.step, instruction: self.index as u32 }
    }
}

/// Carries out the work of one lane, on the lane's thread.
pub trait LaneExecutor: fmt::Debug + Send {
    /// The thread that calls this runs the lane.
    ///
    /// # Errors
    /// What the lane works on cannot be had.
    fn begin(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    /// A run of the list begins: what the step table says may have changed.
    fn begin_list(&mut self, _step: StepOfGroup) {}

    /// Carries out an instruction. `None`: it is only under way; whoever completes it writes the
    /// trace, and [`LaneExecutor::is_asynchronous`] says so of all.
    ///
    /// # Errors
    /// A device or a storage that failed.
    fn execute(&mut self, task: Task<'_>) -> Result<Option<Work>, LaneError>;

    /// Advances the lane's timeline once all its earlier work is complete.
    fn signal(&self, timeline: &Timeline) {
        timeline.signal();
    }

    /// Orders what follows behind another lane's timeline without holding up the thread; `false`
    /// where the thread has to wait.
    ///
    /// # Errors
    /// The device's refusal.
    fn order_behind(&self, _lane: LaneId, _target: u32) -> Result<bool, LaneError> {
        Ok(false)
    }

    /// The thread is about to wait for another lane, or has waited for all of them.
    fn blocked(&mut self) {}

    /// Waits until everything under way is complete.
    ///
    /// # Errors
    /// What failed meanwhile.
    fn settle(&self) -> Result<(), LaneError> {
        Ok(())
    }

    /// The error with which the work itself ended, in the place of the poison that it caused.
    fn own_failure(&self) -> Option<LaneError> {
        None
    }

    /// Whether instructions may still be under way when `execute` returns.
    fn is_asynchronous(&self) -> bool {
        false
    }
}
