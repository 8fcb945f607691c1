//! Row independence of the whole model: a sequence's logits have the same bits alone and in every
//! slot of every batch shape, whatever its neighbours, for every kernel variant and any number of
//! threads. Variants may differ among themselves; each is compared with itself.

use std::time::Duration;

use kernels::{PoolOptions, Variant};
use model::config::{Dtype, ModelConfig};
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::ir::ProgramId;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::topology::{LaneId, MemoryId};
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, Interleaved, PlacedRequest, SampledLogits};

const NEW: u32 = 4;
/// Numbers of batches, of slots of a batch, and of sequences in a stream of prefill.
const SHAPES: [(u16, u16, u16); 3] = [(1, 1, 1), (1, 5, 2), (2, 3, 3)];

/// Returns a model with sums over more than one block of a linear's inputs (the feed-forward size)
/// and of attention's positions (the prompt), and with enough columns for several tasks.
fn larger(config: ModelConfig) -> ModelConfig {
    ModelConfig { hidden_size: 40, ffn_size: 530, max_positions: 96, ..config }
}

/// Returns the sequence under test. With its new tokens it crosses a block of 64 positions.
fn subject(config: &ModelConfig) -> GenerationRequest {
    let vocab = config.vocab_size as u32;
    GenerationRequest::greedy((0..62).map(|i| (i * 23 + 7) % vocab).collect(), NEW)
}

/// Returns the subject among neighbours of all lengths, which end before it or with it; one slot of
/// a batch with several neighbours stays empty.
fn around(
    shape: (u16, u16, u16),
    batch: usize,
    slot: usize,
    config: &ModelConfig,
) -> Vec<PlacedRequest> {
    let (batches, batch_size) = (usize::from(shape.0), usize::from(shape.1));
    let mut group = Vec::new();
    for index in 0..batches * batch_size {
        let place = (index / batch_size, index % batch_size);
        if place == (batch, slot) {
            group.push(PlacedRequest { batch, slot, request: subject(config) });
            continue;
        }
        if index == (batch * batch_size + slot + 2) % (batches * batch_size) {
            continue;
        }
        let length = 1 + (index * 29) % 70;
        let prompt = (0..length).map(|i| ((index * 31 + i * 5) % config.vocab_size) as u32);
        let request = GenerationRequest::greedy(prompt.collect(), 1 + (index as u32 * 3) % NEW);
        group.push(PlacedRequest { batch: place.0, slot: place.1, request });
    }
    group
}

/// Returns the bits of the logits of prefill and of every decode step, for the sequence in one
/// place.
fn logits_of(sampled: &[SampledLogits], batch: usize, slot: usize) -> Vec<Vec<u32>> {
    let own: Vec<&SampledLogits> =
        sampled.iter().filter(|other| (other.batch, other.slot) == (batch, slot)).collect();
    let steps: Vec<(ProgramId, u32)> =
        own.iter().map(|other| (other.program, other.step)).collect();
    assert_eq!(
        steps,
        [
            (ProgramId::PREFILL, 0),
            (ProgramId::DECODE, 1),
            (ProgramId::DECODE, 2),
            (ProgramId::DECODE, 3)
        ]
    );
    own.iter()
        .map(|other| {
            assert!(other.logits.iter().all(|logit| logit.is_finite()), "{other:?}");
            other.logits.iter().map(|logit| logit.to_bits()).collect()
        })
        .collect()
}

/// Returns a map with everything on the CPU and fused attention, and one with softmax and the
/// subsequent operations of attention on the device, so that attention runs in its separate stages
/// and two workers compute. The results of the two maps may differ from each other.
fn maps(config: &ModelConfig) -> [DeviceMap; 2] {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let split = parse_split("softmax:out", config, None).expect("a split");
    let two_split = Policy::TwoSplit { split, chunking: None };
    [
        device_map(&Policy::CpuOnly, config, true, homes),
        device_map(&two_split, config, false, homes),
    ]
}

/// Runs the subject in every place of a shape, in one set of lanes, and returns the number of
/// places.
fn every_place(
    config: &ModelConfig,
    map: &DeviceMap,
    dtype: Dtype,
    shape: (u16, u16, u16),
    options: &LaneOptions,
    alone: &mut Option<Vec<Vec<u32>>>,
) -> usize {
    let run = RunShape {
        batches: shape.0,
        batch_size: shape.1,
        max_prompt: 70,
        shared_prompt: 0,
        max_context: 70 + NEW,
        max_new: NEW,
        logprobs: 0,
        micro_sequences: shape.2,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype,
    };
    let plan = compile(config, &run, map).expect("compiles");
    let source = DummySource::new(config.clone(), 5);
    let mut lanes = Interleaved::start(plan, &source, options.clone()).expect("starts");
    let mut places = 0;
    for batch in 0..usize::from(shape.0) {
        for slot in 0..usize::from(shape.1) {
            let group = around(shape, batch, slot, config);
            let first = &mut |_: &[LaneId]| 0;
            let (_, sampled) = lanes.run_group(&group, first).expect("the lanes drain");
            let found = logits_of(&sampled, batch, slot);
            let expected = alone.get_or_insert_with(|| found.clone());
            for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert!(
                    expected == found,
                    "{:?} {} {dtype:?} {} with {} threads: step {step} of slot {slot} of batch \
                     {batch} of {}x{} differs from the sequence alone on one thread",
                    config.family,
                    map.policy,
                    options.variant.name(),
                    options.pool.threads,
                    shape.0,
                    shape.1,
                );
            }
            places += 1;
        }
    }
    places
}

fn independent(config: &ModelConfig) {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for variant in Variant::available() {
            for map in maps(config) {
                let mut alone = None;
                let mut places = 0;
                for threads in [1, 2, 3] {
                    let wait_timeout = Duration::from_secs(60);
                    let pool = PoolOptions::unpinned(threads);
                    let options = LaneOptions {
                        variant,
                        pool,
                        link_bytes_per_s: None,
                        wait_timeout,
                        grammars: None,
                        routes_randomly: false,
                        select_text: Vec::new(),
                        drafter: None,
                    };
                    for shape in SHAPES {
                        places += every_place(config, &map, dtype, shape, &options, &mut alone);
                    }
                }
                assert_eq!(places, 3 * (1 + 5 + 6));
            }
        }
    }
    for variant in Variant::ALL.into_iter().filter(|variant| !variant.is_available()) {
        println!("SKIP row_independence ({}): not on this machine", variant.name());
    }
}

#[test]
fn a_llama_with_grouped_heads_in_every_slot_is_the_llama_alone() {
    independent(&larger(crate::common::llama()));
}

#[test]
fn an_opt_in_every_slot_is_the_opt_alone() {
    independent(&larger(crate::common::opt()));
}
