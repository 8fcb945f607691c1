//! Tests of the router: against the reference, equal logits, NaN logits, and independence of rows.

use crate::common::{Random, kernels};
use half::bf16;
use kernels::{Element, Kernels, RoutedExpert, RouterRules, Variant, reference};
use model::experts::{ExcludedExperts, ExpertGroups, ExpertScoring, GroupScore, ScoreSum};

const SOFTMAXES: [ExpertScoring; 3] = [
    ExpertScoring::SoftmaxTopK { renormalise: false },
    ExpertScoring::SoftmaxTopK { renormalise: true },
    ExpertScoring::TopKSoftmax,
];
const SIGMOIDS: [ExpertScoring; 2] = [
    ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused },
    ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-20) },
];

const SOFTPLUSES: [ExpertScoring; 2] = [
    ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Unused },
    ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Plus(1e-20) },
];
const GROUP_SCORES: [GroupScore; 2] = [GroupScore::SumOfTwo, GroupScore::Largest];
const EXCLUDED: [ExcludedExperts; 3] =
    [ExcludedExperts::Ineligible, ExcludedExperts::ZeroInSelection, ExcludedExperts::ZeroScore];

fn scorings() -> impl Iterator<Item = ExpertScoring> {
    SOFTMAXES.into_iter().chain(SIGMOIDS).chain(SOFTPLUSES)
}

/// Returns groups of these numbers by all rules.
fn groups_of(count: usize, per_token: usize) -> impl Iterator<Item = ExpertGroups> {
    GROUP_SCORES.into_iter().flat_map(move |score| {
        let groups = ExpertGroups { score, ..ExpertGroups::new(count, per_token) };
        EXCLUDED.into_iter().map(move |excluded| ExpertGroups { excluded, ..groups })
    })
}

fn route<T: Element>(
    kernels: &Kernels,
    (experts, top_k): (usize, usize),
    scoring: ExpertScoring,
    logits: &[T],
) -> Vec<RoutedExpert> {
    routed_by(kernels, &RouterRules::plain(experts, top_k, scoring), logits)
}

fn routed_by<T: Element>(
    kernels: &Kernels,
    rules: &RouterRules<'_>,
    logits: &[T],
) -> Vec<RoutedExpert> {
    let unwritten = RoutedExpert { expert: u32::MAX, weight: f32::NAN };
    let mut routed = vec![unwritten; logits.len() / rules.experts * rules.top_k];
    kernels.route(rules, logits, &mut routed);
    routed
}

/// Compares the routing of rows with the reference's.
fn equals_reference<T: Element>(kernels: &Kernels, rules: &RouterRules<'_>, logits: &[T]) {
    let routed = routed_by(kernels, rules, logits);
    for (row, routed) in routed.chunks(rules.top_k).enumerate() {
        let logits = &logits[row * rules.experts..][..rules.experts];
        let exact: Vec<f64> = logits.iter().map(|logit| f64::from(logit.to_f32())).collect();
        let expected = reference::route(&exact, rules);
        for (routed, (expert, weight)) in routed.iter().zip(expected) {
            let context = format!("{rules:?} row {row}");
            assert_eq!(routed.expert, expert, "{context}");
            let difference = (f64::from(routed.weight) - weight).abs();
            assert!(difference <= 2e-6 * weight, "{context}: {routed:?} {weight}");
        }
    }
}

fn check<T: Element>(kernels: &Kernels, random: &mut Random) {
    for (experts, top_k) in [(1, 1), (2, 1), (4, 2), (8, 8), (60, 4), (64, 8), (128, 8), (40, 7)] {
        for rows in [1, 3, 8, 9, 70] {
            let logits: Vec<T> =
                (0..rows * experts).map(|_| T::from_f32(random.unit() * 4.0)).collect();
            for scoring in scorings() {
                equals_reference(kernels, &RouterRules::plain(experts, top_k, scoring), &logits);
            }
        }
    }
}

#[test]
fn experts_and_weights_are_those_of_the_reference() {
    let mut random = Random::new(31);
    for threads in [1, 3] {
        let kernels = kernels(Variant::best(), threads);
        check::<f32>(&kernels, &mut random);
        // Many of these are equal.
        check::<bf16>(&kernels, &mut random);
    }
}

