//! Number of drafted tokens that a step verifies.
//!
//! A drafted token is a row in addition to that of its sequence's newest token. Where weights bind,
//! a few more rows take hardly any more time, and each accepted draft is a token more.

use crate::costs::StepCostCurve;
use crate::sequence::{Sequence, StepLimits, attended_positions};

/// Probabilities with which the last verified draft of a sequence is accepted, together with all
/// before it, among which the most profitable is chosen for a step.
const THRESHOLDS: [f32; 14] =
    [0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02];

/// Maximum number of drafted tokens of a sequence in a step.
pub const DRAFTS_MAX: u32 = 64;

/// Lowers the drafts of each decoding sequence to those that are verified: as many as make the
/// expected time per token the shortest, within the limits of the step.
pub(crate) fn choose_drafts(sequences: &mut [Sequence], step: &StepLimits) {
    limit_drafts(sequences, step, &StepCostCurve::NONE);
}

/// Lowers the drafts of each decoding sequence to those that a draft model computes and a step then
/// verifies: as many as make the expected time per token the shortest, within the limits of the
/// step. `draft_costs` are the costs of a step of the draft model, which drafts a token of each of
/// its rows.
pub fn limit_drafts(sequences: &mut [Sequence], step: &StepLimits, draft_costs: &StepCostCurve) {
    if sequences.iter().all(|one| one.drafts == 0 || !one.can_decode()) {
        sequences.iter_mut().for_each(|one| one.drafts = 0);
        return;
    }
    let mut best_threshold = 1.0;
    let mut best = Expectation::new(sequences, best_threshold, step, draft_costs);
    for threshold in THRESHOLDS {
        let expectation = Expectation::new(sequences, threshold, step, draft_costs);
        if expectation.rows > step.rows.min(step.logits_rows) || expectation.ns > step.target_ns {
            break;
        }
        if expectation.is_faster(&best) {
            (best_threshold, best) = (threshold, expectation);
        }
    }
    sequences.iter_mut().for_each(|one| one.drafts = worthwhile_drafts(one, best_threshold).0);
}

/// Expected result of a step with the newest token of each decoding sequence and drafts.
struct Expectation {
    rows: u32,
    tokens: f64,
    /// Duration, including that of drafting; at least 1.
    ns: u64,
}

impl Expectation {
    /// Returns the expectation if drafts are verified that are accepted with at least the
    /// probability `threshold`.
    fn new(
        sequences: &[Sequence],
        threshold: f32,
        step: &StepLimits,
        draft_costs: &StepCostCurve,
    ) -> Expectation {
        let (mut rows, mut drafts, mut positions, mut tokens) = (0, 0, 0, 0.0);
        // Number of sequences by their number of drafts.
        let mut by_drafts = [0; DRAFTS_MAX as usize + 1];
        for one in sequences.iter().filter(|one| one.can_decode()) {
            let (own_drafts, accepted) = worthwhile_drafts(one, threshold);
            by_drafts[own_drafts.min(DRAFTS_MAX) as usize] += 1;
            rows += 1 + own_drafts;
            drafts += own_drafts;
            positions += attended_positions(one.computed, 1 + own_drafts);
            tokens += 1.0 + f64::from(accepted);
        }
        // Each step of the draft model has a row for every sequence that lacks drafts.
        let (mut drafting_ns, mut draft_rows) = (0u64, 0);
        for sequences in by_drafts[1..].iter().rev() {
            draft_rows += sequences;
            if draft_rows > 0 {
                drafting_ns = drafting_ns.saturating_add(draft_costs.step_ns(draft_rows, 0));
            }
        }
        let step_ns = step.costs.step_ns(rows, positions);
        let ns = step_ns.saturating_add(step.costs.drafts_ns(drafts)).saturating_add(drafting_ns);
        Expectation { rows, tokens, ns: ns.max(1) }
    }

    /// Returns true if the time per token is shorter.
    fn is_faster(&self, other: &Expectation) -> bool {
        self.tokens * other.ns as f64 > other.tokens * self.ns as f64
    }
}

