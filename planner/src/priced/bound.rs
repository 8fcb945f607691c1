//! What no decode step of a placement is shorter than, by the table of operations: the work of its
//! busiest lane, and the way of one batch through all layers. It tells which placements need not be
//! compiled. And about how long it is, by the same table, which tells which to compile first.

use model::config::ModelConfig;
use program::map::{Device, layer_list};
use program::topology::MemoryId;

use super::table::Around;
use crate::layer::steady::{LayerMap, Shape, timeline};
use crate::layer::table::Table;
use crate::layer::time::Ps;
use crate::policy::{Placement, Policy, ResidentAttention, decode_device};

/// Steps of a row of layers; the last counts.
const STEPS: usize = 3;

/// Milliseconds of a layer on each lane, all batches, and of one batch on its way through it.
#[derive(Debug, Clone, Copy, Default)]
struct Busy {
    cpu_ms: f64,
    link_ms: f64,
    gpu_ms: f64,
    decompress_ms: f64,
    batch_ms: f64,
}

/// A placement's bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'a> {
    /// Of the placement's way to cut attention.
    pub(super) table: &'a Table,
    pub(super) config: &'a ModelConfig,
    pub(super) placement: &'a Placement,
    pub(super) around: Around,
}

impl Bound<'_> {
    /// No decode step is shorter.
    pub(super) fn least_step_ns(&self) -> f64 {
        let Placement { kv, residency, .. } = self.placement;
        let streamed = self.busy(&self.streamed(), true, *kv != Some(MemoryId::VRAM));
        let streams_kv = residency.attention == ResidentAttention::Streamed;
        let resident = self.busy(&self.resident(), false, streams_kv);
        let count = residency.layers.len() as f64;
        let others = self.config.num_layers as f64 - count;
        let all = |part: fn(Busy) -> f64| others * part(streamed) + count * part(resident);
        let lanes: [fn(Busy) -> f64; 5] = [
            |busy| busy.cpu_ms,
            |busy| busy.link_ms,
            |busy| busy.gpu_ms,
            |busy| busy.decompress_ms,
            |busy| busy.batch_ms,
        ];
        lanes.into_iter().map(all).fold(0.0, f64::max) * 1e6
    }

    /// About as long a decode step is.
    pub(super) fn about_step_ns(&self) -> f64 {
        let Placement { kv, residency, .. } = self.placement;
        let layers = self.config.num_layers;
        let compressed = self.table.compression.cases()[0];
        let streamed = LayerMap {
            kv_resident: *kv == Some(MemoryId::VRAM),
            ..LayerMap::of(self.streamed(), compressed)
        };
        let resident = LayerMap {
            weights_resident: true,
            kv_resident: residency.attention != ResidentAttention::Streamed,
            ..LayerMap::of(self.resident(), compressed)
        };
        let row = (0..STEPS * layers).map(|layer| {
            match residency.layers.binary_search(&(layer % layers)) {
                Ok(_) => resident.clone(),
                Err(_) => streamed.clone(),
            }
        });
        let row: Vec<LayerMap> = row.collect();
        let ends = timeline(self.table, &row, &Shape::default()).layer_ends;
        let before = ends.len().checked_sub(layers + 1).map_or(Ps::ZERO, |index| ends[index]);
        let layers_ms = ends.last().map_or(0.0, |end| end.saturating_sub(before).ms());
        (layers_ms + self.around_ms()) * 1e6
    }

    /// About what stands around the layers takes: the last batch's, as the others' is hidden by
    /// layers that are computed meanwhile, or all of them where one device does both.
    fn around_ms(&self) -> f64 {
        let batches = f64::from(self.table.batches);
        let Placement { policy, residency, .. } = self.placement;
        let Around { cpu_ms, gpu_ms, link_ms } = self.around;
        match policy {
            _ if residency.head => gpu_ms * batches,
            Policy::GpuOnly | Policy::Resident | Policy::Flexgen(_) => link_ms + gpu_ms * batches,
            _ => cpu_ms * batches,
        }
    }

    /// Whether the GPU runs each operation of a layer that is streamed.
    fn streamed(&self) -> Vec<bool> {
        let policy = &self.placement.policy;
        let list = layer_list(self.config, policy.chunking());
        let on_gpu =
            |(index, entry): (usize, &_)| decode_device(policy, index, *entry) == Device::Gpu;
        list.iter().enumerate().map(on_gpu).collect()
    }

    /// The same of a layer that stays.
    fn resident(&self) -> Vec<bool> {
        let Placement { policy, residency, .. } = self.placement;
        let attends_on_gpu = residency.attention != ResidentAttention::OnCpu;
        let list = layer_list(self.config, policy.chunking());
        list.iter().map(|entry| attends_on_gpu || !entry.op.is_attention()).collect()
    }

    fn busy(&self, on_gpu: &[bool], streams_weights: bool, streams_kv: bool) -> Busy {
        let batches = f64::from(self.table.batches);
        let compressed = self.table.compression.cases()[0];
        let mut busy = Busy::default();
        for (op, on_gpu) in self.table.ops.iter().zip(on_gpu) {
            if !on_gpu {
                busy.cpu_ms += batches * op.cpu_ms;
                continue;
            }
            busy.gpu_ms += batches * op.gpu_ms;
            if !op.kv {
                busy.decompress_ms += op.decompress_ms;
            }
            match op.kv {
                true if streams_kv => busy.link_ms += batches * op.transfer_ms(compressed),
                false if streams_weights => busy.link_ms += op.transfer_ms(compressed),
                _ => {}
            }
        }
        if let Some(fused) = &self.table.fused {
            let range = &on_gpu[fused.range.clone()];
            match (range.iter().all(|on| *on), range.iter().any(|on| *on)) {
                (true, _) => busy.gpu_ms -= batches * fused.gpu_saved_ms,
                (_, false) => busy.cpu_ms -= batches * fused.cpu_saved_ms,
                _ => {}
            }
        }
        busy.batch_ms = (busy.cpu_ms + busy.gpu_ms) / batches.max(1.0);
        busy
    }
}
