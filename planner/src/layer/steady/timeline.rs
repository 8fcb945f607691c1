//! One pass over the work of a row of layers.

use std::collections::HashMap;

use crate::layer::closed_form::{LayerCandidate, TableTimes};
use crate::layer::table::OperationTable;
use crate::layer::time::Ps;

/// An in-order queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerLane {
    Cpu,
    Gpu,
    H2d,
    Decompress,
    S2d,
}

impl LayerLane {
    /// All lanes, in the order of charts.
    pub const ALL: [LayerLane; 5] =
        [LayerLane::Cpu, LayerLane::Gpu, LayerLane::Decompress, LayerLane::H2d, LayerLane::S2d];

    /// Returns the name in charts and reports.
    pub const fn name(self) -> &'static str {
        match self {
            LayerLane::Cpu => "cpu",
            LayerLane::Gpu => "gpu",
            LayerLane::H2d => "h2d",
            LayerLane::Decompress => "decompress",
            LayerLane::S2d => "s2d",
        }
    }
}

/// Constraints on a row of layers in addition to its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    /// Maximum number of layers whose streamed weights are on the device at once; at least 1.
    pub weight_slots: usize,
    /// Maximum number of batches whose streamed KV of an operation is on the device at once, whole
    /// or in chunks; at least 1. The paper's figures have 1.
    pub kv_slots: usize,
}

impl Default for SlotLimits {
    /// The shape of the runtime's policies.
    fn default() -> SlotLimits {
        SlotLimits { weight_slots: 2, kv_slots: 2 }
    }
}

/// Placement of one layer of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerMap {
    /// For each operation, true if the GPU runs it; any set, not only an interval.
    pub on_gpu: Vec<bool>,
    pub compressed: bool,
    /// Weights that are read from NVMe.
    pub nvme: Vec<usize>,
    /// The weights stay in device memory, in the format in which others are streamed.
    pub weights_resident: bool,
    /// The KV that the GPU reads stays in device memory.
    pub kv_resident: bool,
}

impl LayerMap {
    /// Returns a map of devices; nothing stays on the GPU.
    pub const fn of(on_gpu: Vec<bool>, compressed: bool) -> LayerMap {
        let nvme = Vec::new();
        LayerMap { on_gpu, compressed, nvme, weights_resident: false, kv_resident: false }
    }

    /// Returns the map of a candidate for a layer of `ops` operations; nothing stays on the device.
    pub fn streamed(candidate: &LayerCandidate, ops: usize) -> LayerMap {
        LayerMap {
            nvme: candidate.nvme.clone(),
            ..LayerMap::of((0..ops).map(|op| candidate.on_gpu(op)).collect(), candidate.compressed)
        }
    }

    /// Returns true if one device runs the whole layer.
    fn is_uniform(&self) -> bool {
        self.on_gpu.iter().all(|device| *device == self.on_gpu[0])
    }
}

/// Execution interval of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpSpan {
    pub lane: LayerLane,
    pub layer: usize,
    /// `None` for a weight, which serves all batches.
    pub batch: Option<u32>,
    /// Index in the table.
    pub op: usize,
    pub start: Ps,
    pub end: Ps,
}

/// A row of layers over time.
#[derive(Debug, Clone, Default)]
pub struct LayerTimeline {
    /// Everything that takes time, in the order of work.
    pub spans: Vec<OpSpan>,
    /// Time at which the last batch leaves each layer.
    pub layer_ends: Vec<Ps>,
}

#[derive(Debug)]
struct TimelineBuilder<'a> {
    table: &'a OperationTable,
    costs: TableTimes,
    layers: &'a [LayerMap],
    shape: &'a SlotLimits,
    dependencies: Vec<Vec<usize>>,
    exits: Vec<usize>,
    /// Ring of KV slots of each operation: the first operation of its kind.
    kinds: Vec<usize>,
    lane_free: [Ps; 5],
    batches: Vec<Batch>,
    /// Time at which each weight of the current layer is ready on the device.
    arrived: HashMap<(usize, usize), Ps>,
    /// Time at which the weight slot of an operation and a parity was last read.
    weight_free: HashMap<(usize, usize), Ps>,
    /// Per ring: the number of uses so far, and the time at which each slot was last read.
    kv_free: HashMap<KvRing, (usize, Vec<Ps>)>,
    timeline: LayerTimeline,
}