/// Returns the number of a sequence's drafts that are accepted with at least the probability
/// `threshold`, and the expected number of them that are accepted.
fn worthwhile_drafts(sequence: &Sequence, threshold: f32) -> (u32, f32) {
    let (mut drafts, mut accepted, mut probability) = (0, 0.0, sequence.acceptance);
    let max_drafts = if sequence.can_decode() { sequence.drafts } else { 0 };
    while drafts < max_drafts && probability >= threshold {
        accepted += probability;
        probability *= sequence.acceptance;
        drafts += 1;
    }
    (drafts, accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::StepCostCurve;

    fn sequence(drafts: u32, acceptance: f32) -> Sequence {
        Sequence {
            slot: 0,
            arrival: 0,
            num_tokens: 101,
            computed: 100,
            capacity: u32::MAX,
            logits_from: u32::MAX,
            samples_token: true,
            drafts,
            acceptance,
            is_background: false,
        }
    }

    /// A step of one row takes 10 ms, each further one `row_us`.
    fn step(row_us: u32) -> StepLimits {
        let mut costs = StepCostCurve::NONE;
        costs.points[0] = (1, 10_000);
        costs.points[1] = (101, 10_000 + 100 * row_us);
        StepLimits { rows: 64, logits_rows: 40, target_ns: u64::MAX, costs }
    }

    fn chosen<const N: usize>(mut sequences: [Sequence; N], step: &StepLimits) -> [u32; N] {
        choose_drafts(&mut sequences, step);
        sequences.map(|one| one.drafts)
    }

    #[test]
    fn drafts_are_verified_as_far_as_they_shorten_the_time_per_token() {
        let drafts = |acceptance, row_us| chosen([sequence(16, acceptance)], &step(row_us))[0];
        // The tokens of a step with k drafts are (1 - a^(k+1)) / (1 - a), its time 10 ms + k rows.
        assert_eq!(drafts(0.5, 10_000), 0, "a row that takes as long as a step gains nothing");
        assert_eq!(drafts(0.5, 2_000), 1);
        assert_eq!(drafts(0.8, 500), 8);
        assert_eq!(drafts(0.98, 100), 16, "all");
        assert_eq!(drafts(0.0, 0), 0, "drafts that are never accepted");
    }

    #[test]
    fn drafts_that_take_time_are_fewer() {
        let drafts = |draft_us, count| {
            let mut sequences = vec![sequence(16, 0.8); count];
            let mut draft_costs = StepCostCurve::NONE;
            draft_costs.points[0] = (1, draft_us);
            draft_costs.points[1] = (64, draft_us);
            limit_drafts(&mut sequences, &step(500), &draft_costs);
            sequences.iter().map(|one| one.drafts).collect::<Vec<_>>()
        };
        assert_eq!(drafts(0, 1), [8]);
        assert_eq!(drafts(1_000, 1), [5]);
        assert_eq!(drafts(20_000, 1), [0], "a draft that takes longer than the token it may save");
        // A step of the draft model drafts a token of each sequence.
        assert!(drafts(2_000, 4)[0] >= drafts(2_000, 1)[0]);
    }

    #[test]
    fn likely_drafts_come_first_and_limits_hold() {
        let sequences = [sequence(16, 0.9), sequence(16, 0.2), sequence(0, 0.9)];
        let [likely, unlikely, none] = chosen(sequences, &step(1_000));
        assert!(likely > 4 && unlikely < 2 && none == 0, "{likely} {unlikely}");
        let limited = StepLimits { logits_rows: 12, ..step(0) };
        let drafts: u32 = chosen([sequence(16, 0.95); 3], &limited).iter().sum();
        assert!(drafts > 0 && drafts <= 9, "{drafts}");
        let short = StepLimits { target_ns: 12_000_000, ..step(1_000) };
        assert_eq!(chosen([sequence(16, 0.9)], &short), [2]);
    }

    #[test]
    fn a_sequence_whose_prompt_is_computed_has_no_drafts() {
        let prompt = Sequence { computed: 50, ..sequence(16, 0.9) };
        assert_eq!(chosen([prompt, sequence(16, 0.98)], &step(0)), [0, 16]);
    }
}
