//! Router of a mixture of experts: computes the experts of each row and their weights from logits.
//! Plain code, identical in every variant; a row's routing depends on its own logits alone.

use model::experts::ExpertScoring;

use crate::Kernels;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Rows of one task.
const TASK_ROWS: usize = 8;

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

impl Kernels {
    /// Writes the `top_k` experts of each row of `logits` `[rows, experts]` to `routed` `[rows,
    /// top_k]`, in ascending order of experts. Among equal logits the lower expert's comes first.
    /// NaN counts as minus infinity; if a row's largest logit is infinite, all its weights are NaN.
    /// The weights are multiplied by `factor`.
    ///
    /// # Panics
    /// If a row has more experts than there are, or lengths do not agree.
    pub fn route<T: Number>(
        &self,
        experts: usize,
        top_k: usize,
        scoring: ExpertScoring,
        factor: f32,
        logits: &[T],
        routed: &mut [RoutedExpert],
    ) {
        assert!((1..=experts).contains(&top_k), "{top_k} of {experts} experts");
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
                route_row(scoring, factor, logits, routed);
            }
        });
    }
}

/// Routes one row; see [`Kernels::route`].
fn route_row<T: Number>(
    scoring: ExpertScoring,
    factor: f32,
    logits: &[T],
    routed: &mut [RoutedExpert],
) {
    let logits = || logits.iter().map(|logit| lowest_if_nan(logit.to_f32()));
    largest(logits(), routed);
    let max_weight = routed[0].weight;
    routed.sort_unstable_by_key(|routed| routed.expert);
    for routed in routed.iter_mut() {
        routed.weight = (routed.weight - max_weight).exp();
    }
    let own_sum =
        |routed: &[RoutedExpert]| routed.iter().fold(0.0, |sum, routed| sum + routed.weight);
    let sum = match scoring {
        ExpertScoring::TopKSoftmax => own_sum(routed),
        ExpertScoring::SoftmaxTopK { .. } => {
            logits().fold(0.0, |sum, logit| sum + (logit - max_weight).exp())
        }
    };
    routed.iter_mut().for_each(|routed| routed.weight /= sum);
    if scoring == (ExpertScoring::SoftmaxTopK { renormalise: true }) {
        let sum = own_sum(routed);
        routed.iter_mut().for_each(|routed| routed.weight /= sum);
    }
    routed.iter_mut().for_each(|routed| routed.weight *= factor);
}

fn lowest_if_nan(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Writes the largest logits as weights of their experts, the largest first, and the lower expert's
/// first among equal ones.
fn largest(logits: impl Iterator<Item = f32>, routed: &mut [RoutedExpert]) {
    let last = routed.len() - 1;
    for (expert, logit) in logits.enumerate() {
        let full = expert > last;
        if full && routed[last].weight >= logit {
            continue;
        }
        let before = &routed[..expert.min(routed.len())];
        let at = before.partition_point(|entry| entry.weight >= logit);
        let end = if full { last } else { expert };
        routed.copy_within(at..end, at + 1);
        routed[at] = RoutedExpert { expert: expert as u32, weight: logit };
    }
}
