//! Policies compile, regardless of what is resident on the device.

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use model::ops::Op;
use program::compile::compile;
use program::map::{ChunkOrder, Chunking, ComputeDevice, DeviceMap, Schedule, layer_list};
use program::plan::{Plan, ResidentSource, RunShape};
use program::shares::ReadShares;
use program::topology::{MemoryId, SegmentId};
use program::validate::validate;
use program::weights::Weights;

use super::{
    DefaultTiers, Flexgen, Placement, Policy, Residency, ResidentAttention, SlowTierLayers,
    StagedMatrices, device_map,
};
use crate::lia::OffloadVector;
use crate::split::Split;

const SHAPE: RunShape = RunShape {
    batches: 2,
    batch_size: 2,
    max_prompt: 8,
    shared_prompt: 0,
    max_context: 16,
    max_new: 8,
    logprobs: 0,
    micro_sequences: 2,
    prefill_chunk: 0,
    serves: false,
    page_positions: 0,
    kv_pages: 0,
    checkpoints: 0,
    logits_rows: 0,
    device_slots: 0,
    dtype: Dtype::Bf16,
};
const HOMES: DefaultTiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };

fn config() -> ModelConfig {
    let mut config = find_known("opt-125m").expect("known").config;
    config.num_layers = 4;
    config
}

fn planned(policy: Policy, residency: Residency) -> (DeviceMap, Plan) {
    placed(&Placement { residency, ..Placement::from_policy(policy) })
}

fn placed(placement: &Placement) -> (DeviceMap, Plan) {
    let config = config();
    let map = placement.map(&config, true, HOMES);
    let plan = compile(&config, &SHAPE, &map).expect("compiles");
    (map, plan)
}

fn residency(layers: Vec<usize>, attention: ResidentAttention, head: bool) -> Residency {
    Residency { layers, attention, head }
}

#[test]
fn every_interval_with_resident_layers_compiles() {
    let config = config();
    for chunking in [None, Some(Chunking { order: ChunkOrder::Scores, chunks: 3 })] {
        let count = layer_list(&config, 0, chunking).len();
        for residency in [
            Residency::NONE,
            residency(vec![1, 3], ResidentAttention::Streamed, false),
            residency(vec![0], ResidentAttention::WithKv, true),
            residency(vec![1], ResidentAttention::OnCpu, false),
            residency(vec![], ResidentAttention::WithKv, true),
        ] {
            for start in 0..count {
                for end in start..=count {
                    let policy = Policy::TwoSplit { split: Split { start, end }, chunking };
                    let (map, plan) = planned(policy, residency.clone());
                    assert_eq!(plan.resident.is_empty(), residency.is_none());
                    let on_gpu = map.decode.layers[2].iter().filter(|d| **d == ComputeDevice::Gpu);
                    assert_eq!(on_gpu.count(), end - start);
                }
            }
        }
    }
}

#[test]
fn streamed_chunks_have_slots_for_two_batches() {
    let chunking = Some(Chunking { order: ChunkOrder::Scores, chunks: 3 });
    let slots = |start, end| {
        planned(Policy::TwoSplit { split: Split { start, end }, chunking }, Residency::NONE)
            .0
            .kv_slots
    };
    // ln0 q k v scores.0 scores.1 scores.2 softmax wv ..
    assert_eq!([slots(4, 6), slots(5, 9), slots(0, 4)], [4, 4, 2]);
}

#[test]
fn the_cpu_alone_needs_no_device() {
    let (map, plan) = planned(Policy::CpuOnly, Residency::NONE);
    assert_eq!(plan.segment_bytes(SegmentId::DEVICE), 0);
    assert!(!map.uses_gpu());
    let cpu = Policy::Lia {
        prefill: OffloadVector::FULL_CPU,
        decode: OffloadVector::FULL_CPU,
        spread: false,
    };
    assert!(!planned(cpu, Residency::NONE).0.uses_gpu());
}

#[test]
fn every_vector_is_a_map_that_compiles() {
    for decode in OffloadVector::all() {
        let residency = residency(vec![0], ResidentAttention::Streamed, false);
        let policy = Policy::Lia { prefill: OffloadVector::FULL_GPU, decode, spread: false };
        let (map, _) = planned(policy, residency.clone());
        assert_eq!(map.policy, "lia");
        assert!(map.decode.layers[0].iter().all(|device| *device == ComputeDevice::Gpu));
        // scores, out, fc0 of ln0 q k v scores softmax wv out ln1 fc0 fc1
        let found = [4, 7, 9].map(|entry| map.decode.layers[1][entry] == ComputeDevice::Cpu);
        assert_eq!(found, [decode.0[1], decode.0[3], decode.0[4]]);
    }
}

#[test]
fn a_prefill_vector_that_cuts_attention_is_refused_by_the_compiler() {
    let cut = OffloadVector([true, true, false, true, true, true]);
    let policy = Policy::Lia { prefill: cut, decode: OffloadVector::FULL_CPU, spread: false };
    let map = device_map(&policy, &config(), true, HOMES);
    assert!(compile(&config(), &SHAPE, &map).is_err());
}

