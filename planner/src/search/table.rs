//! A layer's operations as measured: the table that the search uses and that users see.

use std::collections::HashMap;
use std::ops::Range;

use model::ops::{Kv, Op};
use program::ir::{Instruction, Moved, Program, ProgramId};
use program::map::{Chunking, OpChunk, leading_list};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts};
use program::topology::{LaneId, LaneSet, MemoryId};

use super::{CostError, Estimator, Pricing};
use crate::budget::{PlacementRequest, step_read_bytes};
use crate::layer::table::{
    Compression, CostModelName, FusedCost, OpCost, OperationTable, dataflow,
};
use crate::policy::{
    Placement, Policy, Residency, SlowTierLayers, SlowTierWeights, StagedMatrices,
};
use crate::split::Split;

/// Decode on the CPU of a machine with a device: an emulated one takes some of the cores.
const CPU_WITH_DEVICE: Placement =
    Placement::from_policy(Policy::TwoSplit { split: Split { start: 0, end: 0 }, chunking: None });
/// Decode on the device, whose caches are streamed, so that their transfer can be shown.
const DEVICE_DECODE: Placement = Placement {
    policy: Policy::GpuOnly,
    prefill_on_cpu: false,
    kv: Some(MemoryId::DRAM),
    device_batches: 0,
    residency: Residency::NONE,
    slow_tier: SlowTierLayers::NONE,
    staged: StagedMatrices::NONE,
};

/// Returns the layer's table in the middle of the output; for layers of several kinds their mean,
/// in which an operation takes no time in layers without it. CPU times are those concurrent with
/// transfers of weights, since in a split the link is never idle for long (Park-Egger fig. 10a). A
/// layer with a state has its costs at the counterparts of its operations.
///
/// # Errors
/// A plan that cannot be priced.
pub fn operation_table(
    estimator: &Estimator<'_>,
    chunking: Option<Chunking>,
) -> Result<OperationTable, CostError> {
    mean_table(estimator, chunking, &[CPU_WITH_DEVICE, DEVICE_DECODE])
}

/// Returns the layer's table with all weights in the first additional host memory.
///
/// # Errors
/// Fails like [`operation_table`].
pub(super) fn slow_tier_table(
    estimator: &Estimator<'_>,
    chunking: Option<Chunking>,
) -> Result<OperationTable, CostError> {
    let mut slow_tier = SlowTierLayers { weights: SlowTierWeights::All, ..SlowTierLayers::NONE };
    slow_tier.layers[0] = estimator.request.config.num_layers;
    let placements = [CPU_WITH_DEVICE, DEVICE_DECODE].map(|side| Placement { slow_tier, ..side });
    mean_table(estimator, chunking, &placements)
}

/// Costs that are the time of instructions' traffic in the host's memory.
#[derive(Debug)]
struct HostMemoryPricing<'a>(&'a dyn Pricing);

impl Pricing for HostMemoryPricing<'_> {
    /// # Errors
    /// Nothing is known of that traffic.
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let costs = self.0.host_memory_costs(plan, program, prompt_len)?;
        costs.ok_or_else(|| CostError("what lanes share was measured with them".to_owned()))
    }
}

