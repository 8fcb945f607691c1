//! `--chart FILE` of a timed replay: two layers in the middle of an iteration, for `scripts/plot.py
//! gantt`.

use std::path::Path;

use anyhow::Context;
use engine::replay::ReplayTrace;
use model::ops::Op;
use program::ir::{Compute, Instruction};
use program::plan::Plan;
use program::topology::LaneId;
use scheduler::hybrid::IterationShape;
use serde_json::{Value, json};

use super::iterations::MeasuredIteration;
use session::argument_error::ArgumentError;

/// Number of layers in the chart.
const LAYERS: u16 = 2;

/// Span of a compute instruction.
struct ComputeSpan<'a> {
    compute: &'a Compute,
    is_host: bool,
    start_ns: u64,
    end_ns: u64,
}

/// Writes the compute spans of an iteration in the period in which the device computes two layers
/// in its middle, as times of the emulated machine. Selects the shape with host attention that
/// occurred most often, and of its iterations the one in which both host and device are busy for
/// longest.
///
/// # Errors
/// No such iteration, or a file that cannot be written.
pub(super) fn write(
    path: &Path,
    plan: &Plan,
    seen: &ReplayTrace,
    iterations: &[MeasuredIteration],
    slow_motion: u32,
) -> anyhow::Result<()> {
    let with_shape = |shape| iterations.iter().filter(move |iteration| iteration.shape == shape);
    let most_frequent = [IterationShape::Pipelined, IterationShape::Async]
        .into_iter()
        .max_by_key(|shape| with_shape(*shape).count());
    let none = || {
        ArgumentError(
            "--chart: no iteration used attention on the host; use more --requests".into(),
        )
    };
    let (shape, spans) = most_frequent
        .into_iter()
        .flat_map(|shape| {
            with_shape(shape).map(move |iteration| (shape, spans(plan, seen, iteration)))
        })
        .max_by_key(|(_, spans)| min_busy_ns(plan, spans))
        .ok_or_else(none)?;
    let chart = chart(plan, &spans, shape, slow_motion);
    let text = serde_json::to_string_pretty(&chart.ok_or_else(none)?)? + "\n";
    std::fs::write(path, text).with_context(|| format!("the chart {}", path.display()))
}

fn spans<'a>(
    plan: &'a Plan,
    seen: &ReplayTrace,
    iteration: &MeasuredIteration,
) -> Vec<ComputeSpan<'a>> {
    let is_in = |start_ns: u64, end_ns: u64| {
        start_ns >= iteration.begun_ns && end_ns <= iteration.ended_ns && end_ns > start_ns
    };
    let compute_span = |(lane, record): &(LaneId, shm::TraceRecord)| {
        let list = plan.programs[record.program as usize].lane(*lane)?;
        let Instruction::Compute(compute) = list.instructions.get(record.instruction as usize)?
        else {
            return None;
        };
        is_in(record.start_ns, record.end_ns).then_some(ComputeSpan {
            compute,
            is_host: *lane == LaneId::CPU_COMPUTE,
            start_ns: record.start_ns,
            end_ns: record.end_ns,
        })
    };
    seen.records.iter().filter_map(compute_span).collect()
}

/// Returns the period in which the device computes two layers in the middle of an iteration; `None`
/// if it has no work in them.
fn window(plan: &Plan, spans: &[ComputeSpan<'_>]) -> Option<(u64, u64)> {
    let first = (plan.config.num_layers as u16 / 2).saturating_sub(1);
    let layers = first..first + LAYERS;
    let is_in_layers = |span: &&ComputeSpan<'_>| {
        !span.is_host && span.compute.at.layer.is_some_and(|layer| layers.contains(&layer))
    };
    let on_device = || spans.iter().filter(is_in_layers);
    let from_ns = on_device().map(|span| span.start_ns).min()?;
    Some((from_ns, on_device().map(|span| span.end_ns).max()?))
}

/// Returns the minimum of the times that host and device are busy in the drawn part of an
/// iteration.
fn min_busy_ns(plan: &Plan, spans: &[ComputeSpan<'_>]) -> u64 {
    let Some((from_ns, to_ns)) = window(plan, spans) else { return 0 };
    let overlap_ns =
        |span: &ComputeSpan<'_>| span.end_ns.min(to_ns).saturating_sub(span.start_ns.max(from_ns));
    let busy_ns = |is_host| -> u64 {
        spans.iter().filter(|span| span.is_host == is_host).map(overlap_ns).sum()
    };
    busy_ns(true).min(busy_ns(false))
}

fn chart(
    plan: &Plan,
    spans: &[ComputeSpan<'_>],
    shape: IterationShape,
    slow_motion: u32,
) -> Option<Value> {
    let (from_ns, to_ns) = window(plan, spans)?;
    let ms = |ns: i64| ns as f64 / 1e6 / f64::from(slow_motion);
    let visible = spans.iter().filter(|span| {
        // Spans that take almost no time would be drawn as a line.
        span.end_ns > from_ns && span.start_ns < to_ns && span.end_ns - span.start_ns > 5_000
    });
    let visible = visible.map(|span| {
        let since = |ns: u64| ms(ns.cast_signed() - from_ns.cast_signed());
        // Rows of the host: the second batch, and deferred rows.
        let batch = match shape {
            IterationShape::Async => u16::from(span.is_host),
            _ => span.compute.at.stream,
        };
        json!({
            "lane": if span.is_host { "cpu" } else { "gpu" },
            "op": if span.compute.op == Op::Attention { "attention" } else { "linears" },
            "layer": span.compute.at.layer,
            "batch": batch,
            "start_ms": since(span.start_ns),
            "end_ms": since(span.end_ns),
        })
    });
    let window_ms = ms(to_ns.cast_signed() - from_ns.cast_signed());
    Some(json!({
        "ops": ["linears", "attention"],
        "gpu_interval": [0, 1],
        "batches": if shape == IterationShape::Async { 1 } else { 2 },
        "layer_ms": window_ms / f64::from(LAYERS),
        "window_ms": window_ms,
        "spans": visible.collect::<Vec<_>>(),
    }))
}