/// Ring of KV slots that a kind's chunks take in turn: the kind, and the number of slots.
type KvRing = (usize, usize);

/// Progress of a batch.
#[derive(Debug, Clone)]
struct Batch {
    /// Time at which the batch left the previous layer.
    entered: Ps,
    /// End of each operation of the current layer.
    ends: Vec<Ps>,
}

/// Runs a row of layers.
pub fn simulate_layers(
    table: &OperationTable,
    layers: &[LayerMap],
    shape: &SlotLimits,
) -> LayerTimeline {
    let ops = table.ops.len();
    let batch = Batch { entered: Ps::ZERO, ends: vec![Ps::ZERO; ops] };
    let mut builder = TimelineBuilder {
        table,
        costs: TableTimes::from_table(table),
        layers,
        shape,
        dependencies: table.dependencies(),
        exits: table.exits(),
        kinds: kinds(table),
        lane_free: [Ps::ZERO; 5],
        batches: vec![batch; table.batches as usize],
        arrived: HashMap::new(),
        weight_free: HashMap::new(),
        kv_free: HashMap::new(),
        timeline: LayerTimeline { spans: Vec::new(), layer_ends: vec![Ps::ZERO; layers.len()] },
    };
    for segment in segments(layers, ops) {
        for batch in 0..table.batches as usize {
            for &(layer, op) in &segment {
                builder.run(layer, op, batch);
            }
        }
    }
    builder.timeline
}

/// Returns runs of operations on one device, and whole layers that one device runs: all batches
/// pass a segment before any continues.
fn segments(layers: &[LayerMap], ops: usize) -> Vec<Vec<(usize, usize)>> {
    let mut segments: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut last: Option<bool> = None;
    let mut uniform_before = false;
    for (layer, map) in layers.iter().enumerate() {
        for op in 0..ops {
            let device = map.on_gpu[op];
            if last != Some(device) || (op == 0 && uniform_before) {
                segments.push(Vec::new());
            }
            last = Some(device);
            if let Some(segment) = segments.last_mut() {
                segment.push((layer, op));
            }
        }
        uniform_before = map.is_uniform();
    }
    segments
}

/// Returns the ring of each operation. Chunks of one operation share slots.
fn kinds(table: &OperationTable) -> Vec<usize> {
    let base = |index: usize| {
        let op = &table.ops[index];
        match (op.chunk, op.name.rsplit_once('.')) {
            (Some(_), Some((base, _))) => base,
            _ => op.name.as_str(),
        }
    };
    let first = |index: usize| (0..index).find(|other| base(*other) == base(index));
    (0..table.ops.len()).map(|index| first(index).unwrap_or(index)).collect()
}

