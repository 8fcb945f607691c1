//! Layers of a table as a timeline: the program to which a device map compiles, in terms of the
//! table.
//!
//! The order of work, the slots and the waits are those of `program::compile`: segment by segment
//! and batch by batch, a streamed weight once per layer for all batches, KV once per batch,
//! transfers in the order of need and no further ahead than their slots allow. Lanes are in order,
//! and an instruction starts when its lane is free and its inputs are ready, so start times follow
//! from one pass over the work. Work that the table does not price (activations, appends, norms at
//! the end of the model) takes no time. `planner/tests` compares the result with
//! `program::simulate` on compiled plans.

#[cfg(test)]
mod tests;
mod timeline;
mod usage;

pub use timeline::{LayerLane, LayerMap, LayerTimeline, OpSpan, SlotLimits, simulate_layers};
pub use usage::LaneBusyTimes;

use super::closed_form::LayerCandidate;
use super::table::OperationTable;
use super::time::Ps;

/// Number of layers until the start has no influence any more: slots let a lane run two layers
/// ahead.
const WARM_LAYERS: usize = 12;
/// Number of layers over which the mean is taken; even, since slots alternate.
const MEAN_LAYERS: usize = 12;
/// Number of layers after these, whose transfers overlap the last layers of the mean.
const TAIL_LAYERS: usize = 4;

/// One layer in a long row of equal layers.
#[derive(Debug, Clone)]
pub struct SteadyRow {
    /// Time per layer, for all batches.
    pub latency: Ps,
    /// Usage over the layers of the mean.
    pub usage: LaneBusyTimes,
    /// The whole row, for a Gantt chart.
    pub timeline: LayerTimeline,
    /// Window of the timeline over which the mean is taken.
    pub window: (Ps, Ps),
}

/// Runs a row of equal layers and evaluates those in its middle.
pub fn steady_layer(
    table: &OperationTable,
    candidate: &LayerCandidate,
    shape: &SlotLimits,
) -> SteadyRow {
    steady_map(table, &LayerMap::streamed(candidate, table.ops.len()), shape)
}

/// Runs a row of equal layers for a map that need not be an interval.
pub fn steady_map(table: &OperationTable, layer: &LayerMap, shape: &SlotLimits) -> SteadyRow {
    let layers = vec![layer.clone(); WARM_LAYERS + MEAN_LAYERS + TAIL_LAYERS];
    let timeline = simulate_layers(table, &layers, shape);
    let window =
        (timeline.layer_ends[WARM_LAYERS - 1], timeline.layer_ends[WARM_LAYERS + MEAN_LAYERS - 1]);
    let latency = Ps(window.1.saturating_sub(window.0).0 / MEAN_LAYERS as u128);
    let usage = LaneBusyTimes::from_spans(&timeline.spans, window);
    SteadyRow { latency, usage, timeline, window }
}
