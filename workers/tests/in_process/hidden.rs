//! Hidden states that a source of drafts takes: those of transformers for the same files, with the
//! same bits wherever operations are placed and in whatever steps prompts are computed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::placed::{cpu_only, options, shape, two_split};
use model::config::{Dtype, ModelConfig};
use model::config_json;
use model::hidden_states::HiddenStates;
use model::source::safetensors::SafetensorsSource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::Split;
use program::compile::compile;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::topology::MemoryId;
use protocol::drafts::{Drafter, HiddenRows};
use protocol::release::{list_first, stages};
use protocol::serving::{OfferedSequence, clear_table, free_slot, offer_sequence};
use protocol::table::StepTable;
use scheduler::{Sequence, StepCostCurve};
use serde_json::Value;
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, InProcess, PlacedRequest};

/// Largest accepted difference of an element, in rows whose elements are about 10 and which are
/// computed in f32.
const TOLERANCE: f32 = 1e-4;

const CONTEXT: u32 = 48;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/glm4_moe_mtp")
}

/// Keeps the rows of each slot and drafts nothing.
#[derive(Debug, Default)]
struct Recorder(Vec<Vec<f32>>);

impl Drafter for Recorder {
    fn draft(&mut self, _table: &StepTable, _batch: usize, sequences: &mut [Sequence]) {
        sequences.iter_mut().for_each(|sequence| sequence.drafts = 0);
    }

    fn take_hidden(&mut self, table: &StepTable, batch: usize, hidden: HiddenRows<'_>) {
        let slot = batch * table.batch_size() + hidden.slot;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Vec::new());
        }
        // Rows follow each other.
        let rows = hidden.rows.len() / 32;
        assert_eq!(self.0[slot].len() / 32, hidden.first);
        assert!(rows > 0 && hidden.rows.len() == rows * 32);
        self.0[slot].extend(hidden.rows);
    }
}

/// Returns the rows of each prompt and of the tokens that follow it, but for the last step of the
/// sequence, whose rows no draft would need.
fn rows(
    config: &ModelConfig,
    map: &DeviceMap,
    shape: &RunShape,
    prompts: &[Vec<u32>],
    steps: u32,
) -> Vec<Vec<f32>> {
    let plan = compile(config, shape, map).expect("the map compiles");
    program::validate::validate(&plan).unwrap_or_else(|error| panic!("{error}"));
    let source = SafetensorsSource::open(&fixture(), config).expect("a checkpoint");
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    let options = LaneOptions { drafter: Some(recorder.clone()), ..options(1) };
    let mut lanes = InProcess::start(plan, &source, options).expect("the lanes start");
    let table = lanes.table().clone();
    clear_table(&table, lanes.plan(), u32::MAX, &StepCostCurve::NONE);
    let slots: Vec<(usize, usize)> = table.slots().collect();
    let mut found = Vec::new();
    for group in prompts.chunks(slots.len()) {
        for (prompt, (batch, slot)) in group.iter().zip(&slots) {
            let request = GenerationRequest {
                ignore_eos: true,
                ..GenerationRequest::greedy(prompt.clone(), steps)
            };
            let placed = &PlacedRequest { batch: *batch, slot: *slot, request };
            let (capacity, arrival) = (CONTEXT, *slot as u32);
            let (generated, computed) = (&[][..], 0);
            offer_sequence(
                &table,
                &OfferedSequence { placed, generated, computed, capacity, arrival },
            );
        }
        assert!(list_first(&table), "there are rows to compute");
        lanes.release_stages(&stages(&table), u32::MAX - 1).expect("the lanes drain");
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, (batch, slot)) in slots[..group.len()].iter().enumerate() {
            found.push(std::mem::take(&mut recorder.0[index]));
            free_slot(&table, *batch, *slot);
        }
    }
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

fn serving(batches: u16, batch_size: u16, prefill_chunk: u32, dtype: Dtype) -> RunShape {
    RunShape {
        serves: true,
        prefill_chunk,
        max_prompt: CONTEXT,
        max_context: CONTEXT,
        max_new: CONTEXT - 1,
        ..shape(batches, batch_size, 1, dtype)
    }
}

#[test]
fn hidden_states_are_those_of_transformers_in_every_run() {
    let text = std::fs::read_to_string(fixture().join("prediction.json")).expect("a fixture");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let prompts: Vec<Vec<u32>> =
        serde_json::from_value(golden["prompts"].clone()).expect("token ids");
    let expected: Vec<Vec<Vec<f32>>> =
        serde_json::from_value(golden["residual"].clone()).expect("rows");
    let mut config = config_json::load(&fixture(), "glm4_moe_mtp").expect("a configuration");
    config.features.hidden_states = HiddenStates::Sampled;
    let steps = golden["tokens"][0].as_array().expect("tokens").len() as u32;
    let tiers = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let maps = [
        cpu_only(&config),
        two_split(&config, Split { start: 3, end: 8 }, None),
        device_map(&Policy::GpuOnly, &config, false, tiers),
    ];
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let alone = rows(&config, &maps[0], &serving(1, 1, CONTEXT, dtype), &prompts, steps);
        for (found, expected) in alone.iter().zip(&expected).filter(|_| dtype == Dtype::F32) {
            let expected = expected[..expected.len() - 1].concat();
            assert!(expected.len() <= found.len() && found.len() <= expected.len() + 32);
            let difference =
                found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(difference <= TOLERANCE, "{difference}");
        }
        for (map, chunk) in maps.iter().zip([5, 7, 16]) {
            let shape = serving(2, 3, chunk, dtype);
            let found = rows(&config, map, &shape, &prompts, steps);
            assert_eq!(found, alone, "{:?} in chunks of {chunk}", map.policy);
        }
    }
}
