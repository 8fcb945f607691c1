//! Stall detection that identifies the hanging lane among several lanes without progress.

use std::time::Duration;

use shm::Control;

/// Assessment of unfinished work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StallStatus {
    /// The work may still finish.
    InProgress,
    /// Another thread or process ended the run.
    Poisoned,
    /// No lane has made progress within the bound.
    Stalled,
}

/// Judges unfinished work after a period without progress.
///
/// The bound is half as long if the work itself has begun. Thus, of several lanes without progress,
/// the one with the hanging work reports the stall, and not one that waits for it.
///
/// Poison lets every wait pass, including those of streams: the wait that blocked a lane of another
/// process then ends, and its work begins. All lanes count from the same movement, so they check at
/// the same moment; therefore poison is checked after `has_begun` is evaluated, never before.
pub(super) fn check_stall(
    control: &Control,
    stalled_for: Duration,
    bound: Duration,
    has_begun: impl FnOnce() -> bool,
) -> StallStatus {
    let stuck = stalled_for > bound || (stalled_for > bound / 2 && has_begun());
    match control.poison().cause() {
        Some(_) => StallStatus::Poisoned,
        None if stuck => StallStatus::Stalled,
        None => StallStatus::InProgress,
    }
}

#[cfg(test)]
mod tests {
    use program::topology::LaneId;

    use super::*;
    use crate::error::PoisonCode;

    const BOUND: Duration = Duration::from_secs(8);

    #[test]
    fn work_that_has_begun_gets_half_the_bound_and_work_behind_other_work_all_of_it() {
        let control = Control::create(7, 0).expect("control");
        let status_after =
            |seconds, begun| check_stall(&control, Duration::from_secs(seconds), BOUND, || begun);
        assert_eq!(status_after(4, true), StallStatus::InProgress);
        assert_eq!(status_after(5, true), StallStatus::Stalled);
        assert_eq!(status_after(5, false), StallStatus::InProgress);
        assert_eq!(status_after(9, false), StallStatus::Stalled);
    }

    #[test]
    fn work_that_poison_let_begin_is_not_what_hangs() {
        let control = Control::create(7, 0).expect("control");
        let poisoned_meanwhile = || {
            control.stop(LaneId::GPU_COMPUTE.index() as u32, PoisonCode::Device as u32);
            true
        };
        let verdict = check_stall(&control, Duration::from_secs(5), BOUND, poisoned_meanwhile);
        assert_eq!(verdict, StallStatus::Poisoned);
    }
}
