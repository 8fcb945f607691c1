//! Attention in decode, whole and in parts, and all work whose size depends on the KV length.

use model::ops::{Op, Value};
use program::formats::KvFormat;
use program::ir::Instruction;
use program::map::Phase;
use program::map::{Chunk, ComputeDevice};
use program::topology::LaneId;

use super::{Experiment, Extents, STEPS_MAX, experiment_name};
use crate::bench::{BenchPlanBuilder, BenchShape};
use crate::request::ProfilingRequest;
use crate::stages::Stages;

/// Vocabulary for plans without a head; a token is sampled from it after every step.
pub(super) const SMALL_VOCABULARY: usize = 16;

/// Returns the parts of a split; the whole is `PrefillChunk::WHOLE`.
pub(super) fn parts(of: u16) -> impl Iterator<Item = Chunk> {
    (0..of).map(move |index| Chunk { index, of })
}

fn chunk(part: Chunk) -> Option<Chunk> {
    (part.of > 1).then_some(part)
}

/// Returns the operations that update the states of all layers that have some.
pub(super) fn updates(
    bench: &mut BenchPlanBuilder,
    phase: Phase,
    device: ComputeDevice,
) -> Vec<Instruction> {
    let config = bench.shape().config.clone();
    let mut list = Vec::new();
    for layer in 0..config.num_layers {
        let ops = config.layer_ops(layer).iter().filter(|op| op.updates_state());
        let layer = Some(layer as u16);
        list.extend(ops.map(|op| bench.compute(phase, device, *op, layer, None, (0, 0))));
    }
    list
}

fn ops(
    bench: &mut BenchPlanBuilder,
    device: ComputeDevice,
    layers: u16,
    of: u16,
) -> Vec<Instruction> {
    let mut list = Vec::new();
    for layer in 0..layers {
        for part in parts(of) {
            let selects = bench.shape().config.layer_ops(layer.into()).contains(&Op::Select);
            let select = selects.then_some(Op::Select);
            let ops = [Op::Scores, Op::Softmax, Op::Wv, Op::Attention];
            for op in select.into_iter().chain(ops) {
                let layer = Some(layer);
                list.push(bench.compute(Phase::Decode, device, op, layer, chunk(part), (0, 0)));
            }
        }
        for kv in bench.shape().config.layer_caches(layer.into()) {
            list.extend(parts(of).map(|part| bench.append(*kv, layer, part, device)));
        }
    }
    if of == 1 {
        list.extend(updates(bench, Phase::Decode, device));
    }
    list
}

/// Returns the batch and a quarter of it, at the three lengths; the middle one is the workload's.
fn extents(request: &ProfilingRequest) -> Extents {
    let batch = u32::from(request.batch_size);
    let [first, middle, last] = request.kv_lengths();
    Extents::grid(&[batch, batch.div_ceil(4)], &[middle, first, last])
}

/// Returns the plan for one format of the cache, split into `of` parts.
pub(crate) fn attention(
    request: &ProfilingRequest,
    kv: KvFormat,
    of: u16,
    copies: usize,
) -> Experiment {
    let (mut config, weights) = request.layers(copies);
    config.vocab_size = SMALL_VOCABULARY;
    let layers = copies as u16;
    let mut bench = BenchPlanBuilder::new(BenchShape {
        config,
        dtype: request.dtype,
        weights,
        kv,
        batches: 1,
        batch_size: request.batch_size,
        micro_sequences: 1,
        max_prompt: request.kv_lengths()[2],
        max_new: STEPS_MAX + 1,
        chunks: of,
        device: request.device.is_some(),
    });
    let mut stages = Stages::default();
    stages.push(LaneId::CPU_COMPUTE, ops(&mut bench, ComputeDevice::Cpu, layers, of));
    if request.device.is_some() {
        let mut copies = Vec::new();
        for layer in 0..layers {
            for part in parts(of) {
                let caches = bench.shape().config.layer_caches(layer.into()).iter();
                copies.extend(caches.map(|kv| bench.copy_cache(*kv, layer, part)));
            }
        }
        stages.push(LaneId::H2D_WEIGHTS, copies);
        stages.push(LaneId::GPU_COMPUTE, ops(&mut bench, ComputeDevice::Gpu, layers, of));
        for (lane, to) in
            [(LaneId::H2D_ACTIVATIONS, ComputeDevice::Gpu), (LaneId::D2H, ComputeDevice::Cpu)]
        {
            let values = [Value::Scores, Value::Probabilities, Value::Attended];
            let copies = parts(of)
                .flat_map(|part| values.map(|value| (value, part)))
                .map(|(value, part)| bench.copy_value(value, chunk(part), to))
                .collect();
            stages.push(lane, copies);
        }
    }
    stages.push(LaneId::CPU_COMPUTE, vec![bench.sample(Phase::Decode, ComputeDevice::Cpu, (0, 0))]);
    let prefill = bench.skip_prompts(ComputeDevice::Cpu);
    Experiment {
        name: experiment_name("attention and KV transfer", kv, of),
        plan: bench.plan(prefill, stages),
        phase: Phase::Decode,
        extents: extents(request),
        concurrent_lanes: Vec::new(),
        threads: request.threads,
    }
}
