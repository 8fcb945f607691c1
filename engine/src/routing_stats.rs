//! Choices of the routers in a run, as counted by the workers in the step table.

use program::ir::Instruction;
use program::plan::Plan;
use program::routing_counts::{PinnedExpert, RoutingCounts};
use program::routing_log::{LOG_IS_FULL, LoggedUse};
use program::step_table::ROUTER_SUMS;
use scheduler::expert_cache::bound::ExpertUses;
use shm::SharedU32s;

/// Distribution of rows over experts: means over the layers.
#[derive(Debug, Clone, PartialEq)]
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
    /// Number of rows of each expert of each layer in the whole run.
    pub rows_of_experts: RoutingCounts,
    /// Lookups in a cache of experts; `None` without one.
    pub cache: Option<ExpertCacheStats>,
}

/// The first lookups of a run in its cache of experts, as many as the step table logs, and what the
/// best rule would have read for them, which gives up the experts that are used last (Belady).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertCacheStats {
    /// Number of needed experts.
    pub uses: u64,
    /// Number of those that the cache did not have, and their bytes.
    pub missing: u64,
    pub missing_bytes: u64,
    /// Number of needed experts that the best rule would lack, and their bytes, of a cache with as
    /// many slots that has the pinned experts at the start.
    pub min_missing: u64,
    pub min_missing_bytes: u64,
}

impl ExpertCacheStats {
    /// Reads the log; returns `None` if there is none.
    fn read(plan: &Plan, words: &SharedU32s) -> Option<ExpertCacheStats> {
        let (first, capacity) = (plan.table.routing_log(), plan.table.routers.logged);
        if capacity == 0 {
            return None;
        }
        let count = (words.load(first) & !LOG_IS_FULL).min(capacity) as usize;
        let uses = (0..count).map(|place| LoggedUse::from_word(words.load(first + 1 + place)));
        let layer_bytes: Vec<u64> =
            (0..plan.config.num_layers).map(|l| read_bytes(plan, l)).collect();
        Some(ExpertCacheStats::from_log(
            uses,
            plan.map.expert_slots as usize,
            &plan.map.pinned_experts,
            &layer_bytes,
        ))
    }

    /// Computes the numbers of a log, given the bytes of an expert of each layer.
    fn from_log(
        log: impl Iterator<Item = LoggedUse>,
        slots: usize,
        pinned: &[PinnedExpert],
        layer_bytes: &[u64],
    ) -> ExpertCacheStats {
        let bytes = |layer: usize| layer_bytes.get(layer).copied().unwrap_or(0);
        let (mut stats, mut uses) = (ExpertCacheStats::default(), ExpertUses::default());
        for (place, one) in log.enumerate() {
            if one.is_first || place == 0 {
                uses.begin_lookup();
            }
            uses.push(one.key());
            stats.uses += 1;
            if one.is_missing {
                stats.missing += 1;
                stats.missing_bytes += bytes(one.layer.into());
            }
        }
        let key = |one: &PinnedExpert| {
            LoggedUse { layer: one.layer, expert: one.expert, is_missing: false, is_first: false }
                .key()
        };
        let initial: Vec<u32> = pinned.iter().map(key).collect();
        uses.min_missing(slots, &initial, |key| {
            stats.min_missing += 1;
            stats.min_missing_bytes += bytes((key >> 16) as usize);
        });
        stats
    }
}

/// Returns the bytes that are read of an expert of a layer into the cache; 0 if none are.
fn read_bytes(plan: &Plan, layer: usize) -> u64 {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let mut reads = lists.flat_map(|list| &list.instructions).filter_map(|work| match work {
        Instruction::Read(read) if read.at.layer.map(usize::from) == Some(layer) => Some(read),
        _ => None,
    });
    let cached = reads.find(|read| plan.expert_cache_of(read.to.buffer).is_some());
    let record = cached.and_then(|read| {
        Some(plan.expert_record(read.at.layer, read.expert_ops())?.slot_bytes(read.expert_ops()))
    });
    record.unwrap_or(0)
}

impl RoutingStats {
    /// Reads the counts; returns `None` if nothing was counted.
    pub(super) fn read(plan: &Plan, words: &SharedU32s) -> Option<RoutingStats> {
        let layout = &plan.table;
        let of_layer = |layer| {
            let first = layout.router(layer);
            let count = ROUTER_SUMS + layout.routers.experts as usize;
            (first..first + count).map(|word| words.load(word)).collect()
        };
        let layers: Vec<Vec<u32>> = (0..layout.routers.layers as usize).map(of_layer).collect();
        let stats = RoutingStats::from_layers(layout.routers.experts, &layers)?;
        Some(RoutingStats { cache: ExpertCacheStats::read(plan, words), ..stats })
    }

    /// Computes the distribution from the words of each layer.
    fn from_layers(experts: u32, layers: &[Vec<u32>]) -> Option<RoutingStats> {
        let sum = |word: usize| layers.iter().map(|words| u64::from(words[word])).sum::<u64>();
        let [steps, rows, used, missing] = std::array::from_fn::<u64, ROUTER_SUMS, _>(sum);
        let busiest = experts.div_ceil(10);
        let rows_of = |words: &[u32]| words[ROUTER_SUMS..].iter().map(|r| u64::from(*r)).collect();
        let mut shares = Vec::new();
        for words in layers {
            let mut rows: Vec<u64> = rows_of(words);
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
            rows_of_experts: RoutingCounts {
                layers: layers.iter().map(|words| rows_of(words)).collect(),
            },
            cache: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_by_hand() {
        // Layers 0 and 1 in turn, each with one expert, and a cache of one.
        let log = [(0, 1, true), (1, 5, true), (0, 1, true), (1, 6, true), (0, 1, true)];
        let uses = log.map(|(layer, expert, is_missing)| LoggedUse {
            layer,
            expert,
            is_missing,
            is_first: true,
        });
        let stats = ExpertCacheStats::from_log(uses.into_iter(), 1, &[], &[100, 7]);
        // The best rule keeps expert 1 of layer 0.
        let expected = ExpertCacheStats {
            uses: 5,
            missing: 5,
            missing_bytes: 314,
            min_missing: 3,
            min_missing_bytes: 114,
        };
        assert_eq!(stats, expected);
        let pinned = [PinnedExpert { layer: 0, expert: 1 }];
        let warm = ExpertCacheStats::from_log(uses.into_iter(), 1, &pinned, &[100, 7]);
        assert_eq!((warm.min_missing, warm.min_missing_bytes), (2, 14));
    }

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
