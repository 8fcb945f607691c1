//! Choices of the routers in a run, as counted by the workers in the step table.

use program::step_table::{ROUTER_SUMS, StepTableLayout};
use shm::SharedU32s;

/// Distribution of rows over experts: means over the layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingStats {
    /// Number of experts of a layer.
    pub experts: u32,
    /// Number of decode steps of a layer, over all layers.
    pub counted_steps: u64,
    /// Number of rows of a batch in a decode step.
    pub rows_per_step: f64,
    /// Number of distinct experts to which such a step is routed.
    pub experts_per_step: f64,
    /// Number of those that a cache of experts did not have; all of them if there is no cache.
    pub missing_per_step: f64,
    /// Number of experts considered the busiest: a tenth of them, rounded up.
    pub busiest: u32,
    /// Share of the rows of the whole run that were routed to the busiest experts of each layer.
    pub busiest_share: f64,
}

impl RoutingStats {
    /// Reads the counts; returns `None` if nothing was counted.
    pub(super) fn read(layout: &StepTableLayout, words: &SharedU32s) -> Option<RoutingStats> {
        let of_layer = |layer| {
            let first = layout.router(layer);
            let count = ROUTER_SUMS + layout.routers.experts as usize;
            (first..first + count).map(|word| words.load(word)).collect()
        };
        let layers: Vec<Vec<u32>> = (0..layout.routers.layers as usize).map(of_layer).collect();
        RoutingStats::from_layers(layout.routers.experts, &layers)
    }

    /// Computes the distribution from the words of each layer.
    fn from_layers(experts: u32, layers: &[Vec<u32>]) -> Option<RoutingStats> {
        let sum = |word: usize| layers.iter().map(|words| u64::from(words[word])).sum::<u64>();
        let [steps, rows, used, missing] = std::array::from_fn::<u64, ROUTER_SUMS, _>(sum);
        let busiest = experts.div_ceil(10);
        let mut shares = Vec::new();
        for words in layers {
            let mut rows: Vec<u64> = words[ROUTER_SUMS..].iter().map(|r| u64::from(*r)).collect();
            rows.sort_unstable_by(|a, b| b.cmp(a));
            let all: u64 = rows.iter().sum();
            let busiest_rows: u64 = rows[..busiest as usize].iter().sum();
            shares.extend((all > 0).then(|| busiest_rows as f64 / all as f64));
        }
        let mean = |sum: u64| sum as f64 / steps as f64;
        (steps > 0 && !shares.is_empty()).then(|| RoutingStats {
            experts,
            counted_steps: steps,
            rows_per_step: mean(rows),
            experts_per_step: mean(used),
            missing_per_step: mean(missing),
            busiest,
            busiest_share: shares.iter().sum::<f64>() / shares.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::RoutingStats;

    #[test]
    fn means_by_hand() {
        // Two layers of eleven experts, two steps of three rows each: the first layer routes them
        // to five and three experts, the second to one expert each time.
        let mut even = vec![2, 6, 8, 3];
        even.extend([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
        let mut skewed = vec![2, 6, 2, 0];
        skewed.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
        let routed = RoutingStats::from_layers(11, &[even, skewed]).expect("counted");
        assert_eq!((routed.rows_per_step, routed.experts_per_step), (3.0, 2.5));
        assert_eq!(routed.missing_per_step, 0.75);
        assert_eq!((routed.busiest, routed.busiest_share), (2, (2.0 / 6.0 + 1.0) / 2.0));
        assert_eq!(RoutingStats::from_layers(11, &[vec![0; 15]]), None);
        assert_eq!(RoutingStats::from_layers(0, &[]), None);
    }
}