impl TimelineBuilder<'_> {
    /// Runs one operation of one batch, with the transfers that it needs.
    fn run(&mut self, layer: usize, op: usize, batch: usize) {
        let map = &self.layers[layer];
        let on_gpu = map.on_gpu[op];
        let state = &self.batches[batch];
        let before = self.dependencies[op].iter().map(|other| state.ends[*other]).max();
        let mut ready = before.unwrap_or(state.entered);
        let (lane, duration) = if on_gpu {
            (LayerLane::Gpu, self.costs.ops[op].gpu)
        } else {
            (LayerLane::Cpu, self.costs.ops[op].cpu)
        };
        let duration = duration.saturating_sub(self.fused_saving(map, op, on_gpu));
        let mut kv_slot = None;
        if on_gpu && self.table.ops[op].kv && !map.kv_resident {
            let (arrived, slot) = self.stream_kv(layer, op, batch);
            ready = ready.max(arrived);
            kv_slot = slot;
        } else if on_gpu && !self.table.ops[op].kv {
            ready = ready.max(self.stream_weight(layer, op));
        }
        let end = self.push(lane, layer, Some(batch as u32), op, ready, duration);
        if on_gpu {
            let parity = layer % self.shape.weight_slots;
            let free = self.weight_free.entry((op, parity)).or_default();
            *free = (*free).max(end);
        }
        if let Some((ring, slot)) = kv_slot
            && let Some((_, slots)) = self.kv_free.get_mut(&ring)
        {
            slots[slot] = end;
        }
        self.batches[batch].ends[op] = end;
        if op + 1 == self.table.ops.len() {
            let state = &mut self.batches[batch];
            state.entered = self.exits.iter().map(|exit| state.ends[*exit]).max().unwrap_or(end);
            let left = &mut self.timeline.layer_ends[layer];
            *left = (*left).max(state.entered);
        }
    }

    /// Streams a weight, once per layer unless it stays on the device; returns the time at which it
    /// is ready.
    fn stream_weight(&mut self, layer: usize, op: usize) -> Ps {
        if let Some(arrived) = self.arrived.get(&(layer, op)) {
            return *arrived;
        }
        let parity = layer % self.shape.weight_slots;
        let free = self.weight_free.get(&(op, parity)).copied().unwrap_or_default();
        let map = &self.layers[layer];
        let arrived = if map.weights_resident {
            let duration = self.costs.ops[op].decompression(map.compressed);
            self.push(LayerLane::Decompress, layer, None, op, free, duration)
        } else if map.nvme.contains(&op) {
            let duration = self.costs.ops[op].s2d;
            self.push(LayerLane::S2d, layer, None, op, free, duration)
        } else {
            self.transfer(layer, None, op, free)
        };
        self.arrived.insert((layer, op), arrived);
        arrived
    }

    /// Streams one batch's KV; returns the time at which it is ready, and its slot.
    fn stream_kv(
        &mut self,
        layer: usize,
        op: usize,
        batch: usize,
    ) -> (Ps, Option<(KvRing, usize)>) {
        let map = &self.layers[layer];
        if self.costs.ops[op].transfer(map.compressed) == Ps::ZERO {
            return (Ps::ZERO, None);
        }
        let kind = self.kinds[op];
        let streamed = |other: &usize| map.on_gpu[*other] && self.kinds[*other] == kind;
        let parts = (0..self.kinds.len()).filter(streamed).count();
        let ring = (kind, self.shape.kv_slots * parts);
        let (used, frees) = self.kv_free.entry(ring).or_insert_with(|| (0, vec![Ps::ZERO; ring.1]));
        let slot = *used % ring.1;
        *used += 1;
        let free = frees[slot];
        (self.transfer(layer, Some(batch as u32), op, free), Some((ring, slot)))
    }

    /// Transfers over the link, followed by decompression.
    fn transfer(&mut self, layer: usize, batch: Option<u32>, op: usize, free: Ps) -> Ps {
        let compressed = self.layers[layer].compressed;
        let cost = self.costs.ops[op];
        let moved = self.push(LayerLane::H2d, layer, batch, op, free, cost.transfer(compressed));
        self.push(LayerLane::Decompress, layer, batch, op, moved, cost.decompression(compressed))
    }

    /// Appends to a lane; work that takes no time does not delay the lane.
    fn push(
        &mut self,
        lane: LayerLane,
        layer: usize,
        batch: Option<u32>,
        op: usize,
        ready: Ps,
        duration: Ps,
    ) -> Ps {
        if duration == Ps::ZERO {
            return ready;
        }
        let free = &mut self.lane_free[lane as usize];
        let start = ready.max(*free);
        let end = start + duration;
        *free = end;
        self.timeline.spans.push(OpSpan { lane, layer, batch, op, start, end });
        end
    }

    /// Returns the saving of an operation that is fused with its neighbours on the same device: the
    /// saving is deducted from the fused operations in turn.
    fn fused_saving(&self, map: &LayerMap, op: usize, on_gpu: bool) -> Ps {
        let Some(fused) = &self.table.fused else { return Ps::ZERO };
        let same = fused.range.clone().all(|other| map.on_gpu[other] == on_gpu);
        if !same || !fused.range.contains(&op) {
            return Ps::ZERO;
        }
        let cost = |index: usize| {
            let cost = &self.costs.ops[index];
            if on_gpu { cost.gpu } else { cost.cpu }
        };
        let saved_ms = if on_gpu { fused.gpu_saved_ms } else { fused.cpu_saved_ms };
        let earlier: Ps = (fused.range.start..op).map(cost).sum();
        Ps::from_ms(saved_ms).saturating_sub(earlier).min(cost(op))
    }
}
