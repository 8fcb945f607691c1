//! The control segment: the few words through which coordinator and workers steer a run.
//!
//! Created by the coordinator, attached by every worker. A header of fixed layout ([`Header`]) is
//! followed by an area that others lay out (step table, program table). Every field is an atomic,
//! so no process can make it unsound to look at. Magic and version are written last and checked
//! first, so a segment that is not ready or of another build is refused.
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

/// Lanes a run can have.
pub const LANES_MAX: usize = 64;
/// Worker processes a run can have.
pub const WORKERS_MAX: usize = 64;
/// Stages a group can have.
pub const STAGES_MAX: usize = 6;

const MAGIC: u64 = u64::from_le_bytes(*b"TANDEMC1");
const VERSION: u32 = 3;
/// What `last_step` holds before the last step is known.
const LAST_STEP_UNKNOWN: u32 = u32::MAX;

/// One worker's words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Worker {
    /// A [`WorkerState`] as a number.
    state: AtomicU32,
    /// Heartbeat: added to by the worker whenever it gets on, so that the coordinator notices a
    /// hang.
    pub tick: AtomicU32,
    /// Bytes of weights loaded so far.
    pub load_done_bytes: AtomicU64,
    /// Bytes of weights to load.
    pub load_total_bytes: AtomicU64,
    /// Allocations made between ready and drain, where they are counted.
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
    /// The group's stages, packed, in order; 0 where there is none.
    stages: [AtomicU64; STAGES_MAX],
    poison: Poison,
    groups: Timeline,
    steps: Timeline,
    drained: Timeline,
    takeovers: Timeline,
    barrier: Barrier,
    lanes: [Lane; LANES_MAX],
    workers: [Worker; WORKERS_MAX],
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Worker>() == 64);
    assert!(offset_of!(Worker, tick) == 4 && offset_of!(Worker, allocations) == 24);
    assert!(offset_of!(Header, poison) == 64);
    assert!(offset_of!(Header, groups) == 128 && offset_of!(Header, steps) == 192);
    assert!(offset_of!(Header, drained) == 256 && offset_of!(Header, takeovers) == 320);
    assert!(offset_of!(Header, barrier) == 384 && offset_of!(Header, lanes) == 512);
    assert!(offset_of!(Header, workers) == 512 + LANES_MAX * 128);
    assert!(size_of::<Header>() == 512 + LANES_MAX * 128 + WORKERS_MAX * 64);
};

/// The life of a worker; it only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum WorkerState {
    /// Started, not yet heard of. What zero bytes say.
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

impl Worker {
    /// The worker's state; a number that is none reads as [`WorkerState::Exit`], so that a spoilt
    /// word ends the run.
    pub fn state(&self) -> WorkerState {
        // SYNC POINT: worker state, acquired here: who sees Ready sees what was loaded.
        let number = self.state.load(Ordering::Acquire) as usize;
        WorkerState::ALL.get(number).copied().unwrap_or(WorkerState::Exit)
    }

    /// Moves on. Called by the worker itself only.
    pub fn set_state(&self, state: WorkerState) {
        debug_assert!(state >= self.state(), "a worker's state only moves forward");
        // SYNC POINT: worker state, released here.
        self.state.store(state as u32, Ordering::Release);
        self.beat();
    }

