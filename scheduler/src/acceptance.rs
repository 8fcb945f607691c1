//! Estimated probability that a drafted token of a sequence is accepted.

/// Number of drafts for which the initial estimate counts, and the estimate after a change.
const INITIAL_WEIGHT: f32 = 4.0;
/// Factor on the weight of earlier drafts in each step.
const DECAY: f32 = 0.97;
/// Weight of a draft in the moving average.
const RECENT_WEIGHT: f32 = 0.1;
/// Moving average after a step as a share of the probability: most steps end with a refused draft.
const RECENT_SHARE: f32 = 0.95;
/// Difference of the moving average from its expected value that indicates a change.
const CHANGE: f32 = 0.2;

/// Estimate of the probability that a draft is accepted if those before it are.
///
/// The share of accepted drafts among those of many steps is precise while the probability is
/// constant. A moving average over the newest drafts replaces it when the probability changes, as
/// between copied and new text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftAcceptance {
    /// Share of accepted drafts, from 0.01 to 0.99.
    pub share: f32,
    /// Number of drafts in the share, of which those of earlier steps count less.
    pub weight: f32,
    /// Moving average over the newest drafts, from 0.01 to 0.99.
    pub recent: f32,
}

impl DraftAcceptance {
    /// Creates the estimate of a sequence none of whose drafts was compared yet.
    pub const fn new(initial: f32) -> DraftAcceptance {
        DraftAcceptance { share: initial, weight: INITIAL_WEIGHT, recent: initial }
    }

    /// Adds the drafts of a step that were compared with drawn tokens: `right` ones and, if
    /// `is_refused`, a wrong one.
    pub fn record_step(&mut self, right: u32, is_refused: bool) {
        let bounded = |share: f32| share.clamp(0.01, 0.99);
        for _ in 0..right {
            self.recent += RECENT_WEIGHT * (1.0 - self.recent);
        }
        if is_refused {
            self.recent -= RECENT_WEIGHT * self.recent;
        }
        self.recent = bounded(self.recent);
        let earlier = DECAY * self.weight;
        self.weight = earlier + right as f32 + f32::from(u8::from(is_refused));
        self.share = bounded((earlier * self.share + right as f32) / self.weight);
        if (self.recent - RECENT_SHARE * self.share).abs() > CHANGE {
            *self = DraftAcceptance::new(self.recent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_share_is_found_and_a_change_is_followed() {
        let mut known = DraftAcceptance::new(0.5);
        // Three of four drafts are right.
        (0..100).for_each(|_| known.record_step(3, true));
        assert!((known.share - 0.75).abs() < 0.02, "{known:?}");
        (0..5).for_each(|_| known.record_step(8, false));
        assert!(known.share > 0.9, "{known:?}");
        (0..8).for_each(|_| known.record_step(0, true));
        assert!(known.share < 0.5, "{known:?}");
        (0..1000).for_each(|_| known.record_step(0, true));
        assert_eq!(known.share, 0.01);
    }
}
