//! The control segment: the few words through which coordinator and workers steer a run.
//!
//! Created by the coordinator, attached by every worker. A header of fixed layout ([`Header`]) is
//! followed by an area whose layout other crates define (step table, program table). Every field is
//! an atomic, so no process can make it unsound to look at. Magic and version are written last and
//! checked first, so a segment that is not ready or of another build is refused.
//!
//! The coordinator is never on the step path: it releases groups ([`Control::groups`]) and watches.

mod stages;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::barrier::Barrier;
use crate::lane::Lane;
use crate::mapping::Access;
use crate::segment::{Segment, SegmentError};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::timeline::{Poison, PoisonCause, Timeline};
use crate::words::{SharedU32s, SharedU64s};

/// Maximum number of lanes in a run.
pub const LANES_MAX: usize = 64;
/// Maximum number of worker processes in a run.
pub const WORKERS_MAX: usize = 64;
/// Maximum number of stages in a group.
pub const STAGES_MAX: usize = 6;

const MAGIC: u64 = u64::from_le_bytes(*b"TANDEMC1");
const VERSION: u32 = 3;
/// Value of `last_step` before the last step is known.
const LAST_STEP_UNKNOWN: u32 = u32::MAX;

/// One worker's words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct WorkerControl {
    /// A [`WorkerState`] as a number.
    state: AtomicU32,
    /// Heartbeat: incremented by the worker whenever it makes progress, so that the coordinator
    /// notices a hang.
    pub tick: AtomicU32,
    /// Bytes of weights loaded so far.
    pub load_done_bytes: AtomicU64,
    /// Bytes of weights to load.
    pub load_total_bytes: AtomicU64,
    /// Number of allocations between ready and drain, if they are counted.
    pub allocations: AtomicU64,
    _reserved: [AtomicU64; 4],
}

/// The layout of the header.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    last_step: AtomicU32,
    /// Stages of the group, packed, in order; 0 for none.
    stages: [AtomicU64; STAGES_MAX],
    poison: Poison,
    groups: Timeline,
    steps: Timeline,
    drained: Timeline,
    takeovers: Timeline,
    barrier: Barrier,
    lanes: [Lane; LANES_MAX],
    workers: [WorkerControl; WORKERS_MAX],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<WorkerControl>() == 64);
    assert!(offset_of!(WorkerControl, tick) == 4 && offset_of!(WorkerControl, allocations) == 24);
    assert!(offset_of!(Header, poison) == 64);
    assert!(offset_of!(Header, groups) == 128 && offset_of!(Header, steps) == 192);
    assert!(offset_of!(Header, drained) == 256 && offset_of!(Header, takeovers) == 320);
    assert!(offset_of!(Header, barrier) == 384 && offset_of!(Header, lanes) == 512);
    assert!(offset_of!(Header, workers) == 512 + LANES_MAX * 128);
    assert!(size_of::<Header>() == 512 + LANES_MAX * 128 + WORKERS_MAX * 64);
};

/// Life cycle of a worker; it only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum WorkerState {
    /// Started, but has not reported yet. Represented by zero bytes.
    Attach = 0,
    /// Mapping segments.
    Map = 1,
    /// Loading weights.
    Load = 2,
    /// Everything is allocated; waiting for the first group.
    Ready = 3,
    /// Running programs.
    Run = 4,
    /// The last group is done; freeing.
    Drain = 5,
    /// About to exit.
    Exit = 6,
}

impl WorkerState {
    const ALL: [WorkerState; 7] = [
        WorkerState::Attach,
        WorkerState::Map,
        WorkerState::Load,
        WorkerState::Ready,
        WorkerState::Run,
        WorkerState::Drain,
        WorkerState::Exit,
    ];
}

impl WorkerControl {
    /// Returns the worker's state. A number without a state reads as [`WorkerState::Exit`], so that
    /// a corrupted word ends the run.
    pub fn state(&self) -> WorkerState {
        // SYNC POINT: worker state, acquired here: a process that sees Ready sees what was loaded.
        let number = self.state.load(Ordering::Acquire) as usize;
        WorkerState::ALL.get(number).copied().unwrap_or(WorkerState::Exit)
    }

