//! Pooled hidden states: those that transformers computes for the same files, with the same bits
//! wherever operations are placed, in whatever steps the prompts are computed, and with whatever
//! neighbours.

use std::path::{Path, PathBuf};

use crate::common::placed::{cpu_only, options, shape, two_split};
use model::config::{Dtype, ModelConfig};
use model::config_json;
use model::source::safetensors::SafetensorsSource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::Split;
use program::compile::compile;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::step_table::SlotState;
use program::topology::MemoryId;
use protocol::release::{list_first, stages};
use protocol::serving::{OfferedSequence, clear_table, free_slot, offer_sequence, slot_state};
use scheduler::StepCostCurve;
use serde_json::Value;
use workers::testing::{GenerationRequest, InProcess, PlacedRequest, Pooling};

/// Largest accepted difference of an element, in vectors of length 1 computed in f32. Those without
/// the final norm, and those of another token, differ by more than a hundred times as much.
const TOLERANCE: f32 = 2e-5;

const CONTEXT: u32 = 48;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3_embedding")
}

struct Golden(Value);

impl Golden {
    fn read() -> Golden {
        let text = std::fs::read_to_string(fixture().join("golden.json")).expect("a fixture");
        Golden(serde_json::from_str(&text).expect("JSON"))
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        serde_json::from_value(self.0["prompts"].clone()).expect("lists of token ids")
    }

    fn vectors(&self, name: &str) -> Vec<Vec<f32>> {
        serde_json::from_value(self.0[name].clone()).expect("lists of numbers")
    }
}

/// Returns the pooled row of each prompt, computed in two slots of two batches at a time.
fn pooled_rows(
    config: &ModelConfig,
    map: &DeviceMap,
    shape: &RunShape,
    prompts: &[Vec<u32>],
    pooling: Pooling,
) -> Vec<Vec<f32>> {
    let plan = compile(config, shape, map).expect("the map compiles");
    program::validate::validate(&plan).unwrap_or_else(|error| panic!("{error}"));
    let source = SafetensorsSource::open(&fixture(), config).expect("a checkpoint");
    let mut lanes = InProcess::start(plan, &source, options(1)).expect("the lanes start");
    let table = lanes.table().clone();
    clear_table(&table, lanes.plan(), u32::MAX, &StepCostCurve::NONE);
    let slots: Vec<(usize, usize)> = table.slots().collect();
    let mut rows = Vec::new();
    for group in prompts.chunks(slots.len()) {
        for (prompt, (batch, slot)) in group.iter().zip(&slots) {
            let request = GenerationRequest {
                pooling: Some(pooling),
                ..GenerationRequest::greedy(prompt.clone(), 1)
            };
            let placed = PlacedRequest { batch: *batch, slot: *slot, request };
            let (capacity, arrival) = (CONTEXT, *slot as u32);
            let (generated, computed) = (&[][..], 0);
            let placed = &placed;
            let offer = OfferedSequence { placed, generated, computed, capacity, arrival };
            offer_sequence(&table, &offer);
        }
        assert!(list_first(&table), "there are rows to compute");
        lanes.release_stages(&stages(&table), u32::MAX - 1).expect("the lanes drain");
        for (prompt, (batch, slot)) in group.iter().zip(&slots) {
            assert_eq!(slot_state(&table, *batch, *slot), SlotState::Ended);
            let divisor = match pooling {
                Pooling::LastToken => 1.0,
                Pooling::Mean => prompt.len() as f32,
            };
            rows.push(table.pooled_row(*batch, *slot).map(|sum| sum / divisor).collect());
            free_slot(&table, *batch, *slot);
        }
    }
    assert!(lanes.finish().iter().all(Result::is_ok));
    rows
}

fn unit(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    row.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

/// Returns the largest difference of an element of two vectors.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn config() -> ModelConfig {
    config_json::load(&fixture(), "qwen3_embedding").expect("a configuration")
}

fn serving(batches: u16, batch_size: u16, prefill_chunk: u32, dtype: Dtype) -> RunShape {
    RunShape {
        serves: true,
        prefill_chunk,
        max_prompt: CONTEXT,
        max_context: CONTEXT,
        max_new: CONTEXT - 1,
        // As many rows pass the head as a step has, or fewer.
        logits_rows: prefill_chunk.min(16),
        ..shape(batches, batch_size, 1, dtype)
    }
}

#[test]
fn pooled_hidden_states_are_those_of_transformers() {
    let (golden, config) = (Golden::read(), config());
    let prompts = golden.prompts();
    let map = cpu_only(&config);
    for (name, pooling) in [("last", Pooling::LastToken), ("mean", Pooling::Mean)] {
        let shape = serving(1, 2, 16, Dtype::F32);
        let rows = pooled_rows(&config, &map, &shape, &prompts, pooling);
        for (row, expected) in rows.iter().zip(golden.vectors(name)) {
            let found = difference(&unit(row), &expected);
            assert!(found <= TOLERANCE, "{name}: {found}");
        }
        let rows = pooled_rows(&config, &map, &serving(1, 2, 16, Dtype::Bf16), &prompts, pooling);
        for (row, expected) in rows.iter().zip(golden.vectors(name)) {
            let cosine: f32 = unit(row).iter().zip(&expected).map(|(a, b)| a * b).sum();
            assert!(cosine > 0.999, "{name} in bf16: {cosine}");
        }
    }
    // What the comparison would find: no final norm, and the row of another token.
    let (last, without_norm) = (golden.vectors("last"), golden.vectors("no_norm"));
    for (expected, other) in last.iter().zip(&without_norm) {
        assert!(difference(expected, other) > 100.0 * TOLERANCE);
    }
    let shorter: Vec<Vec<u32>> =
        prompts[1..].iter().map(|prompt| prompt[..prompt.len() - 1].to_vec()).collect();
    let shape = serving(1, 2, 16, Dtype::F32);
    let rows = pooled_rows(&config, &map, &shape, &shorter, Pooling::LastToken);
    for (row, expected) in rows.iter().zip(&last[1..]) {
        assert!(difference(&unit(row), expected) > 100.0 * TOLERANCE);
    }
}

#[test]
fn pooled_hidden_states_have_the_same_bits_in_every_run() {
    let (prompts, config) = (Golden::read().prompts(), config());
    let tiers = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let maps = [
        cpu_only(&config),
        two_split(&config, Split { start: 3, end: 8 }, None),
        device_map(&Policy::GpuOnly, &config, false, tiers),
    ];
    for (dtype, pooling) in [
        (Dtype::Bf16, Pooling::LastToken),
        (Dtype::Bf16, Pooling::Mean),
        (Dtype::F32, Pooling::Mean),
    ] {
        let alone = serving(1, 1, CONTEXT, dtype);
        let expected = pooled_rows(&config, &maps[0], &alone, &prompts, pooling);
        for (map, chunk) in maps.iter().zip([5, 7, 16]) {
            let found = pooled_rows(&config, map, &serving(2, 3, chunk, dtype), &prompts, pooling);
            assert_eq!(found, expected, "{:?} in chunks of {chunk}", map.policy);
        }
    }
}
