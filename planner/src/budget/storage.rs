//! Storages from which weights may be read in every step, and the minimum that memory requires to
//! be read.

use model::config::ModelConfig;
use model::ops::Op;
use program::expert_reads::ExpertReads;
use program::expert_records::{ExpertOps, ExpertRecord};
use program::map::{ComputeDevice, DeviceMap};
use program::plan::RunShape;
use program::routing_counts::{PinnedExpert, RoutingCounts};
use program::shares::ReadShares;
use program::sizes::READ_ALIGN_BYTES;
use program::topology::MemoryId;
use program::weights::Weights;

use crate::policy::{StagedLayers, StagedMatrices, hosted_layers};

/// The storages of a machine, and the weights read from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Number of storages, and the share of each weight that each of them reads.
    pub shares: ReadShares,
    pub ops: StagedOps,
    /// Weights that a device multiplies are read directly to it.
    pub direct: bool,
    pub expert_reads: ExpertReads,
    /// Host memory for experts that stay after they were read; 0: none stays.
    pub expert_cache_bytes: u64,
}

impl Storage {
    /// Returns storages from which as little is read as memory requires.
    pub fn auto(shares: ReadShares) -> Storage {
        let expert_reads = ExpertReads::default();
        let (ops, direct) = (StagedOps::Auto, false);
        Storage { shares, ops, direct, expert_reads, expert_cache_bytes: 0 }
    }

    /// Returns the number of experts for which the memory of their cache has capacity: at most all
    /// that a map has on storages, and none if experts are read whole.
    pub(super) fn expert_slots(
        &self,
        config: &ModelConfig,
        shape: &RunShape,
        map: &DeviceMap,
    ) -> u32 {
        let RunShape { batches, batch_size, .. } = *shape;
        let routed = map.expert_reads.routed_experts(config, &map.routing, batches, batch_size);
        // The CPU assigns the slots and computes what is in them.
        let is_used = [Op::Router, Op::ExpertDown].iter().all(|op| runs_on_host(*op, map, config));
        let Some(experts) = routed.filter(|_| self.expert_cache_bytes > 0 && is_used) else {
            return 0;
        };
        let stored_layers = (0..config.num_layers as u16).filter_map(|layer| {
            let record = ExpertRecord::new(config, layer, shape.dtype, &map.weight_formats)?;
            let is_stored =
                |op: &Op| map.weights_of(config, Some(layer), *op) == MemoryId::STORAGES;
            let ops = ExpertOps::from_ops(record.ops().iter().filter(is_stored));
            Some(record.slot_bytes(ops)).filter(|bytes| *bytes > 0)
        });
        let slots_bytes: Vec<u64> = stored_layers.collect();
        let all = slots_bytes.len() * experts.count;
        let slot_bytes = slots_bytes.into_iter().max().unwrap_or(0);
        let slots = self.expert_cache_bytes.checked_div(slot_bytes).unwrap_or(0);
        slots.min(all as u64) as u32
    }

    /// Returns the experts that stay in a map's cache from the start: of those on storages the ones
    /// that were used most, in half of its slots, so that the others follow what is used.
    pub(super) fn pinned_experts(
        config: &ModelConfig,
        routing: Option<&RoutingCounts>,
        map: &DeviceMap,
    ) -> Vec<PinnedExpert> {
        let is_stored = |layer: u16| {
            // The counts may be of more layers.
            if usize::from(layer) >= config.num_layers {
                return false;
            }
            let mut ops = config.layer_ops(layer.into()).iter().filter(|op| op.is_expert());
            ops.any(|op| map.weights_of(config, Some(layer), *op) == MemoryId::STORAGES)
        };
        let count = map.expert_slots as usize / 2;
        routing.map_or_else(Vec::new, |routing| routing.hottest(count, is_stored))
    }

    /// Sets direct reads to a device.
    #[must_use]
    pub fn with_direct_reads(self, direct: bool) -> Storage {
        Storage { direct, ..self }
    }
}

/// Weights that are read in every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagedOps {
    /// Minimum that memory requires: whole layers, spaced as far apart as possible, and some
    /// operations of one more layer, or of two layers if that suffices; nothing if all weights fit.
    /// If only those experts are read that rows are routed to, the experts of as few layers as
    /// suffice, since everything else is read whole.
    /// Reading more never helps: what a device needs passes the link in any case, even if a read
    /// bypasses host memory. The head is never included, since the slot that it would be read into
    /// is as large.
    Auto,
    /// Every weight that can be read.
    All,
    /// The given operations of every layer, whether memory requires it or not.
    Selected(Vec<Op>),
}

impl StagedOps {
    /// Returns what is read regardless of memory; `None` if memory determines it.
    pub(super) fn fixed(&self, config: &ModelConfig) -> Option<StagedMatrices> {
        match self {
            StagedOps::Auto => None,
            StagedOps::All => Some(StagedMatrices::all(config)),
            StagedOps::Selected(ops) => Some(StagedMatrices::ops_of_every_layer(ops, config)),
        }
    }
}

/// Matrices that can be read instead of staying on the host.
#[derive(Debug)]
pub(super) struct StageableWeights {
    /// Matrices of each layer with weights on the host.
    layers: Vec<Vec<(Op, u64)>>,
    /// Bytes of an operation's slots.
    slots: Vec<(Op, u64)>,
    /// Operations whose weights are read in parts; empty if all are read whole.
    routed_ops: Vec<Op>,
}

