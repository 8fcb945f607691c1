//! Skew of the routing in a mixture of experts.

use engine::routing_stats::RoutingStats;
use model::experts::Experts;
use program::routing_counts::RoutingCounts;
use serde::{Deserialize, Serialize};

/// Means over the layers, with the values that would be expected if all experts were equally
/// likely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutingReport {
    /// Number of experts of a layer.
    pub experts: u32,
    /// Rows of a decode step of a batch.
    pub rows_per_step: f64,
    /// Number of distinct experts that these rows went to.
    pub used_per_step: f64,
    pub used_if_even: f64,
    /// Number of those that the cache of experts did not have; `None` if it had none of them.
    #[serde(default)]
    pub missing_per_step: Option<f64>,
    /// Number of experts that count as the busiest: a tenth of all, rounded up.
    pub busiest: u32,
    /// Share of all rows of the run that went to the busiest experts of a layer.
    pub busiest_share: f64,
    pub busiest_share_if_even: f64,
    /// Number of rows of each expert of each layer in the whole run, which `--routing` reads.
    #[serde(default)]
    pub rows_of_experts: RoutingCounts,
    /// Lookups in the cache of experts; `None` without one.
    #[serde(default)]
    pub cache: Option<ExpertCacheReport>,
}

/// The first lookups in a cache of experts, and the fewest experts that any rule could have read
/// for them (Belady).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCacheReport {
    /// Number of experts that these lookups needed.
    pub uses: u64,
    /// Number of those that were there.
    pub hits: u64,
    pub read_bytes: u64,
    pub max_hits: u64,
    pub min_read_bytes: u64,
}

/// Compares the counted rows with an even distribution; `None` without experts or counts.
pub fn routing_report(
    experts: Option<&Experts>,
    routed: Option<&RoutingStats>,
) -> Option<RoutingReport> {
    let (experts, routed) = (experts?, routed?);
    let RoutingStats { rows_per_step, experts_per_step, missing_per_step, .. } = *routed;
    let RoutingStats { busiest, busiest_share, .. } = *routed;
    let cache = routed.cache.map(|cache| ExpertCacheReport {
        uses: cache.uses,
        hits: cache.uses - cache.missing,
        read_bytes: cache.missing_bytes,
        max_hits: cache.uses - cache.min_missing,
        min_read_bytes: cache.min_missing_bytes,
    });
    Some(RoutingReport {
        experts: routed.experts,
        rows_per_step,
        used_per_step: experts_per_step,
        used_if_even: experts.expected_distinct(rows_per_step),
        missing_per_step: Some(missing_per_step).filter(|missing| *missing < experts_per_step),
        busiest,
        busiest_share,
        busiest_share_if_even: f64::from(busiest) / f64::from(routed.experts.max(1)),
        rows_of_experts: routed.rows_of_experts.clone(),
        cache,
    })
}

/// Formats the report as a line.
pub(crate) fn format_routing(report: &RoutingReport) -> String {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let cached = report.missing_per_step.map_or_else(String::new, |missing| {
        format!(", of which the cache had {:.1}", report.used_per_step - missing)
    });
    let bound = report.cache.filter(|cache| cache.uses > 0).map_or_else(String::new, |cache| {
        let share = |hits: u64| percent(hits as f64 / cache.uses as f64);
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        format!(
            "expert cache: {} of {} uses were hits, and {:.2} GiB were read; knowing all later \
             uses, {} and {:.2} GiB\n",
            share(cache.hits),
            cache.uses,
            gib(cache.read_bytes),
            share(cache.max_hits),
            gib(cache.min_read_bytes)
        )
    });
    format!(
        "routing: a decode step of {:.1} rows went to {:.1} of {} experts of a layer (evenly: \
         {:.1}){cached}; its busiest {} had {} of its experts' rows (evenly: {})\n{bound}",
        report.rows_per_step,
        report.used_per_step,
        report.experts,
        report.used_if_even,
        report.busiest,
        percent(report.busiest_share),
        percent(report.busiest_share_if_even),
    )
}
