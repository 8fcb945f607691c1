//! Models some layers of which have a state: whatever the placement and the chunks of prompts, the
//! bits are those of whole prompts on the CPU, and a slot's next sequence begins with an empty
//! state.

use crate::common::placed::{cpu_only, group, intervals, outcomes, shape, start, two_split};
use crate::common::{channel_delta, convolving, delta, delta_experts, mamba};
use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use planner::policy::{DefaultTiers, Placement, Policy, Residency, ResidentAttention, device_map};
use planner::split::{Split, parse_chunking, parse_split};
use program::compile::compile;
use program::map::{ComputeDevice, DeviceMap, Schedule, leading_list};
use program::plan::RunShape;
use program::topology::MemoryId;
use workers::device::check;
use workers::testing::{GenerationRequest, Outcome, PlacedRequest};

const HOMES: DefaultTiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };

fn found(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Vec<Outcome> {
    let mut lanes = start(config, shape, map, Variant::best());
    let found = outcomes(&mut lanes, &group(shape, config.vocab_size));
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

#[test]
fn every_interval_gives_the_bits_of_the_cpu() {
    for (config, dtype) in [
        (delta(), Dtype::Bf16),
        (delta_experts(), Dtype::F32),
        (channel_delta(), Dtype::Bf16),
        (convolving(), Dtype::F32),
        (mamba(), Dtype::Bf16),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let expected = found(&config, &shape, &cpu_only(&config));
        let ops = leading_list(&config, None).len();
        for split in intervals(ops) {
            let map = two_split(&config, split, None);
            let case = format!("{split:?} {dtype:?}");
            assert_eq!(found(&config, &shape, &map), expected, "{case}");
        }
    }
}

/// Covers placements that keep states on either side.
#[test]
fn chunks_of_prompts_give_the_bits_of_whole_ones_in_every_placement() {
    for (config, dtype) in [
        (delta(), Dtype::F32),
        (delta_experts(), Dtype::Bf16),
        (channel_delta(), Dtype::F32),
        (convolving(), Dtype::Bf16),
        (mamba(), Dtype::F32),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let expected = found(&config, &shape, &cpu_only(&config));
        let mut maps = vec![cpu_only(&config)];
        let ops = leading_list(&config, None).len();
        let splits = [(0, ops), (1, 4), (3, 8), (4, 5), (5, ops)];
        maps.extend(splits.map(|(start, end)| two_split(&config, Split { start, end }, None)));
        maps.push(device_map(&Policy::GpuOnly, &config, false, HOMES));
        for map in maps {
            for prefill_chunk in [1, 4, 7, 256] {
                let shape = RunShape { prefill_chunk, ..shape };
                let case = format!("{dtype:?} {} in {prefill_chunk}", map.policy);
                assert_eq!(found(&config, &shape, &map), expected, "{case}");
            }
        }
    }
}

#[test]
fn schedules_parts_and_resident_layers_give_the_same_bits() {
    let config = delta();
    let shape = shape(2, 3, 2, Dtype::Bf16);
    let expected = found(&config, &shape, &cpu_only(&config));
    let alone = device_map(&Policy::GpuOnly, &config, false, HOMES);
    for schedule in [Schedule::Barrier, Schedule::BarrierSpread] {
        let map = DeviceMap { schedule, weight_slots: 2, kv_slots: 2, ..alone.clone() };
        assert_eq!(found(&config, &shape, &map), expected, "{schedule:?}");
    }
    for (parts, split) in [("scores=3", "scores.1:"), ("attention=4", "scores.2:wv.3")] {
        let chunking = Some(parse_chunking(parts).expect("a chunking"));
        let split = parse_split(split, &config, chunking).expect("a split");
        let map = two_split(&config, split, chunking);
        assert_eq!(found(&config, &shape, &map), expected, "{parts}");
    }
    for attention in ResidentAttention::ALL {
        for prefill_on_cpu in [false, true] {
            let residency = Residency { layers: vec![0], attention, head: false };
            let split = parse_split("k:up", &config, None).expect("a split");
            let policy = Policy::TwoSplit { split, chunking: None };
            let placement = Placement {
                residency,
                prefill_on_cpu,
                device_batches: 1,
                ..Placement::from_policy(policy)
            };
            let map = placement.map(&config, true, HOMES);
            assert_eq!(map.kv[0].v, [MemoryId::VRAM], "layer 0 is resident");
            assert_eq!(found(&config, &shape, &map), expected, "{attention:?} {prefill_on_cpu}");
        }
    }
}

/// A state is updated on one device, even if the policy places operations of prefill elsewhere.
#[test]
fn prompts_update_states_where_decode_does() {
    let config = delta();
    let split = parse_split("scores:up", &config, None).expect("a split");
    let map = two_split(&config, split, None);
    for (place, op) in config.layer_ops(0).iter().enumerate() {
        let (prefill, decode) = (map.prefill.layers[0][place], map.decode.layers[0][place]);
        assert!(!op.updates_state() || prefill == decode, "{op:?}");
        assert!(op.updates_state() || prefill == ComputeDevice::Gpu, "{op:?}");
    }
}

/// Runs every variant with a prompt longer than a large chunk together with a short one, and then
/// with another sequence in the same slots.
#[test]
fn long_prompts_in_chunks_give_the_bits_of_whole_ones_in_every_variant() {
    for (config, dtype) in [
        (delta(), Dtype::Bf16),
        (delta(), Dtype::F32),
        (channel_delta(), Dtype::Bf16),
        (channel_delta(), Dtype::F32),
        (convolving(), Dtype::F32),
        (mamba(), Dtype::F32),
    ] {
        let config = ModelConfig { max_positions: 304, ..config };
        let whole = RunShape { max_prompt: 300, max_context: 304, ..shape(1, 2, 1, dtype) };
        let placed = |lengths: [u32; 2]| -> Vec<PlacedRequest> {
            let of = |(slot, length): (usize, u32)| {
                let prompt = (0..length).map(|i| (i * 7 + slot as u32) % 61).collect();
                let request =
                    GenerationRequest { logprobs: 4, ..GenerationRequest::greedy(prompt, 4) };
                PlacedRequest { batch: 0, slot, request }
            };
            lengths.into_iter().enumerate().map(of).collect()
        };
        for variant in Variant::available() {
            let of = |prefill_chunk| {
                let shape = RunShape { prefill_chunk, ..whole };
                let mut lanes = start(&config, &shape, &cpu_only(&config), variant);
                let found = [[300, 41], [41, 300], [300, 41]]
                    .map(|lengths| lanes.run_group(&placed(lengths)));
                assert!(lanes.finish().iter().all(Result::is_ok));
                assert_eq!(found[0], found[2], "a state of another sequence was left");
                found
            };
            let expected = of(0);
            for chunk in [7, 256] {
                assert_eq!(of(chunk), expected, "{dtype:?} {variant:?} in {chunk}");
            }
        }
    }
}

/// CUDA's kernels do not support states: a plan that needs them on the device is refused before a
/// device is opened.
#[test]
fn states_on_a_cuda_device_are_refused_by_name() {
    let configs =
        [(delta(), "delta_conv"), (mamba(), "mamba_conv"), (channel_delta(), "delta_conv")];
    for (config, op) in configs {
        let shape = shape(1, 2, 2, Dtype::Bf16);
        let refused = |map: &DeviceMap| {
            let plan = compile(&config, &shape, map).expect("compiles");
            check(&plan).err().map(|error| error.to_string())
        };
        let map = device_map(&Policy::GpuOnly, &config, false, HOMES);
        let sentence = refused(&map).expect("refused");
        assert!(sentence.contains(op) && sentence.contains("--device none"), "{sentence}");
        assert_eq!(refused(&cpu_only(&config)), None);
    }
}
