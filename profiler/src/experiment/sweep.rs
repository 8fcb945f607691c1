//! Dependence of each class of operations on the number of CPU threads (Park-Egger fig. 10b): one
//! operation represents its class, at the workload's shape.

use model::config::ModelConfig;
use model::ops::Op;
use program::map::ComputeDevice;
use program::map::Phase;
use program::topology::LaneId;

use super::attention::SMALL_VOCABULARY;
use super::{Experiment, Extents, STEPS_MAX};
use crate::bench::{BenchPlanBuilder, BenchShape};
use crate::request::{ComputeThreads, ProfilingRequest};
use crate::stages::Stages;

/// Returns the thread counts: powers of two, three quarters of the maximum, and the maximum.
pub(crate) fn counts(max_threads: u16) -> Vec<u16> {
    let mut counts: Vec<u16> = std::iter::successors(Some(1u16), |n| n.checked_mul(2))
        .take_while(|n| *n < max_threads)
        .collect();
    if max_threads > 4 {
        counts.push(max_threads - max_threads / 4);
    }
    if max_threads > 0 {
        counts.push(max_threads);
    }
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Returns the class of an operation of a layer; `None` for operations outside the layers.
pub(crate) fn class(op: Op, config: &ModelConfig) -> Option<&'static str> {
    match op {
        Op::Embed | Op::FinalNorm | Op::Head | Op::Sample => None,
        _ if op.is_attention() => (op == Op::Attention).then_some("attention"),
        _ if op.has_matrix(config) => Some("linear"),
        _ => Some("small"),
    }
}

/// Returns the operations that represent their classes: the largest linear, fused attention, a
/// norm.
pub(crate) fn representatives(request: &ProfilingRequest) -> [Op; 3] {
    let bytes = |op: &Op| op.weight_bytes(&request.config, request.dtype);
    let ops = ProfilingRequest::row_ops(request.config.leading_ops());
    let linear = ops.into_iter().max_by_key(bytes).unwrap_or(Op::Q);
    [linear, Op::Attention, Op::Norm0]
}

/// Returns the plan for one number of threads; `copies` as for the linears.
pub(crate) fn sweep(request: &ProfilingRequest, copies: usize, cpu: u16) -> Experiment {
    let (mut config, formats) = request.layers(copies);
    config.vocab_size = SMALL_VOCABULARY;
    let main = request.workload_extent();
    let mut bench = BenchPlanBuilder::new(BenchShape {
        config,
        dtype: request.dtype,
        weights: formats,
        kv: request.kv_formats.first().copied().unwrap_or_default(),
        batches: 1,
        batch_size: request.batch_size,
        micro_sequences: 1,
        max_prompt: main.positions,
        max_new: STEPS_MAX + 1,
        chunks: 1,
        device: false,
    });
    let mut list = Vec::new();
    for layer in 0..copies as u16 {
        let mut run =
            |op| bench.compute(Phase::Decode, ComputeDevice::Cpu, op, Some(layer), None, (0, 0));
        for op in representatives(request) {
            // The router's output determines which experts compute a row.
            list.extend(op.is_expert().then(|| run(Op::Router)));
            list.push(run(op));
        }
    }
    list.push(bench.sample(Phase::Decode, ComputeDevice::Cpu, (0, 0)));
    let mut stages = Stages::default();
    stages.push(LaneId::CPU_COMPUTE, list);
    let prefill = bench.skip_prompts(ComputeDevice::Cpu);
    Experiment {
        name: format!("{cpu} CPU threads"),
        plan: bench.plan(prefill, stages),
        phase: Phase::Decode,
        extents: Extents::single(main),
        concurrent_lanes: Vec::new(),
        threads: ComputeThreads { cpu, gpu: 0 },
    }
}
