//! Layers of a table as a timeline: the program that a device map compiles to, in table terms.
//!
//! The order of work, the slots and the waits are those of `program::compile`: segment by segment
//! and batch by batch, a streamed weight once per layer for all batches, KV once per batch,
//! transfers in the order of need and no further ahead than their slots allow. Lanes are in order
//! and an instruction starts when its lane is free and what it needs is there, so start times
//! follow from one pass over the work. What the table does not price (activations, appends, norms
//! of the model's end) takes no time. `planner/tests` compares the result with `program::simulate`
//! on compiled plans.

#[cfg(test)]
mod tests;
mod timeline;
mod usage;

pub use timeline::{Lane, LayerMap, Shape, Span, Timeline, timeline};
pub use usage::Usage;

use super::closed_form::Candidate;
use super::table::Table;
use super::time::Ps;

/// Layers until the start has no influence any more: slots let a lane run two layers ahead.
const WARM_LAYERS: usize = 12;
/// Layers over which the mean is taken; even, since slots alternate.
const MEAN_LAYERS: usize = 12;
/// Layers behind them, whose transfers the last of the mean run beside.
const TAIL_LAYERS: usize = 4;

/// One layer in a long row of equal ones.
#[derive(Debug, Clone)]
pub struct Steady {
    /// Time per layer, all batches.
    pub latency: Ps,
    /// Over the layers of the mean.
    pub usage: Usage,
    /// For a Gantt chart: the whole row.
    pub timeline: Timeline,
    /// The part of it that the mean is over.
    pub window: (Ps, Ps),
}

/// Runs a row of equal layers and looks at those in its middle.
pub fn steady_layer(table: &Table, candidate: &Candidate, shape: &Shape) -> Steady {
    steady_map(table, &LayerMap::streamed(candidate, table.ops.len()), shape)
}

/// The same for a map that is no interval.
pub fn steady_map(table: &Table, layer: &LayerMap, shape: &Shape) -> Steady {
    let layers = vec![layer.clone(); WARM_LAYERS + MEAN_LAYERS + TAIL_LAYERS];
    let timeline = timeline(table, &layers, shape);
    let window =
        (timeline.layer_ends[WARM_LAYERS - 1], timeline.layer_ends[WARM_LAYERS + MEAN_LAYERS - 1]);
    let latency = Ps(window.1.saturating_sub(window.0).0 / MEAN_LAYERS as u128);
    let usage = Usage::of(&timeline.spans, window);
    Steady { latency, usage, timeline, window }
}