impl StageableWeights {
    pub(super) fn from_map(
        config: &ModelConfig,
        shape: &RunShape,
        map: &DeviceMap,
    ) -> StageableWeights {
        let dtype = shape.dtype;
        let ops = config.every_layer_op();
        let bytes = |layer: usize, op: Op| {
            let weights = Weights::Layer { layer: layer as u16, op };
            let format = map.weight_formats.of(config, weights);
            weights.size_bytes(config, dtype, format) as u64
        };
        let matrices = || ops.iter().copied().filter(|op| op.has_matrix(config));
        let layer = |layer: usize| {
            let on_host = |op: &Op| {
                config.layer_ops(layer).contains(op)
                    && map.weights_of(config, Some(layer as u16), *op) == MemoryId::DRAM
            };
            let own = matrices().filter(on_host);
            own.map(|op| (op, bytes(layer, op))).collect()
        };
        let slot = |op: Op| {
            if map.direct_reads && !op.is_expert() && !runs_on_host(op, map, config) {
                return (op, 0);
            }
            let record =
                |layer: usize| ExpertRecord::new(config, layer as u16, dtype, &map.weight_formats);
            let slot_bytes = |layer: usize| match op.is_expert() {
                true => record(layer).map_or(0, |record| {
                    record.count * record.slot_bytes(ExpertOps::from_ops([op]))
                }),
                false => bytes(layer, op),
            };
            let largest = (0..config.num_layers).map(slot_bytes).max();
            (op, largest.unwrap_or(0).next_multiple_of(READ_ALIGN_BYTES))
        };
        let RunShape { batches, batch_size, .. } = *shape;
        let routed = map.expert_reads.routed_experts(config, &map.routing, batches, batch_size);
        let routed_ops = matrices()
            .filter(|op| routed.is_some() && op.is_expert() && runs_on_host(*op, map, config));
        StageableWeights {
            layers: hosted_layers(map).into_iter().map(layer).collect(),
            slots: matrices().map(slot).collect(),
            routed_ops: routed_ops.collect(),
        }
    }

    /// Returns the minimum that frees the given number of bytes; `None` if even all layers do not
    /// suffice.
    pub(super) fn min_staged_weights(&self, bytes: u64) -> Option<StagedMatrices> {
        let enough = |staged: &StagedMatrices| self.saved_bytes(staged) >= i128::from(bytes);
        let whole = |layers: usize| StagedMatrices { layers, ..StagedMatrices::NONE };
        let experts = |layers: usize| StagedMatrices {
            partial_layers: layers,
            ops: self.routed_ops.clone(),
            ..StagedMatrices::NONE
        };
        let mut counts = 1..=self.layers.len();
        if !self.routed_ops.is_empty()
            && let Some(count) = counts.find(|count| enough(&experts(*count)))
        {
            return Some(experts(count));
        }
        // With reads to the host, a single layer saves nothing: the slots are as large.
        let layers = (1..=self.layers.len()).find(|layers| enough(&whole(*layers)))?;
        let partly = |ops: Vec<Op>| match layers {
            2 => StagedMatrices { partial_layers: 2, ops, ..StagedMatrices::NONE },
            _ => StagedMatrices { layers: layers - 1, partial_layers: 1, ops, outer: false },
        };
        let some = self.op_subsets().into_iter().map(partly);
        Some(some.into_iter().find(enough).unwrap_or_else(|| whole(layers)))
    }

    /// Returns proper subsets of the operations, in ascending order of bytes.
    fn op_subsets(&self) -> Vec<Vec<Op>> {
        let count = self.slots.len();
        let subset = |bits: u32| {
            let chosen = self.slots.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
            let (ops, bytes): (Vec<Op>, Vec<u64>) = chosen.map(|(_, slot)| *slot).unzip();
            (bytes.iter().sum::<u64>(), ops)
        };
        let mut subsets: Vec<(u64, Vec<Op>)> = (1..(1u32 << count) - 1).map(subset).collect();
        subsets.sort_by_key(|(bytes, ops)| (*bytes, ops.len()));
        subsets.into_iter().map(|(_, ops)| ops).collect()
    }

    /// Returns the bytes that leave the host, less the slots that are added.
    fn saved_bytes(&self, staged: &StagedMatrices) -> i128 {
        let StagedLayers { whole, partly } = staged.select_layers(self.layers.len());
        let is_read = |op: Op| !whole.is_empty() || staged.ops.contains(&op);
        let all = |layer: &usize| self.layers[*layer].iter().map(|(_, bytes)| *bytes).sum::<u64>();
        let some = |layer: &usize| {
            let read = self.layers[*layer].iter().filter(|(op, _)| staged.ops.contains(op));
            read.map(|(_, bytes)| *bytes).sum::<u64>()
        };
        let left = whole.iter().map(all).sum::<u64>() + partly.iter().map(some).sum::<u64>();
        let slots = self.slots.iter().filter(|(op, _)| is_read(*op)).map(|(_, bytes)| *bytes);
        i128::from(left) - i128::from(slots.sum::<u64>())
    }
}

/// Returns true if the host multiplies an operation's weights in any layer.
fn runs_on_host(op: Op, map: &DeviceMap, config: &ModelConfig) -> bool {
    (0..config.num_layers).any(|layer| {
        let prefill = config.layer_ops(layer).iter().zip(&map.prefill.layers[layer]);
        let decode = map.decode_layer(config, layer).into_iter();
        let of_op = prefill.filter(|(other, _)| **other == op).map(|(_, device)| *device);
        let of_op = of_op.chain(decode.filter(|(one, _)| one.op == op).map(|(_, device)| device));
        of_op.into_iter().any(|device| device == ComputeDevice::Cpu)
    })
}
