//! Which of several lanes that stand still is the one that hangs.

use std::time::Duration;

use shm::Control;

/// What is to be thought of work that is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Wait,
    /// The run was ended elsewhere.
    Poisoned,
    /// Nothing has moved for too long.
    Stuck,
}

/// Where the work itself has begun the bound is half as long, so that of several lanes that stand
/// still it is the one with the hanging work that speaks, and not one behind it.
///
/// Poison lets every wait pass, also those of streams: what a lane of another process was held by
/// is then gone, and its work has begun. All count from the same movement, so they ask at the same
/// moment; hence whether the run was poisoned is looked at after the question, never before.
pub(super) fn judge(
    control: &Control,
    still: Duration,
    bound: Duration,
    begun: impl FnOnce() -> bool,
) -> Verdict {
    let stuck = still > bound || (still > bound / 2 && begun());
    match control.poison().cause() {
        Some(_) => Verdict::Poisoned,
        None if stuck => Verdict::Stuck,
        None => Verdict::Wait,
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
        let still = |seconds, begun| judge(&control, Duration::from_secs(seconds), BOUND, || begun);
        assert_eq!(still(4, true), Verdict::Wait);
        assert_eq!(still(5, true), Verdict::Stuck);
        assert_eq!(still(5, false), Verdict::Wait);
        assert_eq!(still(9, false), Verdict::Stuck);
    }

    #[test]
    fn work_that_poison_let_begin_is_not_what_hangs() {
        let control = Control::create(7, 0).expect("control");
        let poisoned_meanwhile = || {
            control.stop(LaneId::GPU_COMPUTE.index() as u32, PoisonCode::Device as u32);
            true
        };
        let verdict = judge(&control, Duration::from_secs(5), BOUND, poisoned_meanwhile);
        assert_eq!(verdict, Verdict::Poisoned);
    }
}
