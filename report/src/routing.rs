//! Skew of the routing in a mixture of experts.

use engine::routing_stats::RoutingStats;
use model::experts::Experts;
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
}

/// Compares the counted rows with an even distribution; `None` without experts or counts.
pub fn routing_report(
    experts: Option<&Experts>,
    routed: Option<&RoutingStats>,
) -> Option<RoutingReport> {
    let (experts, routed) = (experts?, routed?);
    let RoutingStats { rows_per_step, experts_per_step, missing_per_step, .. } = *routed;
    let RoutingStats { busiest, busiest_share, .. } = *routed;
    Some(RoutingReport {
        experts: routed.experts,
        rows_per_step,
        used_per_step: experts_per_step,
        used_if_even: experts.expected_distinct(rows_per_step),
        missing_per_step: Some(missing_per_step).filter(|missing| *missing < experts_per_step),
        busiest,
        busiest_share,
        busiest_share_if_even: f64::from(busiest) / f64::from(routed.experts.max(1)),
    })
}

/// Formats the report as a line.
pub(crate) fn format_routing(report: &RoutingReport) -> String {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let cached = report.missing_per_step.map_or_else(String::new, |missing| {
        format!(", of which the cache had {:.1}", report.used_per_step - missing)
    });
    format!(
        "routing: a decode step of {:.1} rows went to {:.1} of {} experts of a layer (evenly: \
         {:.1}){cached}; its busiest {} had {} of its experts' rows (evenly: {})\n",
        report.rows_per_step,
        report.used_per_step,
        report.experts,
        report.used_if_even,
        report.busiest,
        percent(report.busiest_share),
        percent(report.busiest_share_if_even),
    )
}
