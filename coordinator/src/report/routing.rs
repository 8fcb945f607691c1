//! How skewed the routing of a mixture of experts was.

use model::experts::Experts;
use serde::{Deserialize, Serialize};

use crate::engine::routed::Routed;

/// Means over the layers, beside what they would be if all experts were as likely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoutingReport {
    /// Of a layer.
    pub experts: u32,
    /// Of a decode step of a batch.
    pub rows_per_step: f64,
    /// Experts that such a step went to.
    pub used_per_step: f64,
    pub used_if_even: f64,
    /// A tenth of the experts, rounded up.
    pub busiest: u32,
    /// What the busiest experts had of the rows of all experts, in the whole run.
    pub busiest_share: f64,
    pub busiest_share_if_even: f64,
}

/// Of a model's experts.
pub fn routing(experts: Option<&Experts>, routed: Option<&Routed>) -> Option<RoutingReport> {
    let (experts, routed) = (experts?, routed?);
    let Routed { rows_per_step, used_per_step, busiest, busiest_share, .. } = *routed;
    Some(RoutingReport {
        experts: routed.experts,
        rows_per_step,
        used_per_step,
        used_if_even: experts.expected_distinct(rows_per_step),
        busiest,
        busiest_share,
        busiest_share_if_even: f64::from(busiest) / f64::from(routed.experts.max(1)),
    })
}

/// One line.
pub(crate) fn render(report: &RoutingReport) -> String {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    format!(
        "routing: a decode step of {:.1} rows went to {:.1} of {} experts of a layer (evenly: \
         {:.1}); its busiest {} had {} of its experts' rows (evenly: {})\n",
        report.rows_per_step,
        report.used_per_step,
        report.experts,
        report.used_if_even,
        report.busiest,
        percent(report.busiest_share),
        percent(report.busiest_share_if_even),
    )
}
