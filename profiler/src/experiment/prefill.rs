//! Attention over prompts, and what goes with it: appends of whole prompts, and sampling on the
//! device, which no other plan has (two samplers would draw two tokens a step).

use model::ops::{Kv, Op};
use program::formats::KvFormat;
use program::ir::Instruction;
use program::map::Device;
use program::map::Phase;
use program::topology::LaneId;

use super::Experiment;
use super::attention::parts;
use crate::bench::{Bench, BenchShape, compute_lane};
use crate::key::Extent;
use crate::request::Request;
use crate::stages::Stages;

fn ops(bench: &mut Bench, device: Device, of: u16) -> Vec<Instruction> {
    let mut list = Vec::new();
    if of == 1 {
        list.push(bench.compute(Phase::Prefill, device, Op::Attention, Some(0), None, (0, 0)));
    }
    for kv in [Kv::K, Kv::V] {
        list.extend(parts(of).map(|part| bench.append(kv, 0, part, device)));
    }
    list
}

/// A stream of whole prompts, then fewer and shorter ones.
fn extents(request: &Request) -> Vec<Extent> {
    let mut extents = Vec::new();
    for sequences in [u32::from(request.micro_sequences), 1] {
        for positions in [request.max_prompt, request.max_prompt.div_ceil(2)] {
            let extent = Extent { sequences, positions };
            if !extents.contains(&extent) {
                extents.push(extent);
            }
        }
    }
    extents
}

/// The plan for one form of the cache, split into `of` parts.
pub(crate) fn prefill(request: &Request, kv: KvFormat, of: u16) -> Experiment {
    let (config, weights) = request.layers(1);
    let mut bench = Bench::new(BenchShape {
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
    let sampler = if request.device.is_some() { Device::Gpu } else { Device::Cpu };
    let mut prefill = Stages::default();
    prefill.then(LaneId::CPU_COMPUTE, ops(&mut bench, Device::Cpu, of));
    if sampler == Device::Gpu {
        prefill.then(LaneId::GPU_COMPUTE, ops(&mut bench, Device::Gpu, of));
    }
    prefill.then(compute_lane(sampler), vec![bench.sample(Phase::Prefill, sampler, (0, 0))]);
    let mut decode = Stages::default();
    decode.then(compute_lane(sampler), vec![bench.sample(Phase::Decode, sampler, (0, 0))]);
    Experiment {
        name: "attention over prompts",
        plan: bench.plan(prefill, decode),
        phase: Phase::Prefill,
        extents: extents(request),
        threads: request.threads,
    }
}
