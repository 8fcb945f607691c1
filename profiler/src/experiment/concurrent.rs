//! Concurrent work: the contention between lanes (Park-Egger fig. 10a), and work that only they do.
//!
//! In each stage two or three lanes work concurrently, each repeating its own list until the
//! longest has ended; the recorder keeps the spans that ran entirely concurrently with the others.
//! Also here: copies of weights alone, decompression, and operations on a batch without sequences,
//! whose spans show the overhead of measuring.

use model::ops::Op;
use program::ir::Instruction;
use program::map::ComputeDevice;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;

use super::attention::SMALL_VOCABULARY;
use super::{Experiment, Extents, STEPS_MAX};
use crate::bench::{BenchPlanBuilder, BenchShape, compute_lane};
use crate::key::WorkKey;
use crate::recorder::Recorder;
use crate::request::ProfilingRequest;
use crate::stages::Stages;

/// Number of operations on the empty batch, per step.
const EMPTY_REPEATS: usize = 64;
/// The batch without sequences.
pub(crate) const EMPTY_BATCH: u16 = 1;
/// Lists are repeated until they are longer than the longest by this factor.
const MARGIN: f64 = 1.1;
const REPEATS_MAX: f64 = 64.0;
/// Link speed assumed if no copy has been measured yet, in bytes/ns.
const LINK_GUESS: f64 = 5.0;

/// Returns one pass over all layers.
fn ops(bench: &mut BenchPlanBuilder, device: ComputeDevice) -> Vec<Instruction> {
    let config = bench.shape().config.clone();
    let mut list = Vec::new();
    for layer in 0..config.num_layers as u16 {
        for op in config.layer_ops(layer.into()) {
            let mut run = |op| bench.compute(Phase::Decode, device, op, Some(layer), None, (0, 0));
            list.push(run(*op));
            if *op == Op::Wv {
                list.push(run(Op::Attention));
            }
        }
    }
    list
}

fn weights(bench: &mut BenchPlanBuilder) -> (Vec<Instruction>, Vec<Instruction>) {
    let config = bench.shape().config.clone();
    let (mut copies, mut decompress) = (Vec::new(), Vec::new());
    for layer in 0..config.num_layers as u16 {
        for op in config.layer_ops(layer.into()).iter().filter(|op| op.weights(&config).is_some()) {
            copies.push(bench.copy_weights(*op, Some(layer)));
            decompress.extend(bench.decompress(*op, layer));
        }
    }
    (copies, decompress)
}

/// Returns the duration of a list alone, as far as it was measured.
fn length_ns(
    request: &ProfilingRequest,
    plan: &Plan,
    lane: LaneId,
    list: &[Instruction],
    recorder: &Recorder,
) -> f64 {
    let one = |instruction: &Instruction| {
        let key = WorkKey::from_instruction(plan, Phase::Decode, lane, instruction)?;
        Some(recorder.alone(&key, key.point(Phase::Decode, request.workload_extent()))?.median_ns)
    };
    list.iter().filter_map(one).sum()
}

/// Returns the concurrent lists, with the shorter ones repeated.
fn interleave(lists: &[(LaneId, &[Instruction], f64)]) -> Vec<(LaneId, Vec<Instruction>)> {
    let longest_ns = lists.iter().map(|list| list.2).fold(0.0, f64::max);
    lists
        .iter()
        .map(|(lane, list, length_ns)| {
            let repeats = (longest_ns * MARGIN / length_ns.max(1.0)).ceil().clamp(1.0, REPEATS_MAX);
            (*lane, vec![*list; repeats as usize].concat())
        })
        .collect()
}

/// The plan; `recorder` says from the experiments before how long the lists take.
pub(crate) fn concurrent_experiment(
    request: &ProfilingRequest,
    copies: usize,
    recorder: &Recorder,
) -> Experiment {
    let (mut config, formats) = request.layers(copies);
    config.vocab_size = SMALL_VOCABULARY;
    let main = request.workload_extent();
    let mut bench = BenchPlanBuilder::new(BenchShape {
        config,
        dtype: request.dtype,
        weights: formats,
        kv: request.kv_formats.first().copied().unwrap_or_default(),
        batches: EMPTY_BATCH + 1,
        batch_size: request.batch_size,
        micro_sequences: 1,
        max_prompt: main.positions,
        max_new: STEPS_MAX + 1,
        chunks: 1,
        device: request.device.is_some(),
    });
    let (mut stages, mut sets) = (Stages::default(), Vec::new());
    let empty = (EMPTY_BATCH, 0);
    let nothing = bench.compute(Phase::Decode, ComputeDevice::Cpu, Op::Norm0, Some(0), None, empty);
    stages.push(LaneId::CPU_COMPUTE, vec![nothing; EMPTY_REPEATS]);
    if request.device.is_some() {
        let cpu = ops(&mut bench, ComputeDevice::Cpu);
        let gpu = ops(&mut bench, ComputeDevice::Gpu);
        let (copied, decompress) = weights(&mut bench);
        stages.push(LaneId::H2D_WEIGHTS, copied.clone());
        stages.push(LaneId::GPU_DECOMPRESS, decompress);
        let peek = bench.peek();
        let bytes: u64 = copied.iter().map(|copy| bench.copied_bytes(copy)).sum();
        let h2d_ns = bytes as f64 / recorder.link_bytes_per_ns().unwrap_or(LINK_GUESS);
        let length = |lane, list: &[Instruction]| length_ns(request, &peek, lane, list, recorder);
        let cpu = (LaneId::CPU_COMPUTE, cpu.as_slice(), length(LaneId::CPU_COMPUTE, &cpu));
        let gpu = (LaneId::GPU_COMPUTE, gpu.as_slice(), length(LaneId::GPU_COMPUTE, &gpu));
        let h2d = (LaneId::H2D_WEIGHTS, copied.as_slice(), h2d_ns);
        for set in [&[cpu, h2d][..], &[gpu, h2d], &[cpu, gpu], &[cpu, gpu, h2d]] {
            sets.push(set.iter().map(|(lane, ..)| *lane).collect());
            stages.push_concurrent(interleave(set));
        }
    }
    let sample = bench.sample(Phase::Decode, ComputeDevice::Cpu, (0, 0));
    stages.push(compute_lane(ComputeDevice::Cpu), vec![sample]);
    let prefill = bench.skip_prompts(ComputeDevice::Cpu);
    Experiment {
        name: "concurrent lanes".to_owned(),
        plan: bench.plan(prefill, stages),
        phase: Phase::Decode,
        extents: Extents::single(main),
        concurrent_lanes: sets,
        threads: request.threads,
    }
}
