//! Attention over prompts and related work: appends of whole prompts, and sampling on the device,
//! which no other plan has (two samplers would sample two tokens per step).

use model::ops::Op;
use program::formats::KvFormat;
use program::ir::Instruction;
use program::map::ComputeDevice;
use program::map::Phase;
use program::topology::LaneId;

use super::attention::{parts, updates};
use super::{Experiment, Extents, experiment_name};
use crate::bench::{BenchPlanBuilder, BenchShape, compute_lane};
use crate::request::ProfilingRequest;
use crate::stages::Stages;

fn ops(bench: &mut BenchPlanBuilder, device: ComputeDevice, of: u16) -> Vec<Instruction> {
    let mut list = Vec::new();
    if of == 1 {
        let selects = bench.shape().config.layer_ops(0).contains(&Op::Select);
        for op in selects.then_some(Op::Select).into_iter().chain([Op::Attention]) {
            list.push(bench.compute(Phase::Prefill, device, op, Some(0), None, (0, 0)));
        }
        list.extend(updates(bench, Phase::Prefill, device));
    }
    for kv in bench.shape().config.layer_caches(0).iter().copied() {
        list.extend(parts(of).map(|part| bench.append(kv, 0, part, device)));
    }
    list
}

/// Returns a stream of whole prompts and one prompt, at the longest length and at half of it.
fn extents(request: &ProfilingRequest) -> Extents {
    let longest = request.max_prompt;
    Extents::grid(&[request.micro_sequences.into(), 1], &[longest, longest.div_ceil(2)])
}

/// Returns the plan for one format of the cache, split into `of` parts.
pub(crate) fn prefill(request: &ProfilingRequest, kv: KvFormat, of: u16) -> Experiment {
    let (config, weights) = request.layers(1);
    let mut bench = BenchPlanBuilder::new(BenchShape {
        config,
        dtype: request.dtype,
        weights,
        kv,
        batches: 1,
        batch_size: request.micro_sequences,
        micro_sequences: request.micro_sequences,
        max_prompt: request.max_prompt.max(1),
        max_new: 1,
        chunks: of,
        device: request.device.is_some(),
    });
    let sampler = if request.device.is_some() { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
    let mut prefill = Stages::default();
    prefill.push(LaneId::CPU_COMPUTE, ops(&mut bench, ComputeDevice::Cpu, of));
    if sampler == ComputeDevice::Gpu {
        prefill.push(LaneId::GPU_COMPUTE, ops(&mut bench, ComputeDevice::Gpu, of));
    }
    prefill.push(compute_lane(sampler), vec![bench.sample(Phase::Prefill, sampler, (0, 0))]);
    let mut decode = Stages::default();
    decode.push(compute_lane(sampler), vec![bench.sample(Phase::Decode, sampler, (0, 0))]);
    Experiment {
        name: experiment_name("attention over prompts", kv, of),
        plan: bench.plan(prefill, decode),
        phase: Phase::Prefill,
        extents: extents(request),
        concurrent_lanes: Vec::new(),
        threads: request.threads,
    }
}
