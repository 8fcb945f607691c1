//! Executors of lanes: the interface that a new kind of lane implements.
//!
//! The lane itself ([`crate::lane`]) handles order only: lists, waits, signals and steps.

use std::fmt;

use program::ir::{Instruction, ProgramId};
use program::topology::LaneId;
use shm::{Position, StepOfGroup, Timeline};

use crate::error::LaneError;

/// Amount of work done by an instruction, for the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkAmount {
    /// Bytes moved; for `Compute` the bytes of weights and cached positions read.
    pub bytes: u64,
    /// Number of rows computed or moved; for reads the number of requests to the storage.
    pub rows: u32,
}

/// An instruction that is work, and its position.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    pub program: ProgramId,
    /// Index of the step within the program.
    pub step: u32,
    /// Index in the lane's list.
    pub index: usize,
    pub instruction: &'a Instruction,
}

impl Task<'_> {
    /// Returns the position in the representation of the control segment.
    pub fn position(&self) -> Position {
        let program = self.program.0.into();
        Position { program, step: self.step, instruction: self.index as u32 }
    }
}

/// Executes the work of one lane, on the lane's thread.
pub trait LaneExecutor: fmt::Debug + Send {
    /// Prepares the calling thread, which runs the lane.
    ///
    /// # Errors
    /// Returns an error if a resource of the lane is unavailable.
    fn begin(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    /// Begins a run of the list: the contents of the step table may have changed.
    fn begin_list(&mut self, _step: StepOfGroup) {}

    /// Executes an instruction. Returns `None` if the instruction is still in progress; its
    /// completion then writes the trace. [`LaneExecutor::is_asynchronous`] states which of the two
    /// applies to all instructions.
    ///
    /// # Errors
    /// Returns an error if a device or a storage failed.
    fn execute(&mut self, task: Task<'_>) -> Result<Option<WorkAmount>, LaneError>;

    /// Advances the lane's timeline once all its earlier work is complete.
    fn signal(&self, timeline: &Timeline) {
        timeline.signal();
    }

    /// Orders subsequent work after another lane's timeline without blocking the thread. Returns
    /// false if the thread has to wait instead.
    ///
    /// # Errors
    /// Returns the device's error.
    fn order_after(&self, _lane: LaneId, _target: u32) -> Result<bool, LaneError> {
        Ok(false)
    }

    /// Notifies the executor that the thread is about to wait for another lane, or has waited for
    /// all lanes.
    fn on_blocked(&mut self) {}

    /// Waits until all work in progress is complete.
    ///
    /// # Errors
    /// Returns a failure of that work.
    fn wait_until_complete(&self) -> Result<(), LaneError> {
        Ok(())
    }

    /// Returns the error with which the work itself ended, instead of the poison that it caused.
    fn own_failure(&self) -> Option<LaneError> {
        None
    }

    /// Returns true if instructions may still be in progress when `execute` returns.
    fn is_asynchronous(&self) -> bool {
        false
    }
}
