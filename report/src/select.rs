//! Share of the cached positions that new tokens attended to.

use engine::sparse_attention_stats::SparseAttentionStats;
use program::select::KvSelect;
use serde::{Deserialize, Serialize};

/// Selection rule of a run, and its effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectReport {
    pub alpha: f64,
    /// Maximum share of all positions that may be selected.
    pub max: f64,
    /// Share of positions that were attended to, over all new tokens, layers and KV heads; `null`
    /// if no new token was computed.
    pub share_read: Option<f64>,
}

/// Returns the report of a run with this rule; `None` without a rule.
pub fn select_report(
    rule: Option<KvSelect>,
    selected: Option<SparseAttentionStats>,
) -> Option<SelectReport> {
    rule.map(|rule| SelectReport {
        alpha: f64::from(rule.alpha_thousandths) / 1e3,
        max: f64::from(rule.max_thousandths) / 1e3,
        share_read: selected.map(SparseAttentionStats::share),
    })
}

/// Formats the report as a line.
pub(crate) fn format_select(report: &SelectReport) -> String {
    let SelectReport { alpha, max, share_read } = report;
    let read = share_read.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", 100.0 * share));
    format!("selected KV (alpha {alpha}, max {max}): new tokens attended to {read} of positions\n")
}