    /// Moves to the next state. Called only by the worker itself.
    pub fn set_state(&self, state: WorkerState) {
        debug_assert!(state >= self.state(), "a worker's state only moves forward");
        // SYNC POINT: worker state, released here.
        self.state.store(state as u32, Ordering::Release);
        self.beat();
    }

    /// Returns the number of heartbeats so far; if it does not change, the worker makes no
    /// progress.
    pub fn ticks(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Returns the bytes of weights loaded so far, and the bytes to load.
    pub fn load_progress_bytes(&self) -> (u64, u64) {
        let done = self.load_done_bytes.load(Ordering::Relaxed);
        (done, self.load_total_bytes.load(Ordering::Relaxed))
    }

    /// Returns the number of allocations counted between ready and drain.
    pub fn allocations_seen(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Increments the heartbeat.
    #[inline]
    pub fn beat(&self) {
        self.tick.fetch_add(1, Ordering::Relaxed);
    }
}

/// Error of creating or attaching a control segment.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("The control segment is not usable: {0}")]
    Segment(#[from] SegmentError),
    /// The segment is too small for the header.
    #[error("A control segment has at least {least_bytes} bytes; this one has {found_bytes}.")]
    TooSmall {
        /// Size of the header.
        least_bytes: usize,
        /// Announced size of the segment.
        found_bytes: usize,
    },
    /// The segment is not a control segment, or its creator has not finished.
    #[error("The passed segment does not start with the magic bytes of a control segment.")]
    Magic,
    /// The segment was written by another build.
    #[error(
        "The control segment has layout version {found}, this build reads version {VERSION}; both \
         processes must come from the same build."
    )]
    Version {
        /// Layout version of the segment.
        found: u32,
    },
}

/// A mapped control segment. Clones share it.
#[derive(Debug, Clone)]
pub struct Control {
    segment: Arc<Segment>,
    header: NonNull<Header>,
}

// SAFETY: needed because of the raw pointer, which points into the mapping that `segment` keeps
// alive; the header is made of atomics only.
unsafe impl Send for Control {}
// SAFETY: as for `Send`.
unsafe impl Sync for Control {}

