//! The words of a lane in the control segment.

use crate::packed::Position;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::timeline::Timeline;

/// One lane's words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Lane {
    /// Advanced by this lane's `Signal` instructions only (and by poison).
    pub timeline: Timeline,
    /// The instruction being executed, packed; see [`Lane::position`].
    position: AtomicU64,
    /// Number of ends of stages at which the lane has arrived, over all groups.
    arrivals: AtomicU32,
    /// Worker that runs the lane instead of the lane's own worker, plus 1; 0 if its own worker
    /// does.
    successor: AtomicU32,
    /// Group and step from which the lane has no work any more, packed, plus 1; 0 if it has work.
    idle_from: AtomicU64,
    /// Reserved; keeps the lane on two cache lines.
    _reserved: [AtomicU64; 5],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Lane>() == 128);
    assert!(offset_of!(Lane, position) == 64 && offset_of!(Lane, arrivals) == 72);
    assert!(offset_of!(Lane, successor) == 76 && offset_of!(Lane, idle_from) == 80);
};

/// A step of a group, ordered by execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepOfGroup {
    /// Number of the group, counted from 1.
    pub group: u32,
    /// Index of the step over all stages, from 0.
    pub step: u32,
}

impl Lane {
    /// Returns the current position of the lane.
    pub fn position(&self) -> Position {
        Position::unpack(self.position.load(Ordering::Relaxed))
    }

    /// Sets the lane's position with a single store; called before every instruction.
    #[inline]
    pub fn set_position(&self, position: Position) {
        self.position.store(position.pack(), Ordering::Relaxed);
    }

    /// Returns the number of ends of stages at which the lane has arrived or was about to. It is
    /// counted before the lane arrives, so that no successor arrives a second time for it.
    pub fn arrivals(&self) -> u32 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// Counts an arrival; called immediately before the lane arrives.
    pub fn count_arrival(&self) {
        self.arrivals.fetch_add(1, Ordering::Release);
    }

    /// Returns the worker that runs the lane instead of the lane's own worker.
    pub fn successor(&self) -> Option<usize> {
        self.successor.load(Ordering::Acquire).checked_sub(1).map(|worker| worker as usize)
    }

    pub(crate) fn set_successor(&self, worker: u32) {
        self.successor.store(worker + 1, Ordering::Release);
    }

    /// Returns the step from which the lane has no work, since its share was given to other lanes.
    pub fn idle_from(&self) -> Option<StepOfGroup> {
        let packed = self.idle_from.load(Ordering::Acquire).checked_sub(1)?;
        Some(StepOfGroup { group: (packed >> 32) as u32, step: packed as u32 })
    }

    /// Sets this step, once; no lane may have begun it yet.
    pub fn set_idle_from(&self, from: StepOfGroup) {
        let packed = u64::from(from.group) << 32 | u64::from(from.step);
        self.idle_from.store(packed + 1, Ordering::Release);
    }
}
