//! Measured routing: how often the rows of a run were routed to each expert.

use model::experts::Experts;
use serde::{Deserialize, Serialize};

/// Number of rows that were routed to each expert, by layer; a layer without experts has only
/// zeros.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoutingCounts {
    pub layers: Vec<Vec<u64>>,
}

/// An expert that stays in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PinnedExpert {
    pub layer: u16,
    pub expert: u16,
}

/// Probabilities that a row is routed to each expert of a layer: the mean over the layers, in
/// descending order, in millionths. Empty if all experts are equally likely.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoutingSkew {
    millionths: Vec<u32>,
}

const MILLION: f64 = 1e6;

impl RoutingCounts {
    /// Returns the skew of rows that are routed to `per_token` experts of each layer.
    pub fn skew(&self, per_token: usize) -> RoutingSkew {
        let counted: Vec<Vec<f64>> = self
            .layers
            .iter()
            .filter_map(|rows| {
                let all: f64 = rows.iter().map(|rows| *rows as f64).sum();
                let probability = |rows: &u64| (*rows as f64 * per_token as f64 / all).min(1.0);
                let mut sorted: Vec<f64> = rows.iter().map(probability).collect();
                sorted.sort_by(|a, b| b.total_cmp(a));
                (all > 0.0).then_some(sorted)
            })
            .collect();
        let count = counted.iter().map(Vec::len).max().unwrap_or(0);
        let mean = |rank: usize| {
            let sum: f64 = counted.iter().filter_map(|layer| layer.get(rank)).sum();
            (MILLION * sum / counted.len() as f64).round() as u32
        };
        RoutingSkew { millionths: (0..count).map(mean).collect() }
    }

    /// Returns up to `count` experts of the layers with `is_candidate` to which the largest shares
    /// of their layers' rows were routed, in ascending order. An expert without rows is not among
    /// them.
    pub fn hottest(&self, count: usize, is_candidate: impl Fn(u16) -> bool) -> Vec<PinnedExpert> {
        let mut all = Vec::new();
        for (layer, rows) in (0..).zip(&self.layers).filter(|(layer, _)| is_candidate(*layer)) {
            let sum = rows.iter().map(|rows| *rows as f64).sum::<f64>();
            let used = (0..).zip(rows).filter(|(_, rows)| **rows > 0);
            all.extend(
                used.map(|(expert, rows)| (*rows as f64 / sum, PinnedExpert { layer, expert })),
            );
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(count);
        let mut hottest: Vec<PinnedExpert> = all.into_iter().map(|(_, expert)| expert).collect();
        hottest.sort_unstable();
        hottest
    }
}

impl RoutingSkew {
    /// Returns true if all experts are taken to be equally likely.
    pub const fn is_even(&self) -> bool {
        self.millionths.is_empty()
    }

    /// Returns the number of experts of a layer that were counted; 0 if all are equally likely.
    pub const fn experts(&self) -> usize {
        self.millionths.len()
    }

    /// Returns the expected number of distinct experts of a layer that `rows` rows use, if the rows
    /// are routed independently of each other.
    pub fn expected_distinct(&self, experts: &Experts, rows: f64) -> f64 {
        if self.is_even() {
            return experts.expected_distinct(rows);
        }
        let used = |millionths: &u32| 1.0 - (1.0 - f64::from(*millionths) / MILLION).powf(rows);
        self.millionths.iter().map(used).sum()
    }

    /// Returns the expected share of a layer's experts that `rows` rows use.
    pub fn expected_share(&self, experts: &Experts, rows: f64) -> f64 {
        self.expected_distinct(experts, rows) / experts.count as f64
    }
}

#[cfg(test)]
mod tests {
    use model::experts::ExpertScoring;

    use super::*;

    fn pinned(layer: u16, expert: u16) -> PinnedExpert {
        PinnedExpert { layer, expert }
    }

    #[test]
    fn skew_by_hand() {
        // Rows go to two of four experts: always to the last, and half the time to two others.
        let counts = RoutingCounts { layers: vec![vec![0, 5, 5, 10], vec![0; 4]] };
        let experts = Experts::new(4, 2, 8, ExpertScoring::TopKSoftmax);
        let skew = counts.skew(2);
        assert_eq!(skew.millionths, [1_000_000, 500_000, 500_000, 0]);
        assert_eq!(skew.expected_distinct(&experts, 1.0), 2.0);
        assert_eq!(skew.expected_distinct(&experts, 2.0), 2.5);
        assert_eq!(skew.expected_share(&experts, 2.0), 0.625);
        let even = RoutingSkew::default();
        assert_eq!(even.expected_distinct(&experts, 2.0), 3.0);
        // Counts without skew are priced like none.
        let level = RoutingCounts { layers: vec![vec![7; 4]] }.skew(2);
        assert!((level.expected_distinct(&experts, 3.0) - 3.5).abs() < 1e-5);
    }

    #[test]
    fn the_hottest_experts_are_those_of_the_largest_shares() {
        // The second layer counted more rows.
        let layers = vec![vec![6, 4, 0], vec![50, 10, 40], vec![1, 0, 0]];
        let counts = RoutingCounts { layers };
        let first_two = |layer: u16| layer < 2;
        assert_eq!(counts.hottest(2, first_two), [pinned(0, 0), pinned(1, 0)]);
        assert_eq!(counts.hottest(3, first_two), [pinned(0, 0), pinned(0, 1), pinned(1, 0)]);
        assert_eq!(counts.hottest(1, |_| true), [pinned(2, 0)]);
        assert_eq!(counts.hottest(9, first_two).len(), 5, "an unused expert is not kept");
    }
}