impl Control {
    /// Creates a control segment with a barrier for `barrier_parties` and an area of `extra_bytes`
    /// after the header.
    ///
    /// # Panics
    /// Panics if `barrier_parties` is 0.
    pub fn create(barrier_parties: u32, extra_bytes: usize) -> Result<Control, ControlError> {
        let control =
            Self::over(Segment::create("tandem-control", size_of::<Header>() + extra_bytes)?);
        let header = control.header();
        header.barrier.set_parties(barrier_parties);
        header.last_step.store(LAST_STEP_UNKNOWN, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        // SYNC POINT: control header, released here once it is complete.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(control)
    }

    /// Attaches a control segment with a total size of `size_bytes`.
    pub fn attach(fd: OwnedFd, size_bytes: usize) -> Result<Control, ControlError> {
        let least_bytes = size_of::<Header>();
        if size_bytes < least_bytes {
            return Err(ControlError::TooSmall { least_bytes, found_bytes: size_bytes });
        }
        let control = Self::over(Segment::attach(fd, size_bytes, Access::ReadWrite)?);
        // SYNC POINT: control header, acquired here.
        if control.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(ControlError::Magic);
        }
        let found = control.header().version.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(ControlError::Version { found });
        }
        Ok(control)
    }

    /// Wraps a segment, which must be writable and at least as large as the header.
    fn over(segment: Segment) -> Control {
        let header = segment.pointer::<Header>(0, 1);
        Control { segment: Arc::new(segment), header }
    }

    fn header(&self) -> &Header {
        // SAFETY: needed to reach the mapped header. `over` checked bounds and alignment, `segment`
        // keeps it mapped for writing, and every field is an atomic, for which any bytes are valid.
        unsafe { self.header.as_ref() }
    }

    /// Returns the segment, for its descriptor and size.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Returns the word that ends the run. To end it, call [`Control::stop`].
    pub fn poison(&self) -> &Poison {
        &self.header().poison
    }

    /// Returns the number of groups released by the coordinator; a lane waits for the number of its
    /// next group.
    pub fn groups(&self) -> &Timeline {
        &self.header().groups
    }

    /// Returns the number of steps done in all groups, signalled by the sampling lane; the
    /// coordinator waits on it, following the steps.
    pub fn steps(&self) -> &Timeline {
        &self.header().steps
    }

    /// Returns the number of groups that all lanes have left; the coordinator waits on it before it
    /// reads the results.
    pub fn drained(&self) -> &Timeline {
        &self.header().drained
    }

    /// Returns the counter that advances whenever a worker is to run another worker's lane, and at
    /// the end of the run.
    pub fn takeovers(&self) -> &Timeline {
        &self.header().takeovers
    }

    /// Assigns a lane whose own worker is lost permanently to another worker.
    pub fn hand_over(&self, lane: usize, worker: usize) {
        self.lane(lane).set_successor(worker as u32);
        self.takeovers().signal();
    }

    /// Returns the barrier at which all parties meet at program changes.
    pub fn barrier(&self) -> &Barrier {
        &self.header().barrier
    }

    /// Returns a lane's words.
    ///
    /// # Panics
    /// Panics if `lane` is not below [`LANES_MAX`].
    pub fn lane(&self, lane: usize) -> &Lane {
        &self.header().lanes[lane]
    }

    /// Returns a worker's words.
    ///
    /// # Panics
    /// Panics if `worker` is not below [`WORKERS_MAX`].
    pub fn worker(&self, worker: usize) -> &WorkerControl {
        &self.header().workers[worker]
    }

    /// Returns the step after which all lanes leave, once the sampling lane has announced it (one
    /// step ahead).
    pub fn last_step(&self) -> Option<u32> {
        let step = self.header().last_step.load(Ordering::Acquire);
        (step != LAST_STEP_UNKNOWN).then_some(step)
    }

    /// Announces the last step, or takes the announcement back before a new group.
    pub fn set_last_step(&self, step: Option<u32>) {
        debug_assert_ne!(step, Some(LAST_STEP_UNKNOWN), "this number means unknown");
        self.header().last_step.store(step.unwrap_or(LAST_STEP_UNKNOWN), Ordering::Release);
    }

    /// Returns every timeline that a thread can sleep on.
    pub fn timelines(&self) -> impl Iterator<Item = &Timeline> {
        let header = self.header();
        let lanes = header.lanes.iter().map(|lane| &lane.timeline);
        let others = [&header.groups, &header.steps, &header.drained, &header.takeovers];
        others.into_iter().chain([header.barrier.timeline()]).chain(lanes)
    }

    /// Ends the run: the first caller's cause is kept, and every wait in every process returns it.
    ///
    /// # Panics
    /// Panics if `who` is 2^31 or more.
    pub fn stop(&self, who: u32, code: u32) -> PoisonCause {
        self.poison().set(who, code, self.timelines())
    }

    /// Returns the size of the area after the header.
    pub fn extra_bytes(&self) -> usize {
        self.segment.size_bytes() - size_of::<Header>()
    }

    /// Returns a view of `count` words of the area after the header, at `offset_bytes` within it.
    ///
    /// # Panics
    /// Panics if the range leaves the segment or is unaligned.
    pub fn extra(&self, offset_bytes: usize, count: usize) -> SharedU32s {
        SharedU32s::new(Arc::clone(&self.segment), size_of::<Header>() + offset_bytes, count)
    }

    /// Returns a view of 64-bit words, like [`Control::extra`].
    ///
    /// # Panics
    /// Panics if the range leaves the segment or is unaligned.
    pub fn extra_u64(&self, offset_bytes: usize, count: usize) -> SharedU64s {
        SharedU64s::new(Arc::clone(&self.segment), size_of::<Header>() + offset_bytes, count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lane::StepOfGroup;
    use crate::packed::Position;
    use crate::packed::ProgramStage;
    use crate::timeline::WaitError;

    const LIMIT: Duration = Duration::from_secs(60);

    fn attach_again(control: &Control) -> Result<Control, ControlError> {
        let segment = control.segment();
        Control::attach(segment.fd().try_clone_to_owned().unwrap(), segment.size_bytes())
    }

    #[test]
    fn both_mappings_see_the_same_words() {
        let created = Control::create(2, 64).unwrap();
        let attached = attach_again(&created).unwrap();
        assert_eq!((attached.last_step(), attached.barrier().parties()), (None, 2));
        assert_eq!(attached.worker(3).state(), WorkerState::Attach);
        created.lane(15).timeline.signal();
        created.lane(15).set_position(Position { program: 2, step: 31, instruction: 900 });
        created.worker(3).set_state(WorkerState::Ready);
        assert_eq!(attached.stages().count(), 0);
        let stages =
            [ProgramStage { program: 0, steps: 1 }, ProgramStage { program: 255, steps: u32::MAX }];
        created.release(&stages, 0);
        assert_eq!(
            (attached.groups().value(), attached.stages().collect::<Vec<_>>()),
            (1, stages.to_vec())
        );
        created.release(&[], 0);
        assert_eq!(attached.stages().count(), 0);
        created.extra(8, 14).store(13, 77);
        assert_eq!(attached.lane(15).timeline.value(), 1);
        assert_eq!(attached.lane(14).timeline.value(), 0);
        assert_eq!(attached.lane(15).position().step, 31);
        assert_eq!(attached.worker(3).state(), WorkerState::Ready);
        assert_eq!(attached.worker(3).tick.load(Ordering::Relaxed), 1);
        assert_eq!(attached.last_step(), Some(0));
        assert_eq!(attached.extra_u64(56, 1).load(0), 77 << 32);
        assert_eq!(attached.extra_bytes(), 64);
    }

    #[test]
    fn a_stop_releases_every_timeline_with_the_first_cause() {
        let control = Control::create(2, 0).unwrap();
        let cause = PoisonCause { who: 4, code: 9 };
        assert_eq!(control.stop(4, 9), cause);
        assert_eq!(control.stop(5, 1), cause);
        for timeline in control.timelines() {
            assert_eq!(
                timeline.wait_until(1, control.poison(), LIMIT),
                Err(WaitError::Poisoned(cause))
            );
        }
        assert_eq!(
            control.barrier().wait(control.poison(), LIMIT),
            Err(WaitError::Poisoned(cause))
        );
        assert_eq!(control.timelines().count(), LANES_MAX + 5);
    }

    #[test]
    fn words_of_a_takeover_are_read_as_they_were_written() {
        let control = Control::create(1, 0).expect("control");
        let lane = control.lane(3);
        assert_eq!((lane.successor(), lane.idle_from(), lane.arrivals()), (None, None, 0));
        let from = StepOfGroup { group: 1, step: 0 };
        lane.set_idle_from(from);
        lane.count_arrival();
        control.hand_over(3, 0);
        assert_eq!((lane.successor(), lane.idle_from(), lane.arrivals()), (Some(0), Some(from), 1));
        assert_eq!(control.takeovers().value(), 1);
        let later = StepOfGroup { group: 2, step: 0 };
        assert!(from < later && StepOfGroup { group: 1, step: u32::MAX } < later);
        lane.set_idle_from(StepOfGroup { group: u32::MAX - 1, step: u32::MAX });
        assert_eq!(lane.idle_from().expect("it is idle").step, u32::MAX);
    }

    #[test]
    fn what_is_no_control_segment_is_refused() {
        let plain = Segment::create("plain", size_of::<Header>()).unwrap();
        let fd = || plain.fd().try_clone_to_owned().unwrap();
        assert!(matches!(Control::attach(fd(), plain.size_bytes()), Err(ControlError::Magic)));
        assert!(matches!(Control::attach(fd(), 64), Err(ControlError::TooSmall { .. })));
        assert!(matches!(
            Control::attach(fd(), plain.size_bytes() + 1),
            Err(ControlError::Segment(SegmentError::Size { .. }))
        ));
        let control = Control::create(1, 0).unwrap();
        control.header().version.store(VERSION + 1, Ordering::Relaxed);
        assert!(matches!(
            attach_again(&control),
            Err(ControlError::Version { found }) if found == VERSION + 1
        ));
    }

    #[test]
    fn a_spoilt_state_reads_as_exit() {
        let control = Control::create(1, 0).unwrap();
        control.worker(0).state.store(99, Ordering::Relaxed);
        assert_eq!(control.worker(0).state(), WorkerState::Exit);
        for (number, state) in WorkerState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
        }
    }
}