    /// Heartbeats so far; a number that stands still is a worker that does not get on.
    pub fn ticks(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Bytes of weights loaded, and to load.
    pub fn load_progress_bytes(&self) -> (u64, u64) {
        let done = self.load_done_bytes.load(Ordering::Relaxed);
        (done, self.load_total_bytes.load(Ordering::Relaxed))
    }

    /// Allocations counted between ready and drain.
    pub fn allocations_seen(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Says that the worker is alive.
    #[inline]
    pub fn beat(&self) {
        self.tick.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a control segment could not be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The segment failed.
    #[error("The control segment is not usable: {0}")]
    Segment(#[from] SegmentError),
    /// Too small for the header.
    #[error("A control segment has at least {least_bytes} bytes; this one has {found_bytes}.")]
    TooSmall {
        /// Bytes of the header.
        least_bytes: usize,
        /// Bytes announced.
        found_bytes: usize,
    },
    /// Not a control segment, or its creator has not finished.
    #[error("The passed segment does not begin with the magic of a control segment.")]
    Magic,
    /// Written by another build.
    #[error(
        "The control segment has layout version {found}, this build reads version {VERSION}; both \
         processes must come from the same build."
    )]
    Version {
        /// The version found.
        found: u32,
    },
}

/// A control segment in use. Clones share it.
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
    /// Creates a control segment with a barrier for `barrier_parties` and `extra_bytes` behind the
    /// header.
    ///
    /// # Panics
    /// If `barrier_parties` is 0.
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

    /// Attaches a control segment of `size_bytes` in all.
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

    /// The segment must be writable and at least as large as the header.
    fn over(segment: Segment) -> Control {
        let header = segment.pointer::<Header>(0, 1);
        Control { segment: Arc::new(segment), header }
    }

    fn header(&self) -> &Header {
        // SAFETY: needed to reach the mapped header. `over` checked bounds and alignment, `segment`
        // keeps it mapped for writing, and every field is an atomic, for which any bytes are valid.
        unsafe { self.header.as_ref() }
    }

    /// The segment, for its descriptor and size.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The word that ends the run. To end it, call [`Control::stop`].
    pub fn poison(&self) -> &Poison {
        &self.header().poison
    }

    /// Groups released by the coordinator; lanes wait for the number of theirs.
    pub fn groups(&self) -> &Timeline {
        &self.header().groups
    }

    /// Steps done, of all groups, signalled by the lane that samples; the coordinator waits on it,
    /// behind the step.
    pub fn steps(&self) -> &Timeline {
        &self.header().steps
    }

    /// Groups that all lanes have left; the coordinator waits on it before it reads the results.
    pub fn drained(&self) -> &Timeline {
        &self.header().drained
    }

    /// Advanced whenever a worker is to run another's lane, and at the end of the run.
    pub fn takeovers(&self) -> &Timeline {
        &self.header().takeovers
    }

    /// Lets a worker run a lane whose own worker is gone for good.
    pub fn hand_over(&self, lane: usize, worker: usize) {
        self.lane(lane).set_successor(worker as u32);
        self.takeovers().signal();
    }

    /// Where all parties meet at program changes.
    pub fn barrier(&self) -> &Barrier {
        &self.header().barrier
    }

    /// A lane's words.
    ///
    /// # Panics
    /// If `lane` is not below [`LANES_MAX`].
    pub fn lane(&self, lane: usize) -> &Lane {
        &self.header().lanes[lane]
    }

    /// A worker's words.
    ///
    /// # Panics
    /// If `worker` is not below [`WORKERS_MAX`].
    pub fn worker(&self, worker: usize) -> &Worker {
        &self.header().workers[worker]
    }

    /// The step after which all lanes leave, once the sampling lane has announced it (one step
    /// ahead).
    pub fn last_step(&self) -> Option<u32> {
        let step = self.header().last_step.load(Ordering::Acquire);
        (step != LAST_STEP_UNKNOWN).then_some(step)
    }

    /// Announces the last step, or takes the announcement back before a new group.
    pub fn set_last_step(&self, step: Option<u32>) {
        debug_assert_ne!(step, Some(LAST_STEP_UNKNOWN), "this number means unknown");
        self.header().last_step.store(step.unwrap_or(LAST_STEP_UNKNOWN), Ordering::Release);
    }

    /// Every timeline that anybody can sleep on.
    pub fn timelines(&self) -> impl Iterator<Item = &Timeline> {
        let header = self.header();
        let lanes = header.lanes.iter().map(|lane| &lane.timeline);
        let others = [&header.groups, &header.steps, &header.drained, &header.takeovers];
        others.into_iter().chain([header.barrier.timeline()]).chain(lanes)
    }

    /// Ends the run: the first caller's cause is kept, and every wait in every process returns with
    /// it.
    ///
    /// # Panics
    /// If `who` is 2^31 or more.
    pub fn stop(&self, who: u32, code: u32) -> PoisonCause {
        self.poison().set(who, code, self.timelines())
    }

    /// Bytes behind the header.
    pub fn extra_bytes(&self) -> usize {
        self.segment.size_bytes() - size_of::<Header>()
    }

    /// `count` words of the area behind the header, at `offset_bytes` within it.
    ///
    /// # Panics
    /// If the range leaves the segment or is unaligned.
    pub fn extra(&self, offset_bytes: usize, count: usize) -> SharedU32s {
        SharedU32s::new(Arc::clone(&self.segment), size_of::<Header>() + offset_bytes, count)
    }

    /// As [`Control::extra`], for 64-bit words.
    ///
    /// # Panics
    /// If the range leaves the segment or is unaligned.
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
    use crate::packed::Stage;
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
        let stages = [Stage { program: 0, steps: 1 }, Stage { program: 255, steps: u32::MAX }];
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
                timeline.wait_at_least(1, control.poison(), LIMIT),
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
