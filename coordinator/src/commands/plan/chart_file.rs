//! `--chart FILE`: the simulated layer and the latency of every split, for `scripts/plot.py`.

use std::path::Path;

use anyhow::Context;
use planner::layer::closed_form::{Candidate, terms};
use planner::layer::search::all_intervals;
use planner::layer::steady::{Shape, steady_layer};
use planner::layer::table::Table;
use serde_json::json;

/// Layers of the chart.
const LAYERS: usize = 3;

/// Writes spans of a few steady layers, and the latency by both cost models of every interval; of
/// those that end where the chosen one does also by the name of the first operation.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(path: &Path, table: &Table, chosen: &Candidate) -> anyhow::Result<()> {
    let shape = Shape::default();
    let steady = steady_layer(table, chosen, &shape);
    let (start, end) = (steady.window.0, steady.window.0 + steady.latency.times(LAYERS as u128));
    let spans: Vec<_> = steady
        .timeline
        .spans
        .iter()
        .filter(|span| span.end > start && span.start < end)
        .map(|span| {
            json!({
                "lane": span.lane.name(),
                "op": table.ops[span.op].name,
                "layer": span.layer,
                "batch": span.batch,
                "start_ms": span.start.ms() - start.ms(),
                "end_ms": span.end.ms() - start.ms(),
            })
        })
        .collect();
    let last = chosen.interval.1;
    let curve: Vec<_> = (0..=last)
        .map(|first| {
            let interval = if first == last { (0, 0) } else { (first, last) };
            let candidate = Candidate { interval, nvme: Vec::new(), ..chosen.clone() };
            json!({
                "first_gpu_op": table.ops.get(first).map_or("none", |op| op.name.as_str()),
                "paper_ms": terms(table, &candidate).latency().ms(),
                "simulated_ms": steady_layer(table, &candidate, &shape).latency.ms(),
            })
        })
        .collect();
    let intervals: Vec<_> = all_intervals(table)
        .into_iter()
        .map(|interval| {
            let candidate = Candidate { interval, nvme: Vec::new(), ..chosen.clone() };
            let terms = terms(table, &candidate);
            json!({
                "interval": interval,
                "cpu_ms": terms.cpu.ms(),
                "h2d_ms": terms.h2d.ms(),
                "paper_ms": terms.latency().ms(),
                "simulated_ms": steady_layer(table, &candidate, &shape).latency.ms(),
            })
        })
        .collect();
    let ops: Vec<&str> = table.ops.iter().map(|op| op.name.as_str()).collect();
    let chart = json!({
        "layer_ms": steady.latency.ms(),
        "window_ms": end.ms() - start.ms(),
        "gpu_interval": chosen.interval,
        "spans": spans,
        "curve": curve,
        "ops": ops,
        "batches": table.batches,
        "intervals": intervals,
    });
    let text = serde_json::to_string_pretty(&chart)? + "\n";
    std::fs::write(path, text).with_context(|| format!("the chart {}", path.display()))
}
