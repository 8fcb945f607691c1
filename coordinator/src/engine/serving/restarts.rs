//! When workers are started again that were lost, and when no more.

use std::time::{Duration, Instant};

/// The pause before the second start of workers that have computed no step in between; it doubles
/// with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Losses without a step in between after which workers are started no more: about 16 s of pauses,
/// so that what comes and goes, such as a lack of descriptors or memory, is outlasted.
const LOSSES_MAX: u32 = 10;

/// Losses since the last step.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    losses: u32,
    next: Option<Instant>,
}

impl Restarts {
    /// Workers are lost; how long to wait before others are started, or `None`: they were lost too
    /// often.
    pub(super) fn lose(&mut self, now: Instant) -> Option<Duration> {
        self.losses += 1;
        if self.losses >= LOSSES_MAX {
            return None;
        }
        let pause = match self.losses {
            0 | 1 => Duration::ZERO,
            losses => PAUSE_MIN.saturating_mul(1 << (losses - 2)).min(PAUSE_MAX),
        };
        self.next = Some(now + pause);
        Some(pause)
    }

    /// How long workers are not started yet.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// A step was computed.
    pub(super) fn is_well(&mut self) {
        *self = Restarts::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_workers_are_given_up_and_begin_anew_after_a_step() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let pauses: Vec<u128> =
            std::iter::from_fn(|| restarts.lose(now)).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.pause(now), PAUSE_MAX);
        restarts.is_well();
        assert_eq!(
            (restarts.lose(now), restarts.pause(now)),
            (Some(Duration::ZERO), Duration::ZERO)
        );
        assert_eq!(restarts.lose(now), Some(PAUSE_MIN));
        assert_eq!(restarts.pause(now + PAUSE_MIN / 2), PAUSE_MIN / 2);
        assert_eq!(restarts.pause(now + PAUSE_MAX), Duration::ZERO);
    }
}
