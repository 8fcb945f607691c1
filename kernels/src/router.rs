//! Router of a mixture of experts: computes the experts of each row and their weights from logits.
//! Plain code, identical in every variant; a row's routing depends on its own logits alone.

use model::experts::{
    EXPERT_GROUPS_MAX, ExcludedExperts, ExpertGroups, ExpertScoring, GroupScore, ScoreSum,
};

use crate::Kernels;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Rows of one task.
const TASK_ROWS: usize = 8;
/// Lower bound of the sum that renormalises a softmax.
const SUM_MIN: f32 = 1e-12;

/// An expert of a row, and the factor of its output.
#[derive(Debug, Clone, Copy, PartialEq, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct RoutedExpert {
    pub expert: u32,
    pub weight: f32,
}

/// The experts of some rows.
#[derive(Debug, Clone, Copy)]
pub struct Routing<'a> {
    /// Total number of experts.
    pub experts: usize,
    /// Number of experts of a row.
    pub top_k: usize,
    /// `[rows, top_k]`, each row's in ascending order of experts.
    pub routed: &'a [RoutedExpert],
}

impl Routing<'_> {
    /// Returns the number of routed rows.
    ///
    /// # Panics
    /// If the entries are not whole rows, or a row names an expert twice, out of order or out of
    /// range.
    pub(crate) fn rows(&self) -> usize {
        let Routing { experts, top_k, routed } = *self;
        assert!(top_k >= 1, "a row has an expert");
        assert_eq!(routed.len() % top_k, 0, "routed is [rows, top_k]");
        for row in routed.chunks_exact(top_k) {
            let is_ascending = row.windows(2).all(|pair| pair[0].expert < pair[1].expert);
            let is_inside = row.iter().all(|routed| (routed.expert as usize) < experts);
            assert!(is_ascending && is_inside, "a row's experts exist and ascend");
        }
        routed.len() / top_k
    }
}

/// Rules by which a row's experts follow from its logits.
#[derive(Debug, Clone, Copy)]
pub struct RouterRules<'a> {
    /// Total number of experts.
    pub experts: usize,
    /// Number of experts of a row.
    pub top_k: usize,
    pub scoring: ExpertScoring,
    /// Added to the scores of all experts for the selection alone, `[experts]`.
    pub bias: Option<&'a [f32]>,
    pub groups: Option<ExpertGroups>,
    /// Factor of all weights.
    pub factor: f32,
}

impl RouterRules<'_> {
    /// Returns rules without a bias, groups or a factor.
    pub fn plain(experts: usize, top_k: usize, scoring: ExpertScoring) -> RouterRules<'static> {
        RouterRules { experts, top_k, scoring, bias: None, groups: None, factor: 1.0 }
    }

    fn check(&self) {
        let RouterRules { experts, top_k, bias, groups, .. } = *self;
        assert!((1..=experts).contains(&top_k), "{top_k} of {experts} experts");
        assert!(bias.is_none_or(|bias| bias.len() == experts), "a bias for each expert");
        let error = groups.and_then(|groups| groups.error(experts, top_k));
        assert!(error.is_none(), "{groups:?}: {error:?}");
    }
}

impl Kernels {
    /// Writes the `top_k` experts of each row of `logits` `[rows, experts]` to `routed` `[rows,
    /// top_k]`, in ascending order of experts. Among equal scores the lower expert's comes first,
    /// and the lower group's among equal groups. NaN counts as minus infinity; if a row's largest
    /// logit is infinite and weights are a softmax, all its weights are NaN.
    ///
    /// # Panics
    /// If a row has more experts than there are, or lengths do not agree.
    pub fn route<T: Number>(
        &self,
        rules: &RouterRules<'_>,
        logits: &[T],
        routed: &mut [RoutedExpert],
    ) {
        rules.check();
        let RouterRules { experts, top_k, .. } = *rules;
        assert_eq!(logits.len() % experts, 0, "logits is [rows, experts]");
        let rows = logits.len() / experts;
        assert_eq!(routed.len(), rows * top_k, "routed is [rows, top_k]");
        let routed = SharedPointer(routed.as_mut_ptr());
        self.run_sized(rows.div_ceil(TASK_ROWS), size_of_val(logits), &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                // SAFETY: this number of entries of this row is within `routed`, and no other task
                // writes them.
                let routed = unsafe {
                    std::slice::from_raw_parts_mut(routed.pointer().add(row * top_k), top_k)
                };
                let logits = &logits[row * experts..][..experts];
                route_row(rules, logits, routed);
            }
        });
    }
}

