//! `--chart FILE` of a timed replay: two layers in the middle of an iteration, for `scripts/plot.py
//! gantt`.

use std::path::Path;

use anyhow::Context;
use model::ops::Op;
use program::ir::{Compute, Instruction};
use program::plan::Plan;
use program::topology::LaneId;
use schedule::hybrid::Shape;
use serde_json::{Value, json};

use super::iterations::Iteration;
use crate::engine::replay::Replayed;
use crate::setup::usage::Usage;

/// Number of layers in the chart.
const LAYERS: u16 = 2;

/// Span of a compute instruction.
struct Span<'a> {
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
    (seen, iterations): (&Replayed, &[Iteration]),
    slow_motion: u32,
) -> anyhow::Result<()> {
    let of = |shape| iterations.iter().filter(move |one| one.shape == shape);
    let most = [Shape::Pipelined, Shape::Async].into_iter().max_by_key(|shape| of(*shape).count());
    let none = || Usage("--chart: the host attended in no iteration; give more requests".into());
    let (shape, spans) = most
        .into_iter()
        .flat_map(|shape| of(shape).map(move |one| (shape, spans(plan, seen, one))))
        .max_by_key(|(_, spans)| both_busy_ns(plan, spans))
        .ok_or_else(none)?;
    let chart = chart(plan, &spans, shape, slow_motion);
    let text = serde_json::to_string_pretty(&chart.ok_or_else(none)?)? + "\n";
    std::fs::write(path, text).with_context(|| format!("the chart {}", path.display()))
}

fn spans<'a>(plan: &'a Plan, seen: &Replayed, within: &Iteration) -> Vec<Span<'a>> {
    let is_in = |start_ns: u64, end_ns: u64| {
        start_ns >= within.begun_ns && end_ns <= within.ended_ns && end_ns > start_ns
    };
    let of = |(lane, record): &(LaneId, shm::TraceRecord)| {
        let list = plan.programs[record.program as usize].lane(*lane)?;
        let Instruction::Compute(compute) = list.instructions.get(record.instruction as usize)?
        else {
            return None;
        };
        is_in(record.start_ns, record.end_ns).then_some(Span {
            compute,
            is_host: *lane == LaneId::CPU_COMPUTE,
            start_ns: record.start_ns,
            end_ns: record.end_ns,
        })
    };
    seen.records.iter().filter_map(of).collect()
}

/// Returns the period in which the device computes two layers in the middle of an iteration; `None`
/// if it has no work in them.
fn window(plan: &Plan, spans: &[Span<'_>]) -> Option<(u64, u64)> {
    let first = (plan.config.num_layers as u16 / 2).saturating_sub(1);
    let layers = first..first + LAYERS;
    let of_layers = |span: &&Span<'_>| {
        !span.is_host && span.compute.at.layer.is_some_and(|layer| layers.contains(&layer))
    };
    let on_device = || spans.iter().filter(of_layers);
    let from_ns = on_device().map(|span| span.start_ns).min()?;
    Some((from_ns, on_device().map(|span| span.end_ns).max()?))
}

/// Returns the minimum of the times that host and device are busy in the drawn part of an
/// iteration.
fn both_busy_ns(plan: &Plan, spans: &[Span<'_>]) -> u64 {
    let Some((from_ns, to_ns)) = window(plan, spans) else { return 0 };
    let within =
        |span: &Span<'_>| span.end_ns.min(to_ns).saturating_sub(span.start_ns.max(from_ns));
    let busy_ns =
        |is_host| -> u64 { spans.iter().filter(|span| span.is_host == is_host).map(within).sum() };
    busy_ns(true).min(busy_ns(false))
}

fn chart(plan: &Plan, spans: &[Span<'_>], shape: Shape, slow_motion: u32) -> Option<Value> {
    let (from_ns, to_ns) = window(plan, spans)?;
    let ms = |ns: i64| ns as f64 / 1e6 / f64::from(slow_motion);
    let drawn = spans.iter().filter(|span| {
        // Spans that take almost no time would be drawn as a line.
        span.end_ns > from_ns && span.start_ns < to_ns && span.end_ns - span.start_ns > 5_000
    });
    let drawn = drawn.map(|span| {
        let since = |ns: u64| ms(ns.cast_signed() - from_ns.cast_signed());
        // Rows of the host: the second batch, and deferred rows.
        let batch = match shape {
            Shape::Async => u16::from(span.is_host),
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
        "batches": if shape == Shape::Async { 1 } else { 2 },
        "layer_ms": window_ms / f64::from(LAYERS),
        "window_ms": window_ms,
        "spans": drawn.collect::<Vec<_>>(),
    }))
}