/// Returns a table with the time of each operation's traffic in host memory on each side; `None` if
/// lanes share it as measured, or share nothing.
pub(super) fn host_table(
    estimator: &Estimator<'_>,
    table: impl Fn(&Estimator<'_>) -> Result<OperationTable, CostError>,
) -> Option<OperationTable> {
    table(&Estimator { pricing: &HostMemoryPricing(estimator.pricing), ..*estimator }).ok()
}

/// Returns the layer's table for a machine without a device.
///
/// # Errors
/// Fails like [`operation_table`].
pub fn cpu_only_table(estimator: &Estimator<'_>) -> Result<OperationTable, CostError> {
    mean_table(estimator, None, &[Placement::from_policy(Policy::CpuOnly)])
}

fn mean_table(
    estimator: &Estimator<'_>,
    chunking: Option<Chunking>,
    placements: &[Placement],
) -> Result<OperationTable, CostError> {
    let config = estimator.request.config;
    let list = leading_list(config, chunking);
    let leading = LeadingLayer {
        names: config.leading_ops(),
        needs: dataflow(config.of_layer(config.leading_layer()), &list),
        list,
    };
    let of_kind = |of_kind: &Estimator<'_>| table_of_kind(of_kind, &leading, chunking, placements);
    let mean = OperationTable::mean(&estimator.for_each_kind(of_kind)?);
    mean.ok_or_else(|| CostError("the model has no layers".to_owned()))
}

/// The layer by whose operations placements are specified.
struct LeadingLayer {
    names: &'static [Op],
    list: Vec<OpChunk>,
    needs: Vec<Vec<usize>>,
}

fn table_of_kind(
    estimator: &Estimator<'_>,
    leading: &LeadingLayer,
    chunking: Option<Chunking>,
    placements: &[Placement],
) -> Result<OperationTable, CostError> {
    let LeadingLayer { names, list, needs } = leading;
    let (ops, compressed) = operation_costs(estimator, names, placements)?;
    let is_whole = chunking.and_then(Chunking::of_attention).is_none();
    Ok(OperationTable {
        fused: match is_whole && estimator.request.fuse_attention {
            true => {
                let in_list: Vec<Op> = list.iter().map(|entry| entry.op).collect();
                let saved = fused_savings(estimator, &ops, attention(names), placements)?;
                Some(FusedCost { range: attention(&in_list), ..saved })
            }
            false => None,
        },
        ops: list.iter().map(|entry| entry_costs(names, &ops, entry)).collect(),
        batches: u32::from(estimator.batches),
        compression: if compressed { Compression::On } else { Compression::Off },
        nvme: false,
        cost: CostModelName::Simulated,
        needs: Some(needs.clone()),
    })
}

/// Returns the indices of attention in a layer's operations.
fn attention(ops: &[Op]) -> Range<usize> {
    let attends = |op: &Op| op.is_attention();
    let first = ops.iter().position(attends).unwrap_or(0);
    first..ops.iter().rposition(attends).map_or(first, |last| last + 1)
}

/// Returns the costs of separate operations, each including those of which it is the counterpart,
/// and whether any is decompressed.
fn operation_costs(
    estimator: &Estimator<'_>,
    names: &[Op],
    placements: &[Placement],
) -> Result<(Vec<OpCost>, bool), CostError> {
    let config = estimator.request.config;
    let mut costs: HashMap<Op, OpCost> = HashMap::new();
    let separate = Estimator {
        request: &PlacementRequest { fuse_attention: false, ..*estimator.request },
        batches: 1,
        ..*estimator
    };
    let mut compressed = false;
    for placement in placements {
        let layer = PricedLayer::new(&separate, placement)?;
        for (instruction, lane, ms) in layer.timed_work() {
            let mut put = |op: Op, set: &dyn Fn(&mut OpCost)| {
                let name = op.name(config.family);
                set(costs.entry(op).or_insert_with(|| OpCost::named(name)));
            };
            match (instruction, lane) {
                (Instruction::Compute(compute), LaneId::CPU_COMPUTE) => {
                    put(compute.op, &|op| op.cpu_ms = ms);
                }
                (Instruction::Compute(compute), _) => put(compute.op, &|op| op.gpu_ms = ms),
                (Instruction::Copy(copy), LaneId::H2D_WEIGHTS | LaneId::H2D_ACTIVATIONS) => {
                    match copy.moved {
                        Moved::Weights(op) => put(op, &|op| op.h2d_ms = ms),
                        Moved::Cache(kv) => {
                            let reader = if kv == Kv::K { Op::Scores } else { Op::Wv };
                            put(reader, &|op| (op.h2d_ms, op.kv) = (ms, true));
                        }
                        _ => {}
                    }
                }
                (Instruction::Decompress(found), _) => {
                    compressed = true;
                    put(found.op, &|op| op.decompress_ms = ms);
                }
                _ => {}
            }
        }
    }
    // In a fixed order, so that sums are reproducible.
    let mut all: Vec<(Op, OpCost)> = costs.into_iter().collect();
    all.sort_unstable_by_key(|(op, _)| *op);
    let mut ops: Vec<OpCost> =
        names.iter().map(|op| OpCost::named(op.name(config.family))).collect();
    for (op, cost) in all {
        let op = op.counterpart(config);
        if let Some(index) = names.iter().position(|other| *other == op) {
            ops[index].add(&cost);
        }
    }
    if compressed {
        // Transferred data is already in the format of the map.
        for op in &mut ops {
            op.h2d_compressed_ms = op.h2d_ms;
        }
    }
    Ok((ops, compressed))
}

/// Duration of the operations outside the layers for one batch, in ms: embedding, final norm, head
/// and sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct OuterTimes {
    /// Duration with the head on the CPU, and on the device.
    pub(super) cpu_ms: f64,
    pub(super) gpu_ms: f64,
    /// Transfer of the head's weights over the link, for all batches.
    pub(super) link_ms: f64,
}

/// Returns the durations.
///
/// # Errors
/// A plan that cannot be priced.
pub(super) fn outer_times(estimator: &Estimator<'_>) -> Result<OuterTimes, CostError> {
    let one = Estimator { batches: 1, ..*estimator };
    let mut outer = OuterTimes::default();
    for (instruction, lane, ms) in PricedLayer::new(&one, &CPU_WITH_DEVICE)?.outer_work() {
        if lane == LaneId::CPU_COMPUTE && matches!(instruction, Instruction::Compute(_)) {
            outer.cpu_ms += ms;
        }
    }
    for (instruction, lane, ms) in PricedLayer::new(&one, &DEVICE_DECODE)?.outer_work() {
        match (instruction, lane) {
            (Instruction::Copy(_), LaneId::H2D_WEIGHTS) => outer.link_ms += ms,
            (Instruction::Compute(_), _) => outer.gpu_ms += ms,
            _ => {}
        }
    }
    Ok(outer)
}

