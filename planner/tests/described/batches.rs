//! `--batches auto` compared with a sweep by hand.

use planner::policy::name::PolicyName;
use planner::search::best_batches;

use super::cases::{PlacementCase, layers_of, plain_machine, runs_all_cases};

const SEQUENCES_MAX: usize = 256;
const SIZE_MAX: u16 = 64;

/// Returns the tokens/s of the best placement with the given batches; `None` if nothing fits.
fn rate(case: &PlacementCase, batches: (u16, u16)) -> Option<f64> {
    let case = PlacementCase { batches, ..case.clone() };
    case.choose(PolicyName::Auto).ok().map(|chosen| chosen.tokens_per_s())
}

fn cases() -> Vec<PlacementCase> {
    let mut small_card = plain_machine();
    small_card.memory.vram_gib = 1.0;
    vec![
        PlacementCase::new(small_card, layers_of("opt-1.3b", 6), (1, 1)),
        PlacementCase::new(plain_machine(), layers_of("opt-125m", 4), (1, 1)),
    ]
}

#[test]
fn what_is_chosen_is_within_a_twentieth_of_the_best_of_a_sweep() {
    let left_out = if runs_all_cases() { 0 } else { 1 };
    for case in cases().into_iter().skip(left_out) {
        let chosen = case.with_question(PolicyName::Auto, |question| {
            best_batches(&question, SEQUENCES_MAX, SIZE_MAX).expect("something fits")
        });
        let chosen_rate = rate(&case, chosen).expect("it fits");
        let mut best = (0.0, (0, 0));
        let sizes = if runs_all_cases() { &[4, 32, 64][..] } else { &[4, 64] };
        for count in [1, 4] {
            for &size in sizes {
                if usize::from(count) * usize::from(size) > SEQUENCES_MAX {
                    continue;
                }
                if let Some(rate) = rate(&case, (count, size)).filter(|rate| *rate > best.0) {
                    best = (rate, (count, size));
                }
            }
        }
        let what = format!("{} {chosen:?} {chosen_rate}, best {best:?}", case.config.name);
        assert!(best.0 <= 1.05 * chosen_rate, "{what}");
    }
}