/// A bias and groups select experts, but have no part in their weights.
#[test]
fn biases_and_groups_select_as_in_the_reference() {
    let mut random = Random::new(57);
    let kernels = kernels(Variant::best(), 3);
    for (experts, top_k, groups, kept) in
        [(8, 2, 4, 2), (16, 6, 8, 3), (64, 8, 1, 1), (256, 8, 8, 4), (60, 4, 30, 7)]
    {
        let logits: Vec<f32> = (0..20 * experts).map(|_| random.unit() * 4.0).collect();
        // Many of these sums with scores are below zero.
        let bias: Vec<f32> = (0..experts).map(|_| random.unit()).collect();
        for scoring in scorings() {
            let plain = RouterRules { factor: 2.5, ..RouterRules::plain(experts, top_k, scoring) };
            for bias in [None, Some(bias.as_slice())] {
                for groups in [None].into_iter().chain(groups_of(groups, kept).map(Some)) {
                    equals_reference(&kernels, &RouterRules { bias, groups, ..plain }, &logits);
                }
            }
        }
    }
}

#[test]
fn among_equal_scores_lower_groups_and_experts_go_first() {
    let kernels = kernels(Variant::best(), 1);
    let groups = Some(ExpertGroups::new(4, 2));
    let plain = RouterRules::plain(8, 3, SIGMOIDS[0]);
    let routed = routed_by(&kernels, &RouterRules { groups, ..plain }, &[0.5f32; 8]);
    assert_eq!(routed.iter().map(|routed| routed.expert).collect::<Vec<_>>(), [0, 1, 2]);
    // Experts 4 and 5 have no larger score than others, but the group with the largest sum.
    let logits = [9.0f32, -9.0, 1.0, 1.0, 8.0, 8.0, -9.0, -9.0];
    let groups = Some(ExpertGroups::new(4, 1));
    let plain = RouterRules::plain(8, 2, SIGMOIDS[0]);
    let routed = routed_by(&kernels, &RouterRules { groups, ..plain }, &logits);
    assert_eq!(routed.iter().map(|routed| routed.expert).collect::<Vec<_>>(), [4, 5]);
}

/// Returns the experts that these rules select, and their weights.
fn selected(groups: ExpertGroups, bias: &[f32], logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let plain = RouterRules::plain(logits.len(), 2, SIGMOIDS[0]);
    let rules = RouterRules { groups: Some(groups), bias: Some(bias), ..plain };
    let routed = routed_by(&kernels(Variant::best(), 1), &rules, logits);
    routed.iter().map(|routed| (routed.expert, routed.weight)).unzip()
}

/// Each rule of groups changes what is selected, or its weights.
#[test]
fn each_rule_of_groups_matters() {
    let groups = ExpertGroups::new(2, 1);
    let zeros = [0.0; 6];
    // The first group has the largest score, the second the largest sum of two.
    let logits = [3.0, -4.0, -4.0, 1.0, 1.0, 0.5];
    assert_eq!(selected(groups, &zeros, &logits).0, [3, 4]);
    let largest = ExpertGroups { score: GroupScore::Largest, ..groups };
    assert_eq!(selected(largest, &zeros, &logits).0, [0, 1]);
    // One expert of the second group is above zero in the selection, the others are below.
    let (logits, bias) = ([0.0; 6], [-3.0, -2.0, -2.0, 1.0, -4.0, -4.0]);
    assert_eq!(selected(groups, &bias, &logits).0, [3, 4]);
    let excluded = |excluded| ExpertGroups { excluded, ..groups };
    let zero = excluded(ExcludedExperts::ZeroInSelection);
    assert_eq!(selected(zero, &bias, &logits), (vec![0, 3], vec![0.5, 0.5]));
    let zero = excluded(ExcludedExperts::ZeroScore);
    assert_eq!(selected(zero, &bias, &logits), (vec![0, 3], vec![0.0, 0.5]));
}

/// The score of a large logit is its root, and that of a small one does not vanish.
#[test]
fn roots_of_softplus_are_exact_for_any_logit() {
    let kernels = kernels(Variant::best(), 1);
    let logits = [1e30f32, 100.0, 0.0, -30.0, -80.0, f32::NAN];
    let routed = route(&kernels, (6, 6), SOFTPLUSES[0], &logits);
    let weights: Vec<f64> = routed.iter().map(|routed| f64::from(routed.weight)).collect();
    let expected = [1e15, 10.0, 2f64.ln().sqrt(), (-15f64).exp(), (-40f64).exp(), 0.0];
    for (weight, expected) in weights.iter().zip(expected) {
        assert!((weight - expected).abs() <= 1e-6 * expected, "{weight} {expected}");
    }
}

