//! `--chart FILE`: spans of layers and the latency of every split, for `scripts/plot.py`.

use std::path::Path;

use anyhow::Context;
use planner::layer::closed_form::{LayerCandidate, terms};
use planner::layer::search::all_intervals;
use planner::layer::steady::{SlotLimits, steady_layer};
use planner::layer::table::OperationTable;
use planner::search::SearchResult;
use serde_json::{Value, json};

use report::placement::{format_gpu_ops, gpu_interval};
use report::step::Step;

/// Number of layers in the chart.
const LAYERS: usize = 3;

/// Writes the chart of a plan: spans of a few layers of a steady step of the chosen map and, if the
/// GPU runs an interval of a layer, the latency of every interval according to the table of
/// operations.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write_plan_chart(path: &Path, chosen: &SearchResult) -> anyhow::Result<()> {
    let step = Step::from_steady(&chosen.plan, &chosen.steady);
    let layers = LAYERS.min(chosen.plan.config.num_layers);
    let (start_ms, end_ms) = step.window_ms(layers);
    let spans = step.window_spans(layers).into_iter().map(|span| {
        json!({
            "lane": span.lane, "op": span.op, "layer": span.layer, "batch": span.batch,
            "start_ms": span.start_ms, "end_ms": span.end_ms,
        })
    });
    let spans: Vec<Value> = spans.collect();
    let interval = gpu_interval(chosen);
    let mut chart = json!({
        "title": format!("GPU: {}", format_gpu_ops(&chosen.plan.map, &chosen.plan.config).1),
        "layer_ms": (end_ms - start_ms) / layers as f64,
        "window_ms": end_ms - start_ms,
        "gpu_interval": interval,
        "spans": spans,
        "ops": op_names(&chosen.table),
        "batches": chosen.table.batches,
    });
    if let Some(interval) = interval {
        let compressed = chosen.table.compression.search_cases()[0];
        let candidate =
            LayerCandidate { compressed, ..LayerCandidate::plain(interval.0, interval.1) };
        chart["curve"] = curve(&chosen.table, &candidate);
        chart["intervals"] = intervals(&chosen.table, &candidate);
    }
    write(path, &chart)
}

/// Writes the chart of a table: spans of a few steady layers, and the latency of every interval
/// according to both cost models.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write_table_chart(
    path: &Path,
    table: &OperationTable,
    chosen: &LayerCandidate,
) -> anyhow::Result<()> {
    let steady = steady_layer(table, chosen, &SlotLimits::default());
    let (start, end) = (steady.window.0, steady.window.0 + steady.latency.times(LAYERS as u128));
    let spans = steady.timeline.spans.iter().filter(|span| span.end > start && span.start < end);
    let spans: Vec<Value> = spans
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
    let chart = json!({
        "layer_ms": steady.latency.ms(),
        "window_ms": end.ms() - start.ms(),
        "gpu_interval": chosen.interval,
        "spans": spans,
        "curve": curve(table, chosen),
        "ops": op_names(table),
        "batches": table.batches,
        "intervals": intervals(table, chosen),
    });
    write(path, &chart)
}

fn op_names(table: &OperationTable) -> Vec<&str> {
    table.ops.iter().map(|op| op.name.as_str()).collect()
}

/// Returns the latencies of the intervals that end where the chosen one does, labelled with the
/// name of their first operation.
fn curve(table: &OperationTable, chosen: &LayerCandidate) -> Value {
    let last = chosen.interval.1;
    let point = |first: usize| {
        let interval = if first == last { (0, 0) } else { (first, last) };
        let candidate = LayerCandidate { interval, nvme: Vec::new(), ..chosen.clone() };
        json!({
            "first_gpu_op": table.ops.get(first).map_or("none", |op| op.name.as_str()),
            "paper_ms": terms(table, &candidate).latency().ms(),
            "simulated_ms": steady_layer(table, &candidate, &SlotLimits::default()).latency.ms(),
        })
    };
    (0..=last).map(point).collect()
}

fn intervals(table: &OperationTable, chosen: &LayerCandidate) -> Value {
    let interval_json = |interval| {
        let candidate = LayerCandidate { interval, nvme: Vec::new(), ..chosen.clone() };
        let terms = terms(table, &candidate);
        json!({
            "interval": interval,
            "cpu_ms": terms.cpu.ms(),
            "h2d_ms": terms.h2d.ms(),
            "paper_ms": terms.latency().ms(),
            "simulated_ms": steady_layer(table, &candidate, &SlotLimits::default()).latency.ms(),
        })
    };
    all_intervals(table).into_iter().map(interval_json).collect()
}

fn write(path: &Path, chart: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(chart)? + "\n";
    std::fs::write(path, text).with_context(|| format!("the chart {}", path.display()))
}
