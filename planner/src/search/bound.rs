//! Lower bound and estimate of a placement's decode step, from the table of operations: the work of
//! its busiest lane, the path of one batch through all layers, and the reads from storages. The
//! bound excludes placements from compilation; the estimate determines which to compile first.

use model::config::ModelConfig;
use program::map::{ComputeDevice, leading_list};
use program::topology::MemoryId;

use super::table::OuterTimes;
use crate::budget::SlowTierShares;
use crate::layer::steady::{LayerMap, SlotLimits, simulate_layers};
use crate::layer::table::OperationTable;
use crate::layer::time::Ps;
use crate::policy::{Placement, Policy, ResidentAttention, decode_device};

/// Number of steps in a row of layers; the last one counts.
const TIMELINE_STEPS: usize = 3;

/// Duration of a layer on each lane for all batches, and of one batch on its path through it, in
/// ms.
#[derive(Debug, Clone, Copy, Default)]
struct LayerBusyTimes {
    cpu_ms: f64,
    link_ms: f64,
    gpu_ms: f64,
    decompress_ms: f64,
    batch_ms: f64,
}

/// Weights of a placement in an additional host memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlowTierBound<'a> {
    /// Table for all weights in that memory.
    pub(super) table: &'a OperationTable,
    pub(super) host: Option<&'a OperationTable>,
    pub(super) shares: SlowTierShares,
}

/// Inputs of a placement's bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepBound<'a> {
    /// Table for the placement's split of attention.
    pub(super) table: &'a OperationTable,
    /// Traffic of operations in host memory, if lanes share it.
    pub(super) host: Option<&'a OperationTable>,
    /// Weights in additional memories; ignored by the lower bound, as is contention then.
    pub(super) slow_tier: Option<SlowTierBound<'a>>,
    pub(super) config: &'a ModelConfig,
    pub(super) placement: &'a Placement,
    /// Memory of the KV that only the device reads, if the placement leaves it open.
    pub(super) default_kv_tier: MemoryId,
    pub(super) outer: OuterTimes,
    /// Lower bound on the time that storages read in every step.
    pub(super) read_ns: f64,
    /// Weights may reach the device without the lane that copies them, so that the copy time bounds
    /// nothing.
    pub(super) reads_directly: bool,
}