impl Kernels {
    /// Writes the experts of each row to `routed` like [`Kernels::route`], but those that `table`
    /// `[*, top_k]` has for the row's token, whatever their scores.
    ///
    /// # Panics
    /// If a token is not in the table, a scoring is not of each logit by itself, or lengths do not
    /// agree.
    pub fn route_tokens(
        &self,
        rules: &RouterRules<'_>,
        tokens: &[u32],
        table: &[f32],
        logits: &[f32],
        routed: &mut [RoutedExpert],
    ) {
        rules.check();
        let RouterRules { experts, top_k, .. } = *rules;
        assert_eq!(logits.len(), tokens.len() * experts, "logits is [rows, experts]");
        assert_eq!(routed.len(), tokens.len() * top_k, "routed is [rows, top_k]");
        let rows = logits.chunks_exact(experts).zip(routed.chunks_exact_mut(top_k));
        for (token, (logits, routed)) in tokens.iter().zip(rows) {
            let selected = &table[*token as usize * top_k..][..top_k];
            for (routed, expert) in routed.iter_mut().zip(selected) {
                routed.expert = *expert as u32;
            }
            routed.sort_unstable_by_key(|routed| routed.expert);
            weigh_row(rules, logits, routed);
        }
    }
}

/// Computes the weights of a row's experts; see [`Kernels::route_tokens`].
fn weigh_row(rules: &RouterRules<'_>, logits: &[f32], routed: &mut [RoutedExpert]) {
    let logit = |expert: u32| lowest_if_nan(logits[expert as usize]);
    let (score, sum): (fn(f32) -> f32, ScoreSum) = match rules.scoring {
        ExpertScoring::SigmoidTopK { sum } => (sigmoid, sum),
        ExpertScoring::SqrtSoftplusTopK { sum } => (|logit| softplus(logit).sqrt(), sum),
        other => panic!("{other:?} is no scoring of each logit by itself"),
    };
    routed.iter_mut().for_each(|routed| routed.weight = score(logit(routed.expert)));
    renormalise(sum, routed);
    routed.iter_mut().for_each(|routed| routed.weight *= rules.factor);
}

/// Routes one row; see [`Kernels::route`].
fn route_row<T: Number>(rules: &RouterRules<'_>, logits: &[T], routed: &mut [RoutedExpert]) {
    let logit = |expert: usize| lowest_if_nan(logits[expert].to_f32());
    match rules.scoring {
        ExpertScoring::SigmoidTopK { sum } => {
            score_each(rules, |expert| sigmoid(logit(expert)), sum, routed);
        }
        ExpertScoring::SqrtSoftplusTopK { sum } => {
            score_each(rules, |expert| softplus(logit(expert)).sqrt(), sum, routed);
        }
        ExpertScoring::SoftmaxTopK { .. } | ExpertScoring::TopKSoftmax => {
            softmax(rules, logit, routed);
        }
    }
    routed.iter_mut().for_each(|routed| routed.weight *= rules.factor);
}

/// Selects the experts of a row and computes their weights by scores that depend on their own
/// logits alone.
fn score_each(
    rules: &RouterRules<'_>,
    score: impl Fn(usize) -> f32,
    sum: ScoreSum,
    routed: &mut [RoutedExpert],
) {
    let chosen = select(rules, &score, routed);
    for routed in routed.iter_mut() {
        routed.weight = score(routed.expert as usize);
    }
    chosen.zero_excluded(routed);
    renormalise(sum, routed);
}

fn renormalise(sum: ScoreSum, routed: &mut [RoutedExpert]) {
    if let ScoreSum::Plus(epsilon) = sum {
        let sum = sum_of_weights(routed) + epsilon;
        routed.iter_mut().for_each(|routed| routed.weight /= sum);
    }
}

/// Selects the experts of a row and computes their weights by a softmax.
fn softmax(rules: &RouterRules<'_>, logit: impl Fn(usize) -> f32, routed: &mut [RoutedExpert]) {
    let logits = || (0..rules.experts).map(&logit);
    let largest = logits().fold(f32::NEG_INFINITY, f32::max);
    let sum_of_all = || logits().fold(0.0, |sum, logit| sum + (logit - largest).exp());
    let chosen = if rules.bias.is_none() && rules.groups.is_none() {
        // Softmax preserves the order.
        select(rules, &logit, routed)
    } else {
        let sum = sum_of_all();
        select(rules, |expert| (logit(expert) - largest).exp() / sum, routed)
    };
    for routed in routed.iter_mut() {
        routed.weight = (logit(routed.expert as usize) - largest).exp();
    }
    chosen.zero_excluded(routed);
    let sum = match rules.scoring {
        ExpertScoring::TopKSoftmax => sum_of_weights(routed),
        _ => sum_of_all(),
    };
    routed.iter_mut().for_each(|routed| routed.weight /= sum);
    if rules.scoring == (ExpertScoring::SoftmaxTopK { renormalise: true }) {
        // The bound matters only if a bias or groups select experts with hardly any weight.
        let sum = sum_of_weights(routed).max(SUM_MIN);
        routed.iter_mut().for_each(|routed| routed.weight /= sum);
    }
}

