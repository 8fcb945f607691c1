//! The steady layer of a measured or simulated run of several steps: the layers in the middle of
//! each step, and the steps in the middle of the run; and the steady step, with all its layers.

use program::ir::Instruction;
use program::plan::Plan;
use program::simulate::{LaneUsage, Span};
use program::topology::LaneKind;

/// Layers in the steady state, with times for all batches.
#[derive(Debug, Clone, PartialEq)]
pub struct SteadyLayer {
    /// Median over the steps of the mean over a step's layers.
    pub layer_ms: f64,
    /// Shortest and longest step.
    pub range_ms: (f64, f64),
    pub steps: usize,
    /// Number of layers of each step.
    pub layers: usize,
    /// Fraction of the transfers during which the CPU computes, the median over the steps; `None`
    /// without transfers.
    pub overlap: Option<f64>,
    /// Fraction of the time in which no lane is executing work, the median over the steps.
    pub time_outside: f64,
}

/// Steps in the steady state, with times for all batches.
#[derive(Debug, Clone, PartialEq)]
pub struct SteadyStep {
    /// Median over the steps.
    pub step_ms: f64,
    /// Shortest and longest step.
    pub range_ms: (f64, f64),
    pub steps: usize,
    /// See [`SteadyLayer`].
    pub overlap: Option<f64>,
    /// See [`SteadyLayer`].
    pub time_outside: f64,
}

/// Evaluates the layers of a plan's decode steps. The first two layers of a step and its last are
/// excluded if there are enough: no layers precede and follow a step, so a device works there on
/// the end or the beginning of a layer alone. The number of remaining layers is even if possible,
/// since slots alternate. The first step starts cold, and the last one has no successor whose
/// transfers it could start; both are excluded if there are enough. Returns `None` without any span
/// of a layer.
pub fn steady(plan: &Plan, spans: &[Span]) -> Option<SteadyLayer> {
    let layers = plan.config.num_layers;
    let ends = layer_ends(plan, spans, layers)?;
    let (first, count) = match layers {
        0..4 => (0, layers.saturating_sub(1)),
        4 => (1, 1),
        _ => (1, (layers - 3) / 2 * 2),
    };
    let last = first + count;
    let steps = if ends.len() >= 4 { &ends[1..ends.len() - 1] } else { &ends[..] };
    if count == 0 || steps.is_empty() {
        return None;
    }
    let windows: Vec<_> = steps.iter().map(|step| (step[first], step[last])).collect();
    let middle = WindowMedians::from_windows(plan, spans, &windows)?;
    let each = |ms: f64| ms / count as f64;
    Some(SteadyLayer {
        layer_ms: each(middle.ms),
        range_ms: (each(middle.range_ms.0), each(middle.range_ms.1)),
        steps: steps.len(),
        layers: count,
        overlap: middle.overlap,
        time_outside: middle.time_outside,
    })
}

/// Evaluates a plan's decode steps, each from the end of the previous one to its own; the first two
/// are excluded, since the first starts cold. Returns `None` with fewer than three steps.
pub fn steady_step(plan: &Plan, spans: &[Span]) -> Option<SteadyStep> {
    let first = spans.iter().map(|span| span.step).min()?;
    let mut ends: Vec<u64> = Vec::new();
    for span in spans {
        let step = (span.step - first) as usize;
        if ends.len() <= step {
            ends.resize(step + 1, 0);
        }
        ends[step] = ends[step].max(span.end_ns);
    }
    let windows: Vec<_> = ends.windows(2).skip(1).map(|pair| (pair[0], pair[1])).collect();
    let middle = WindowMedians::from_windows(plan, spans, &windows)?;
    Some(SteadyStep {
        step_ms: middle.ms,
        range_ms: middle.range_ms,
        steps: windows.len(),
        overlap: middle.overlap,
        time_outside: middle.time_outside,
    })
}

/// Medians over some windows of a run.
struct WindowMedians {
    ms: f64,
    range_ms: (f64, f64),
    overlap: Option<f64>,
    time_outside: f64,
}

impl WindowMedians {
    /// Computes the medians, or `None` without windows.
    fn from_windows(plan: &Plan, spans: &[Span], windows: &[(u64, u64)]) -> Option<WindowMedians> {
        let (mut each, mut overlaps, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        for &(start_ns, end_ns) in windows {
            let usage = LaneUsage::from_spans(&clip_spans(spans, start_ns, end_ns), &plan.topology);
            let total_ns = end_ns.saturating_sub(start_ns);
            each.push(total_ns as f64 / 1e6);
            if usage.h2d_busy_ns > 0 {
                overlaps.push(usage.h2d_and_cpu_ns as f64 / usage.h2d_busy_ns as f64);
            }
            let idle_ns = total_ns.saturating_sub(usage.total_ns - usage.idle_ns);
            outside.push(idle_ns as f64 / total_ns.max(1) as f64);
        }
        Some(WindowMedians {
            ms: median(&mut each)?,
            range_ms: (each[0], each[each.len() - 1]),
            overlap: median(&mut overlaps),
            time_outside: median(&mut outside)?,
        })
    }
}

/// Sorts and returns the median, or `None` if empty.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Returns the time at which the last batch leaves each layer, per step; `None` if a step lacks
/// one.
fn layer_ends(plan: &Plan, spans: &[Span], layers: usize) -> Option<Vec<Vec<u64>>> {
    let first = spans.iter().map(|span| span.step).min()?;
    let last = spans.iter().map(|span| span.step).max()?;
    let mut ends = vec![vec![0u64; layers]; (last - first + 1) as usize];
    let computes = plan.topology.lane_set(|lane| lane.kind == LaneKind::Compute);
    for span in spans.iter().filter(|span| computes.contains(span.lane)) {
        let list = plan.decode().lane(span.lane)?;
        let work = list.instructions.get(span.instruction as usize)?;
        let Instruction::Compute(compute) = work else { continue };
        let Some(layer) = compute.at.layer else { continue };
        let end = ends[(span.step - first) as usize].get_mut(usize::from(layer))?;
        *end = (*end).max(span.end_ns);
    }
    ends.iter().flatten().all(|end| *end > 0).then_some(ends)
}

/// Returns the parts of the spans from `start_ns` to `end_ns`.
fn clip_spans(spans: &[Span], start_ns: u64, end_ns: u64) -> Vec<Span> {
    let cut = |span: &Span| Span {
        start_ns: span.start_ns.max(start_ns),
        end_ns: span.end_ns.min(end_ns),
        ..*span
    };
    spans.iter().map(cut).filter(|span| span.start_ns < span.end_ns).collect()
}
