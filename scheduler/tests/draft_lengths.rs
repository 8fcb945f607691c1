//! Simulation of the number of drafts that is chosen: sequences whose drafts are accepted with a
//! given probability, by the costs of steps of several kinds of models and machines.

use scheduler::{DraftAcceptance, Sequence, StepCostCurve, StepLimits, limit_drafts};

/// Maximum number of drafts of a sequence in a step.
const MAX_DRAFTS: u32 = 16;
/// Measured steps of a run.
const STEPS: u32 = 1_000;
/// Steps before these, in which the acceptance becomes known.
const FIRST_STEPS: u32 = 100;
/// Minimum ratio of the speed with chosen numbers of drafts to that with the best fixed number.
const MIN_RATIO: f64 = 0.97;

fn costs(points: &[(u32, u32)], draft_row_ns: u32) -> StepCostCurve {
    let mut costs = StepCostCurve { draft_row_ns, ..StepCostCurve::NONE };
    costs.points[..points.len()].copy_from_slice(points);
    costs
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// Returns a number from 0 to below 1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) >> 40) as f32 / (1 << 24) as f32
    }
}

/// Sequences that are computed together.
struct Simulation {
    costs: StepCostCurve,
    batch: u32,
    /// Probability that a draft is accepted if those before it are.
    acceptance: f32,
}

impl Simulation {
    /// Returns the tokens per second with chosen numbers of drafts, or with a `fixed` one.
    fn speed(&self, fixed: Option<u32>) -> f64 {
        let rows = self.batch * (1 + MAX_DRAFTS);
        let (logits_rows, costs) = (rows, self.costs);
        let limits = StepLimits { rows, logits_rows, target_ns: u64::MAX, costs };
        let mut random = Random(7);
        let mut known = vec![DraftAcceptance::new(0.5); self.batch as usize];
        let (mut tokens, mut ns) = (0, 0);
        for step in 0..FIRST_STEPS + STEPS {
            let sequence = |slot: u32| Sequence {
                slot,
                arrival: slot,
                num_tokens: 101,
                computed: 100,
                capacity: u32::MAX,
                logits_from: u32::MAX,
                samples_token: true,
                drafts: fixed.unwrap_or(MAX_DRAFTS),
                acceptance: known[slot as usize].share,
                is_background: false,
            };
            let mut sequences: Vec<Sequence> = (0..self.batch).map(sequence).collect();
            if fixed.is_none() {
                limit_drafts(&mut sequences, &limits, &StepCostCurve::NONE);
            }
            let mut drawn = 0;
            for (one, known) in sequences.iter().zip(&mut known) {
                let is_right = |_: &u32| random.next() < self.acceptance;
                let right = (0..one.drafts).take_while(is_right).count() as u32;
                drawn += 1 + right;
                // The last token shows whether the first draft that was not verified is right.
                let next_is_right = right == one.drafts && random.next() < self.acceptance;
                known.record_step(right + u32::from(next_is_right), !next_is_right);
            }
            if step >= FIRST_STEPS {
                let drafts = sequences.iter().map(|one| one.drafts).sum();
                tokens += drawn;
                ns += costs.step_ns(self.batch + drafts, 0) + costs.drafts_ns(drafts);
            }
        }
        f64::from(tokens) / ns as f64 * 1e9
    }
}

#[test]
fn chosen_numbers_of_drafts_are_nearly_as_fast_as_the_best_fixed_one() {
    for (name, costs) in [
        ("drives", costs(&[(1, 900_000), (128, 930_000), (512, 1_400_000)], 50_000)),
        ("a link", costs(&[(1, 100_000), (64, 104_000), (512, 300_000)], 20_000)),
        ("memory", costs(&[(1, 20_000), (4, 22_000), (16, 40_000), (512, 1_300_000)], 100_000)),
        ("computing", costs(&[(1, 10_000), (4, 34_000), (512, 4_200_000)], 100_000)),
        ("experts", costs(&[(1, 30_000), (4, 75_000), (16, 170_000), (512, 900_000)], 50_000)),
    ] {
        for batch in [1, 2, 8, 24, 64] {
            for acceptance in [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9] {
                let simulation = Simulation { costs, batch, acceptance };
                let fixed = [0, 1, 2, 3, 4, 6, 8, 12, 16];
                let best = fixed.map(|drafts| simulation.speed(Some(drafts)));
                let best = best.into_iter().fold(0.0, f64::max);
                let ratio = simulation.speed(None) / best;
                let case = format!("{name} binds, batch {batch}, acceptance {acceptance}");
                assert!(ratio >= MIN_RATIO, "{case}: {ratio:.3} of the best fixed number");
            }
        }
    }
}