/// Groups that a row selects its experts from.
struct ChosenGroups {
    groups: Option<ExpertGroups>,
    /// Number of experts in a group.
    size: usize,
    /// A bit for each chosen group.
    bits: u64,
}

impl ChosenGroups {
    /// Returns true if an expert is in one of the groups.
    fn contains(&self, expert: usize) -> bool {
        self.groups.is_none() || self.bits >> (expert / self.size) & 1 == 1
    }

    /// Sets the weights of experts in other groups to zero if their score is.
    fn zero_excluded(&self, routed: &mut [RoutedExpert]) {
        let excluded = self.groups.map(|groups| groups.excluded);
        if excluded == Some(ExcludedExperts::ZeroScore) {
            let others = routed.iter_mut().filter(|routed| !self.contains(routed.expert as usize));
            others.for_each(|routed| routed.weight = 0.0);
        }
    }
}

/// Writes the experts with the largest sums of score and bias, in ascending order of experts, and
/// returns the groups that they are selected from.
fn select(
    rules: &RouterRules<'_>,
    score: impl Fn(usize) -> f32,
    routed: &mut [RoutedExpert],
) -> ChosenGroups {
    let choice = |expert: usize| match rules.bias {
        Some(bias) => lowest_if_nan(score(expert) + bias[expert]),
        None => lowest_if_nan(score(expert)),
    };
    let experts = 0..rules.experts;
    let chosen = match rules.groups {
        None => ChosenGroups { groups: None, size: rules.experts, bits: 0 },
        Some(groups) => choose_groups(groups, rules.experts / groups.count, &choice),
    };
    match rules.groups.map(|groups| groups.excluded) {
        None => largest(experts.map(|expert| (expert, choice(expert))), routed),
        Some(ExcludedExperts::Ineligible) => {
            let eligible = experts.filter(|expert| chosen.contains(*expert));
            largest(eligible.map(|expert| (expert, choice(expert))), routed);
        }
        Some(ExcludedExperts::ZeroInSelection | ExcludedExperts::ZeroScore) => {
            let choice = |expert| if chosen.contains(expert) { choice(expert) } else { 0.0 };
            largest(experts.map(|expert| (expert, choice(expert))), routed);
        }
    }
    routed.sort_unstable_by_key(|routed| routed.expert);
    chosen
}

/// Returns the groups with the largest scores.
fn choose_groups(
    groups: ExpertGroups,
    size: usize,
    choice: &impl Fn(usize) -> f32,
) -> ChosenGroups {
    let mut scores = [RoutedExpert::default(); EXPERT_GROUPS_MAX];
    let score_of = |group: usize| {
        let mut two = [RoutedExpert::default(); 2];
        let count = match groups.score {
            GroupScore::SumOfTwo => 2,
            GroupScore::Largest => 1,
        };
        let members = group * size..(group + 1) * size;
        largest(members.map(|expert| (expert, choice(expert))), &mut two[..count]);
        two[..count].iter().map(|member| member.weight).sum::<f32>()
    };
    let chosen = &mut scores[..groups.per_token];
    largest((0..groups.count).map(|group| (group, score_of(group))), chosen);
    let bits = chosen.iter().fold(0, |bits, group| bits | 1 << group.expert);
    ChosenGroups { groups: Some(groups), size, bits }
}

fn sum_of_weights(routed: &[RoutedExpert]) -> f32 {
    routed.iter().fold(0.0, |sum, routed| sum + routed.weight)
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Computes `ln(1 + e^logit)` without an exponential that overflows.
fn softplus(logit: f32) -> f32 {
    logit.max(0.0) + (-logit.abs()).exp().ln_1p()
}

fn lowest_if_nan(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Writes the largest of the scores, which are given in ascending order of experts, as weights of
/// their experts, the largest first, and the lower expert's first among equal ones.
fn largest(scores: impl Iterator<Item = (usize, f32)>, routed: &mut [RoutedExpert]) {
    let last = routed.len() - 1;
    for (count, (expert, score)) in scores.enumerate() {
        let full = count > last;
        if full && routed[last].weight >= score {
            continue;
        }
        let before = &routed[..count.min(routed.len())];
        let at = before.partition_point(|entry| entry.weight >= score);
        let end = if full { last } else { count };
        routed.copy_within(at..end, at + 1);
        routed[at] = RoutedExpert { expert: expert as u32, weight: score };
    }
}