/// The sum of scores that are all zero does not divide them by zero if a number is added to it.
#[test]
fn scores_of_zero_have_weights_of_zero() {
    let kernels = kernels(Variant::best(), 1);
    let routed = route(&kernels, (4, 2), SIGMOIDS[1], &[-1e9f32; 4]);
    assert!(routed.iter().all(|routed| routed.weight == 0.0), "{routed:?}");
    let unsaid = [f32::NAN, 1.0, f32::NAN, f32::NAN];
    let routed = route(&kernels, (4, 2), SIGMOIDS[0], &unsaid);
    assert_eq!(routed.iter().map(|routed| routed.expert).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn of_equal_logits_the_lower_experts_go_first() {
    let kernels = kernels(Variant::best(), 1);
    let logits = [1.0f32, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0];
    let routed = route(&kernels, (8, 5), ExpertScoring::TopKSoftmax, &logits);
    let experts: Vec<u32> = routed.iter().map(|routed| routed.expert).collect();
    assert_eq!(experts, [0, 1, 2, 3, 5]);
    let routed = route(&kernels, (8, 2), ExpertScoring::TopKSoftmax, &[-0.0f32; 8]);
    assert_eq!(routed.iter().map(|routed| routed.expert).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(routed.iter().map(|routed| routed.weight).collect::<Vec<_>>(), [0.5, 0.5]);
}

#[test]
fn what_is_no_number_is_taken_last_and_every_row_names_experts_that_ascend() {
    let kernels = kernels(Variant::best(), 1);
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let rows: [([f32; 5], [u32; 3], bool); 5] = [
        ([nan, 1.0, nan, -3.0, 0.5], [1, 3, 4], false),
        ([nan, 1.0, nan, nan, 0.5], [0, 1, 4], false),
        ([nan; 5], [0, 1, 2], true),
        ([-infinite; 5], [0, 1, 2], true),
        ([0.0, infinite, 1.0, nan, -infinite], [0, 1, 2], true),
    ];
    for scoring in SOFTMAXES {
        for (logits, expected, is_nan) in rows {
            let routed = route(&kernels, (5, 3), scoring, &logits);
            let experts: Vec<u32> = routed.iter().map(|routed| routed.expert).collect();
            assert_eq!(experts, expected, "{logits:?}");
            let are_nan = routed.iter().all(|routed| routed.weight.is_nan());
            let are_finite = routed.iter().all(|routed| routed.weight.is_finite());
            assert!(if is_nan { are_nan } else { are_finite }, "{logits:?}: {routed:?}");
        }
    }
}

#[test]
fn a_row_is_routed_by_its_own_logits_alone() {
    let mut random = Random::new(4);
    let logits: Vec<f32> = random.vector(50 * 64);
    for variant in crate::common::variants("a_row_is_routed_by_its_own_logits_alone") {
        for scoring in scorings() {
            let all = route(&kernels(variant, 3), (64, 6), scoring, &logits);
            for row in [0, 7, 31, 49] {
                let alone = &logits[row * 64..][..64];
                let alone = route(&kernels(variant, 1), (64, 6), scoring, alone);
                assert_eq!(alone, all[row * 6..][..6], "{variant:?}");
            }
        }
    }
}

/// Rows have the experts of their tokens, with the weights that the same experts would have if they
/// were selected by their scores.
#[test]
fn tokens_have_their_experts() {
    let kernels = kernels(Variant::Scalar, 2);
    let (experts, top_k, rows) = (7, 3, 5);
    let logits: Vec<f32> = Random::new(4).vector(rows * experts);
    let table = [6.0, 0.0, 2.0, 5.0, 4.0, 3.0, 1.0, 2.0, 3.0];
    let tokens = [2u32, 0, 0, 1, 2];
    for scoring in SIGMOIDS.into_iter().chain(SOFTPLUSES) {
        let rules = RouterRules { factor: 1.5, ..RouterRules::plain(experts, top_k, scoring) };
        let mut routed = vec![RoutedExpert::default(); rows * top_k];
        kernels.route_tokens(&rules, &tokens, &table, &logits, &mut routed);
        for (row, token) in tokens.iter().enumerate() {
            let selected = &mut table[*token as usize * top_k..][..top_k].to_vec();
            selected.sort_by(f32::total_cmp);
            // A bias that selects these experts leaves their weights as they are.
            let mut bias = vec![-9.0; experts];
            selected.iter().for_each(|expert| bias[*expert as usize] = 9.0);
            let rules = RouterRules { bias: Some(&bias), ..rules };
            let expected = routed_by(&kernels, &rules, &logits[row * experts..][..experts]);
            assert_eq!(routed[row * top_k..][..top_k], expected[..], "{scoring:?} row {row}");
        }
    }
}