impl StepBound<'_> {
    /// Returns a lower bound on every decode step.
    pub(super) fn lower_bound_ns(&self) -> f64 {
        let lanes: [fn(LayerBusyTimes) -> f64; 5] = [
            |busy| busy.cpu_ms,
            |busy| busy.link_ms,
            |busy| busy.gpu_ms,
            |busy| busy.decompress_ms,
            |busy| busy.batch_ms,
        ];
        let alone_ns = 1e6 * self.longest_ms(self.table, &lanes);
        let is_near = self.slow_tier.is_none_or(|far| far.shares == SlowTierShares::default());
        let host_ns = if is_near { self.host_ns() } else { 0.0 };
        alone_ns.max(host_ns).max(self.read_ns)
    }

    /// Returns the duration of a step's traffic in host memory, which CPU and link share.
    fn host_ns(&self) -> f64 {
        let both: [fn(LayerBusyTimes) -> f64; 1] = [|busy| busy.cpu_ms + busy.link_ms];
        self.host.map_or(0.0, |host| 1e6 * self.longest_ms(host, &both))
    }

    /// Returns all layers' milliseconds by a table, the longest of the given lanes.
    fn longest_ms(&self, table: &OperationTable, lanes: &[fn(LayerBusyTimes) -> f64]) -> f64 {
        let residency = &self.placement.residency;
        let by_table = StepBound { table, ..*self };
        let streamed = by_table.busy(&self.streamed(), !self.reads_directly, self.streamed_kv());
        let streams_kv = residency.attention == ResidentAttention::Streamed;
        let resident = by_table.busy(&self.resident(), false, f64::from(u8::from(streams_kv)));
        let count = residency.layers.len() as f64;
        let others = self.config.num_layers as f64 - count;
        let all =
            |part: &fn(LayerBusyTimes) -> f64| others * part(streamed) + count * part(resident);
        lanes.iter().map(all).fold(0.0, f64::max)
    }

    /// Returns the fraction of a streamed layer's KV that is streamed too.
    fn streamed_kv(&self) -> f64 {
        let Placement { kv, device_batches, .. } = self.placement;
        match kv.unwrap_or(self.default_kv_tier) {
            MemoryId::VRAM => 0.0,
            _ => 1.0 - f64::from(*device_batches) / f64::from(self.table.batches.max(1)),
        }
    }

    /// Returns an estimate of a decode step's duration.
    pub(super) fn estimate_ns(&self) -> f64 {
        let slow_tier = self.slow_tier.filter(|far| far.shares != SlowTierShares::default());
        let Some(SlowTierBound { table, host, shares }) = slow_tier else {
            return self.fast_tier_estimate_ns();
        };
        let on_gpu = self.streamed();
        let blend_tables = |near: &OperationTable, slow_tier: &OperationTable| {
            let mut mixed = near.clone();
            for ((op, slow_tier), on_gpu) in mixed.ops.iter_mut().zip(&slow_tier.ops).zip(&on_gpu) {
                let share = if *on_gpu { shares.gpu } else { shares.cpu };
                let interpolate =
                    |near: &mut f64, slow_tier: f64| *near += share * (slow_tier - *near);
                interpolate(&mut op.cpu_ms, slow_tier.cpu_ms);
                if !op.kv {
                    interpolate(&mut op.h2d_ms, slow_tier.h2d_ms);
                    interpolate(&mut op.h2d_compressed_ms, slow_tier.h2d_compressed_ms);
                }
            }
            mixed
        };
        let table = blend_tables(self.table, table);
        let host = self.host.zip(host).map(|(near, far)| blend_tables(near, far));
        let (table, host) = (&table, host.as_ref());
        StepBound { table, host, slow_tier: None, ..*self }.fast_tier_estimate_ns()
    }

    fn fast_tier_estimate_ns(&self) -> f64 {
        let share = self.streamed_kv();
        let mut step_ns = 0.0;
        for (kv_resident, part) in [(false, share), (true, 1.0 - share)] {
            if part > 0.0 {
                step_ns += part * self.step_ns(kv_resident);
            }
        }
        step_ns.max(self.host_ns()).max(self.read_ns)
    }

    /// Returns the duration of a step with all KV of streamed layers streamed, or none.
    fn step_ns(&self, kv_resident: bool) -> f64 {
        let residency = &self.placement.residency;
        let layers = self.config.num_layers;
        let compressed = self.table.compression.search_cases()[0];
        let streamed = LayerMap { kv_resident, ..LayerMap::of(self.streamed(), compressed) };
        let resident = LayerMap {
            weights_resident: true,
            kv_resident: residency.attention != ResidentAttention::Streamed,
            ..LayerMap::of(self.resident(), compressed)
        };
        let row = (0..TIMELINE_STEPS * layers).map(|layer| {
            match residency.layers.binary_search(&(layer % layers)) {
                Ok(_) => resident.clone(),
                Err(_) => streamed.clone(),
            }
        });
        let row: Vec<LayerMap> = row.collect();
        let ends = simulate_layers(self.table, &row, &SlotLimits::default()).layer_ends;
        let before = ends.len().checked_sub(layers + 1).map_or(Ps::ZERO, |index| ends[index]);
        let layers_ms = ends.last().map_or(0.0, |end| end.saturating_sub(before).ms());
        (layers_ms + self.outer_ms()) * 1e6
    }

    /// Returns an estimate for embedding, head and sampling of all batches.
    fn outer_ms(&self) -> f64 {
        let batches = f64::from(self.table.batches);
        let Placement { policy, residency, .. } = self.placement;
        let OuterTimes { cpu_ms, gpu_ms, link_ms } = self.outer;
        match policy {
            _ if residency.head => gpu_ms * batches,
            Policy::GpuOnly | Policy::Resident | Policy::Flexgen(_) => link_ms + gpu_ms * batches,
            _ => cpu_ms * batches,
        }
    }

    /// Returns for each operation of a streamed layer whether the GPU runs it.
    fn streamed(&self) -> Vec<bool> {
        let policy = &self.placement.policy;
        let list = leading_list(self.config, policy.chunking());
        let on_gpu = |(index, entry): (usize, &_)| {
            decode_device(policy, index, *entry) == ComputeDevice::Gpu
        };
        list.iter().enumerate().map(on_gpu).collect()
    }

    /// Returns for each operation of a resident layer whether the GPU runs it.
    fn resident(&self) -> Vec<bool> {
        let Placement { policy, residency, .. } = self.placement;
        let attends_on_gpu = residency.attention != ResidentAttention::OnCpu;
        let list = leading_list(self.config, policy.chunking());
        list.iter().map(|entry| attends_on_gpu || !entry.op.is_attention()).collect()
    }

    /// Returns the busy times of a layer; `streamed_kv` is the fraction of KV that is streamed.
    fn busy(&self, on_gpu: &[bool], streams_weights: bool, streamed_kv: f64) -> LayerBusyTimes {
        let batches = f64::from(self.table.batches);
        let compressed = self.table.compression.search_cases()[0];
        let mut busy = LayerBusyTimes::default();
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
                true => busy.link_ms += streamed_kv * batches * op.transfer_ms(compressed),
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
