//! Prompts computed in chunks, alone or together with sequences that decode: whatever is computed
//! together, the bits are those of whole prompts.

use crate::common::placed::{cpu_only, group, outcomes, shape, start, two_split};
use crate::common::{llama, opt};
use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{Split, parse_chunking, parse_split};
use program::compile::{CompileError, compile, runs_in_chunks};
use program::formats::KvFormat;
use program::map::{DeviceMap, Schedule, layer_list};
use program::plan::RunShape;
use program::step_table::{Field, List};
use program::topology::MemoryId;
use protocol::table::WorkItem;
use workers::testing::{
    GenerationRequest, InProcess, Outcome, PlacedRequest, continue_group, fill_even, list_work,
    place_request,
};

fn chunked(shape: &RunShape, prefill_chunk: u32) -> RunShape {
    RunShape { prefill_chunk, ..*shape }
}

fn found(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Vec<Outcome> {
    let mut lanes = start(config, shape, map, Variant::best());
    let found = outcomes(&mut lanes, &group(shape, config.vocab_size));
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

/// Returns maps with all operations on the device, and caches and residual stream in either tier.
fn device_alone(config: &ModelConfig) -> Vec<DeviceMap> {
    let homes = [MemoryId::DRAM, MemoryId::VRAM];
    let all = homes.iter().flat_map(|kv| homes.iter().map(move |hidden| (*kv, *hidden)));
    all.map(|(kv, prefill_hidden)| {
        device_map(&Policy::GpuOnly, config, false, DefaultTiers { kv, prefill_hidden })
    })
    .collect()
}

#[test]
fn chunks_of_prompts_give_the_bits_of_whole_ones_in_every_placement() {
    for (config, dtype, kv_format) in [
        (llama(), Dtype::Bf16, KvFormat::Plain),
        (opt(), Dtype::F32, KvFormat::Plain),
        (llama(), Dtype::Bf16, KvFormat::Four),
        (llama(), Dtype::Bf16, KvFormat::Eight),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let with_format = |map: DeviceMap| DeviceMap { kv_format, ..map };
        let expected = found(&config, &shape, &with_format(cpu_only(&config)));
        let mut maps = vec![cpu_only(&config)];
        let ops = layer_list(&config, 0, None).len();
        let splits = [(0, ops), (1, 4), (3, 8), (4, 5), (5, ops)];
        maps.extend(splits.map(|(start, end)| two_split(&config, Split { start, end }, None)));
        maps.extend(device_alone(&config));
        for map in maps.into_iter().map(with_format) {
            for chunk in [1, 4, 7, 256] {
                let case = format!("{:?} {kv_format:?} {} in {chunk}", config.family, map.policy);
                assert_eq!(found(&config, &chunked(&shape, chunk), &map), expected, "{case}");
            }
        }
    }
}

/// Places attention of prefill on another device than the operations around it: every stream passes
/// a segment before any stream passes the next.
#[test]
fn a_prefill_layer_on_both_sides_gives_the_bits_of_one_on_the_cpu() {
    let config = llama();
    let shape = shape(2, 3, 2, Dtype::Bf16);
    let expected = found(&config, &shape, &cpu_only(&config));
    let split = parse_split("k:up", &config, None).expect("a split");
    let mut map = two_split(&config, split, None);
    map.prefill = map.decode.clone();
    for chunk in [1, 4, 7] {
        assert_eq!(found(&config, &chunked(&shape, chunk), &map), expected, "in {chunk}");
    }
}

#[test]
fn schedules_with_barriers_give_the_same_bits_in_chunks() {
    let config = llama();
    let shape = shape(2, 3, 2, Dtype::Bf16);
    let expected = found(&config, &shape, &cpu_only(&config));
    for schedule in [Schedule::Barrier, Schedule::BarrierSpread] {
        for map in device_alone(&config) {
            let map = DeviceMap { schedule, weight_slots: 2, kv_slots: 2, ..map };
            assert_eq!(found(&config, &chunked(&shape, 4), &map), expected, "{schedule:?}");
        }
    }
}

/// Computes a prompt longer than a large chunk, with every kernel variant that this machine
/// supports.
#[test]
fn long_prompts_in_chunks_give_the_bits_of_whole_ones_in_every_variant() {
    for (config, dtype, kv_format) in [
        (llama(), Dtype::Bf16, KvFormat::Plain),
        (llama(), Dtype::F32, KvFormat::Plain),
        (llama(), Dtype::Bf16, KvFormat::Four),
        (llama(), Dtype::Bf16, KvFormat::Eight),
    ] {
        let config = ModelConfig { max_positions: 304, ..config };
        let whole = RunShape { max_prompt: 300, max_context: 304, ..shape(1, 2, 1, dtype) };
        let map = DeviceMap { kv_format, ..cpu_only(&config) };
        let requests: Vec<PlacedRequest> = [300, 41]
            .into_iter()
            .enumerate()
            .map(|(slot, length)| {
                let prompt = (0..length).map(|i| ((i * 7 + slot) % 61) as u32).collect();
                let request =
                    GenerationRequest { logprobs: 4, ..GenerationRequest::greedy(prompt, 4) };
                PlacedRequest { batch: 0, slot, request }
            })
            .collect();
        for variant in Variant::available() {
            let of = |chunk| {
                let mut lanes = start(&config, &chunked(&whole, chunk), &map, variant);
                let found = lanes.run_group(&requests);
                assert!(lanes.finish().iter().all(Result::is_ok));
                found
            };
            let expected = of(0);
            for chunk in [7, 256] {
                assert_eq!(of(chunk), expected, "{dtype:?} {kv_format:?} {variant:?} in {chunk}");
            }
        }
    }
}

/// Runs two sequences, of which one decodes in a stream that also computes a chunk of the other
/// one's prompt.
fn mixed(lanes: &mut InProcess, requests: &[GenerationRequest; 2]) -> Vec<Outcome> {
    let table = lanes.table().clone();
    let placed = |slot: usize| PlacedRequest { batch: 0, slot, request: requests[slot].clone() };
    fill_even(&table, lanes.plan(), &[placed(0), placed(1)]);
    [Field::PromptLen, Field::Fresh].iter().for_each(|field| table.set_field(0, 1, *field, 0));
    // The group ends after a decode step, and the first sequence continues.
    table.set_early_end_running(1);
    lanes.release().expect("drains");
    assert!(table.is_running(0, 0), "it is to go on");
    continue_group(&table);
    place_request(&table, &placed(1));
    table.set_early_end_running(0);
    let last_step = list_work(&table);
    let row = table.item(0, List::DECODE, 0);
    table.set_item_count(0, List::DECODE, 0);
    let prompt = requests[1].prompt.len();
    let stream = |number: u16, first: usize, rows: usize, others: &[WorkItem]| {
        let list = List::prefill(number);
        table.set_item_count(0, list, 0);
        let samples = first + rows == prompt;
        let item = WorkItem {
            slot: 1,
            first,
            rows,
            shared_row: None,
            samples,
            logits_rows: samples.into(),
            drafts: 0,
        };
        table.push_item(0, list, item);
        others.iter().for_each(|item| table.push_item(0, list, *item));
    };
    stream(0, 0, 3, &[]);
    stream(1, 3, 3, &[row]);
    stream(2, 6, prompt - 6, &[]);
    lanes.release_listed(last_step).expect("drains");
    (0..2).map(|slot| Outcome::read(&table, &placed(slot))).collect()
}

#[test]
fn rows_that_decode_beside_chunks_of_prompts_have_the_bits_that_they_have_alone() {
    let config = llama();
    for kv_format in [KvFormat::Plain, KvFormat::Four, KvFormat::Eight] {
        let shape = chunked(&shape(1, 3, 2, Dtype::Bf16), 4);
        let request = |first: u32, length: u32, new| {
            let prompt = (0..length).map(|i| (first + i * 7) % 61).collect();
            GenerationRequest { logprobs: 4, ..GenerationRequest::greedy(prompt, new) }
        };
        let requests = [request(3, 5, 6), request(8, 9, 4)];
        let mut maps = vec![cpu_only(&config)];
        maps.extend(device_alone(&config));
        let alone: Vec<Outcome> = (0..2)
            .map(|slot| {
                let map = DeviceMap { kv_format, ..cpu_only(&config) };
                let mut lanes = start(&config, &shape, &map, Variant::best());
                let request = requests[slot].clone();
                let found = lanes.run_group(&[PlacedRequest { batch: 0, slot, request }]);
                assert!(lanes.finish().iter().all(Result::is_ok));
                found[0].clone()
            })
            .collect();
        for map in maps {
            let map = DeviceMap { kv_format, ..map };
            let mut lanes = start(&config, &shape, &map, Variant::best());
            assert_eq!(mixed(&mut lanes, &requests), alone, "{kv_format:?} {}", map.policy);
            assert!(lanes.finish().iter().all(Result::is_ok));
        }
    }
}

/// Decode attends on both sides at once, so the caches are split into parts, in the tiers of either
/// side.
#[test]
fn caches_in_parts_give_the_bits_of_whole_ones() {
    for (config, dtype, kv_format) in [
        (llama(), Dtype::Bf16, KvFormat::Plain),
        (opt(), Dtype::F32, KvFormat::Plain),
        (llama(), Dtype::Bf16, KvFormat::Four),
        (llama(), Dtype::Bf16, KvFormat::Eight),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let expected = found(&config, &shape, &DeviceMap { kv_format, ..cpu_only(&config) });
        for (parts, split) in [("scores=3", "scores.1:"), ("attention=4", "scores.2:wv.3")] {
            let chunking = Some(parse_chunking(parts).expect("a chunking"));
            let split = parse_split(split, &config, chunking).expect("a split");
            for kv in [MemoryId::DRAM, MemoryId::VRAM] {
                let homes = DefaultTiers { kv, prefill_hidden: MemoryId::DRAM };
                let policy = Policy::TwoSplit { split, chunking };
                let map = device_map(&policy, &config, false, homes);
                let is_split = |layer| map.layer_chunking(&config, layer).is_some();
                assert!((0..config.num_layers).any(is_split), "{parts}: no layer is split");
                let map = DeviceMap { kv_format, ..map };
                for chunk in [1, 4, 7, 256] {
                    let case =
                        format!("{:?} {kv_format:?} {parts} {kv:?} in {chunk}", config.family);
                    assert_eq!(found(&config, &chunked(&shape, chunk), &map), expected, "{case}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_chunked_is_refused_with_a_sentence() {
    let config = llama();
    let shape = chunked(&shape(1, 4, 4, Dtype::Bf16), 4);
    let homes = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::DRAM };
    let mut apart = device_map(&Policy::GpuOnly, &config, false, homes);
    assert!(runs_in_chunks(&config, &apart));
    apart.prefill = cpu_only(&config).prefill;
    assert!(!runs_in_chunks(&config, &apart));
    let refused = compile(&config, &shape, &apart);
    assert!(matches!(refused, Err(CompileError::CpuReadsVram { .. })), "{refused:?}");
    let long = RunShape { max_prompt: 1 << 20, ..chunked(&shape, 1) };
    let refused = compile(&config, &long, &cpu_only(&config));
    assert!(matches!(refused, Err(CompileError::TooManyStreams { chunk: 1 })), "{refused:?}");
}