#[test]
fn flexgen_runs_its_own_loop_and_is_proved() {
    for (spread, schedule) in [(false, Schedule::Barrier), (true, Schedule::BarrierSpread)] {
        for cpu_attention in [false, true] {
            let policy = Policy::Flexgen(Flexgen { spread, cpu_attention });
            let (map, plan) = planned(policy, Residency::NONE);
            assert_eq!(map.schedule, schedule);
            let on_cpu =
                map.decode.layers[1].iter().filter(|device| **device == ComputeDevice::Cpu);
            assert_eq!(on_cpu.count(), if cpu_attention { 3 } else { 0 });
            validate(&plan).expect("safe");
        }
    }
}

/// The placements of prompts, KV and resident layers can be combined freely, and the plans are
/// valid.
#[test]
fn what_a_placement_leaves_open_goes_together() {
    let whole = layer_list(&config(), 0, None).len();
    let split = |start, end| Policy::TwoSplit { split: Split { start, end }, chunking: None };
    let policies = [
        Policy::GpuOnly,
        Policy::Resident,
        split(0, 0),
        split(4, 7),
        split(5, 6),
        split(0, whole),
        Policy::OneSplit { start: 4, chunking: None },
        Policy::Flexgen(Flexgen::default()),
    ];
    let residencies = [
        Residency::NONE,
        residency(vec![1, 3], ResidentAttention::WithKv, true),
        residency(vec![0, 1, 2, 3], ResidentAttention::WithKv, true),
        residency(vec![2], ResidentAttention::OnCpu, false),
        residency(vec![0, 1, 2, 3], ResidentAttention::OnCpu, false),
    ];
    for policy in policies {
        for residency in &residencies {
            for kv in [None, Some(MemoryId::DRAM), Some(MemoryId::VRAM)] {
                for (prefill_on_cpu, device_batches) in
                    [(false, 0), (true, 0), (false, 1), (true, 1)]
                {
                    let residency = residency.clone();
                    let placement = Placement {
                        policy,
                        prefill_on_cpu,
                        kv,
                        device_batches,
                        residency,
                        slow_tier: SlowTierLayers::NONE,
                        staged: StagedMatrices::NONE,
                    };
                    let (map, plan) = placed(&placement);
                    validate(&plan).unwrap_or_else(|error| panic!("{placement:?}: {error}"));
                    let on_device = map.decode.layers[1][4] == ComputeDevice::Gpu;
                    if kv == Some(MemoryId::VRAM) && on_device && placement.residency.is_none() {
                        assert_eq!(map.kv[1].k, [MemoryId::VRAM], "{placement:?}");
                    }
                }
            }
        }
    }
}

/// A weight is on the host alone, on every storage, or on the device alone.
#[test]
fn every_weight_has_one_home_whatever_is_read() {
    let config = config();
    let staged = |layers, partial_layers, ops: &[Op]| StagedMatrices {
        layers,
        partial_layers,
        ops: ops.into(),
        outer: true,
    };
    let reads = [
        StagedMatrices::all(&config),
        staged(2, 1, &[Op::Fc1]),
        staged(0, 2, &[Op::Q, Op::Fc0]),
        StagedMatrices::ops_of_every_layer(&[Op::Out, Op::Norm0], &config),
    ];
    let residencies = [
        Residency::NONE,
        residency(vec![1, 3], ResidentAttention::WithKv, true),
        residency(vec![0, 1, 2], ResidentAttention::OnCpu, false),
    ];
    let split = Policy::TwoSplit { split: Split { start: 4, end: 7 }, chunking: None };
    for policy in [Policy::CpuOnly, Policy::GpuOnly, split, Policy::Flexgen(Flexgen::default())] {
        for (residency, staged) in
            residencies.iter().flat_map(|one| reads.iter().map(move |other| (one, other)))
        {
            let (residency, staged) = (residency.clone(), staged.clone());
            let placement = Placement { residency, staged, ..Placement::from_policy(policy) };
            let mut map = placement.map(&config, true, HOMES);
            map.shares = ReadShares::new(vec![1, 3]);
            assert!(map.uses_storages(), "{placement:?}");
            let plan = compile(&config, &SHAPE, &map).expect("compiles");
            validate(&plan).unwrap_or_else(|error| panic!("{placement:?}: {error}"));
            for layer in 0..config.num_layers as u16 {
                let stays = placement.residency.layers.contains(&usize::from(layer));
                for op in config.layer_ops(0).iter().filter(|op| op.weights(&config).is_some()) {
                    let weights = Weights::Layer { layer, op: *op };
                    let copies = plan.weights.iter().filter(|one| one.weights == weights);
                    let homes: Vec<MemoryId> =
                        copies.map(|one| plan.buffer(one.buffer).segment.memory).collect();
                    let is_read = map.weights_of(&config, Some(layer), *op) == MemoryId::STORAGES;
                    let storages: Vec<MemoryId> =
                        plan.topology.storages().into_iter().map(|(storage, _)| storage).collect();
                    let expected = match stays {
                        true => Vec::new(),
                        false if is_read => storages,
                        false => vec![plan.topology.host()],
                    };
                    assert_eq!(homes, expected, "{placement:?} {weights:?}");
                    let source = ResidentSource::Model(weights);
                    let is_resident = plan.resident.iter().any(|one| one.source == source);
                    assert_eq!(is_resident, stays, "{placement:?} {weights:?}");
                    assert!(!is_read || !(stays || matches!(op, Op::Norm0 | Op::Norm1)));
                }
            }
        }
    }
}
