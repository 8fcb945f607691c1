//! Restarts of lost workers: the pauses before them, and their maximum number.

use std::time::{Duration, Instant};

/// Pause before the second start of workers without a completed step in between; it doubles with
/// each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Number of losses without a completed step in between after which workers are not started again.
/// The pauses take about 16 s in total, to outlast temporary conditions such as a lack of
/// descriptors or memory.
const LOSSES_MAX: u32 = 10;

/// Losses of workers since the last completed step.
#[derive(Debug, Default)]
pub(super) struct RestartBackoff {
    losses: u32,
    next: Option<Instant>,
}

impl RestartBackoff {
    /// Records a loss of workers. Returns the pause before others are started, or `None` if they
    /// were lost too often.
    pub(super) fn record_loss(&mut self, now: Instant) -> Option<Duration> {
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

    /// Returns the time that remains before workers may be started.
    pub(super) fn remaining_pause(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// Records a completed step.
    pub(super) fn reset(&mut self) {
        *self = RestartBackoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_workers_are_given_up_and_begin_anew_after_a_step() {
        let now = Instant::now();
        let mut restarts = RestartBackoff::default();
        let pauses: Vec<u128> = std::iter::from_fn(|| restarts.record_loss(now))
            .map(|pause| pause.as_millis())
            .collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.remaining_pause(now), PAUSE_MAX);
        restarts.reset();
        assert_eq!(
            (restarts.record_loss(now), restarts.remaining_pause(now)),
            (Some(Duration::ZERO), Duration::ZERO)
        );
        assert_eq!(restarts.record_loss(now), Some(PAUSE_MIN));
        assert_eq!(restarts.remaining_pause(now + PAUSE_MIN / 2), PAUSE_MIN / 2);
        assert_eq!(restarts.remaining_pause(now + PAUSE_MAX), Duration::ZERO);
    }
}