/// Returns the nanoseconds for each byte of weights that all storages together read; 0 without
/// storages.
///
/// # Errors
/// A plan that cannot be priced.
pub(super) fn read_ns_per_byte(estimator: &Estimator<'_>) -> Result<f64, CostError> {
    if estimator.request.storage.is_none() {
        return Ok(0.0);
    }
    let staged = StagedMatrices::all_layers(estimator.request.config);
    let layer = PricedLayer::new(estimator, &Placement { staged, ..CPU_WITH_DEVICE })?;
    let mut lanes_ms: HashMap<LaneId, f64> = HashMap::new();
    for (instruction, lane, ms) in layer.timed_work() {
        if matches!(instruction, Instruction::Read(_)) {
            *lanes_ms.entry(lane).or_default() += ms;
        }
    }
    let longest_ms = lanes_ms.into_values().fold(0.0, f64::max);
    Ok(longest_ms * 1e6 / step_read_bytes(&layer.plan).max(1) as f64)
}

/// Returns the saving of one device by running attention as one operation.
fn fused_savings(
    estimator: &Estimator<'_>,
    ops: &[OpCost],
    range: Range<usize>,
    placements: &[Placement],
) -> Result<FusedCost, CostError> {
    let one = Estimator { batches: 1, ..*estimator };
    let mut saved = [0.0; 2];
    for (placement, saved) in placements.iter().zip(&mut saved) {
        let on_cpu = placement.policy != DEVICE_DECODE.policy;
        let separate: f64 =
            ops[range.clone()].iter().map(|op| if on_cpu { op.cpu_ms } else { op.gpu_ms }).sum();
        let layer = PricedLayer::new(&one, placement)?;
        // Operations that update a state are whole already.
        let is_whole =
            |op: Op| op == Op::Attention || op.prepares_attention() || op.updates_state();
        let whole: f64 = layer
            .timed_work()
            .filter(|(found, ..)| matches!(found, Instruction::Compute(c) if is_whole(c.op)))
            .map(|(.., ms)| ms)
            .sum();
        *saved = (separate - whole).max(0.0);
    }
    Ok(FusedCost { range, cpu_saved_ms: saved[0], gpu_saved_ms: saved[1] })
}

/// An operation's costs, or an equal part of them.
fn entry_costs(names: &[Op], ops: &[OpCost], entry: &OpChunk) -> OpCost {
    let place = names.iter().position(|op| *op == entry.op).unwrap_or(0);
    match entry.chunk {
        Some(chunk) => ops[place].part(chunk.index, chunk.of),
        None => ops[place].clone(),
    }
}

/// A compiled layer with its costs.
struct PricedLayer {
    plan: Plan,
    costs: Box<dyn SimulationCosts>,
}

impl PricedLayer {
    fn new(estimator: &Estimator<'_>, placement: &Placement) -> Result<PricedLayer, CostError> {
        let plan = estimator.program_plan(placement, 1, ProgramId::DECODE)?;
        let middle = estimator.request.max_prompt + estimator.request.max_new / 2;
        let costs = estimator.pricing.costs_without_contention(&plan, plan.decode(), middle)?;
        Ok(PricedLayer { plan, costs })
    }

    /// Returns the part of [`PricedLayer::timed_work`] that belongs to no layer.
    fn outer_work(&self) -> impl Iterator<Item = (&Instruction, LaneId, f64)> {
        self.timed_work().filter(|(work, ..)| work.at().is_some_and(|at| at.layer.is_none()))
    }

    /// Decode's work with its time, ms.
    fn timed_work(&self) -> impl Iterator<Item = (&Instruction, LaneId, f64)> {
        let program = self.plan.decode();
        program.lanes.iter().flat_map(move |list| {
            let work = list.instructions.iter().enumerate().filter(|(_, found)| found.is_work());
            work.map(move |(index, instruction)| {
                let lane = list.lane;
                let place = Place { program: program.id, lane, instruction: index as u32 };
                let work_ns = self.costs.work_ns(place, instruction, 0);
                let rate = match lane {
                    LaneId::CPU_COMPUTE => {
                        let busy = LaneSet::EMPTY.with(lane).with(LaneId::H2D_WEIGHTS);
                        self.costs.rate(place, busy)
                    }
                    _ => 1.0,
                };
                (instruction, lane, work_ns / rate / 1e6)
            })
        })
    }
}
