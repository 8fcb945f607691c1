//! Drafts of layers for multi-token prediction, compared with what they predict according to an
//! independent computation (`scripts/fixtures_prediction.py`).

use std::path::{Path, PathBuf};

use kernels::{PoolOptions, Variant};
use model::config::{Dtype, ModelConfig};
use model::config_json;
use model::hidden_states::HiddenStates;
use model::source::safetensors::SafetensorsSource;
use model::source::{SourceError, WeightSource};
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::compile;
use program::plan::{Plan, RunShape};
use program::step_table::Field;
use program::topology::MemoryId;
use protocol::drafts::{Drafter, HiddenRows};
use protocol::group::{GenerationRequest, PlacedRequest};
use protocol::messages::{DraftModelSetup, WeightsOrigin};
use protocol::serving::{OfferedSequence, clear_table, list_step, offer_sequence};
use protocol::table::StepTable;
use scheduler::StepCostCurve;
use serde_json::Value;
use shm::Control;

use super::DraftModel;

const CONTEXT: u32 = 48;
const DRAFTS: usize = 3;

/// A fixture with the drafts of its layer.
struct Fixture {
    path: PathBuf,
    golden: Value,
}

impl Fixture {
    fn open(name: &str) -> Fixture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
        let text = std::fs::read_to_string(path.join("prediction.json")).expect("a fixture");
        Fixture { path, golden: serde_json::from_str(&text).expect("JSON") }
    }

    fn lists<T: serde::de::DeserializeOwned>(&self, name: &str) -> Vec<T> {
        serde_json::from_value(self.golden[name].clone()).expect("lists")
    }

    fn config(&self) -> ModelConfig {
        let mut config = config_json::load(&self.path, "fixture").expect("a configuration");
        config.features.hidden_states = HiddenStates::Sampled;
        config
    }

    /// Returns the plan of a run and the table of its sequences, and starts the layer as its draft
    /// model.
    fn start(&self, dtype: Dtype) -> (StepTable, DraftModel) {
        let config = self.config();
        let layer = config.prediction_model().expect("a layer");
        let run = plan(&config, dtype);
        let directory = self.path.to_str().expect("UTF-8").to_owned();
        let weights = WeightsOrigin::Safetensors { directory };
        let setup = DraftModelSetup { plan: plan(&layer, dtype), weights, threads: 1 };
        let pool = PoolOptions::unpinned(1);
        let model = DraftModel::start(setup, &run, Variant::best(), pool, &open);
        let control = Control::create(run.lanes().len() as u32, run.table.words() * 4);
        let control = control.expect("memory");
        let table = StepTable::new(control.extra(0, run.table.words()), &run);
        // A step takes a second however many rows it has, so that all drafts are worth their time.
        let mut costs = StepCostCurve::NONE;
        costs.points[0] = (1, 1_000_000);
        costs.points[1] = (512, 1_000_000);
        clear_table(&table, &run, u32::MAX, &costs);
        table.set_max_drafts(DRAFTS as u32);
        table.set_drafts_all(true);
        (table, model.expect("it starts"))
    }
}

fn open(
    weights: &WeightsOrigin,
    config: &ModelConfig,
) -> Result<Box<dyn WeightSource>, SourceError> {
    let WeightsOrigin::Safetensors { directory } = weights else { panic!("a checkpoint") };
    Ok(Box::new(SafetensorsSource::open(Path::new(directory), config)?))
}

fn plan(config: &ModelConfig, dtype: Dtype) -> Plan {
    let shape = RunShape {
        batches: 1,
        batch_size: 4,
        max_prompt: CONTEXT,
        shared_prompt: 0,
        max_context: CONTEXT,
        max_new: CONTEXT,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 64,
        serves: true,
        page_positions: 16,
        kv_pages: 12,
        checkpoints: 0,
        logits_rows: 32,
        device_slots: 0,
        dtype,
    };
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, config, true, tiers);
    let plan = compile(config, &shape, &map).expect("it compiles");
    program::validate::validate(&plan).unwrap_or_else(|error| panic!("{error}"));
    plan
}

/// A sequence of the run, whose steps the test stands in for.
struct Sequence {
    slot: usize,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    /// Hidden states of all tokens but the last.
    residual: Vec<Vec<f32>>,
    /// Number of rows that were computed.
    computed: usize,
}

impl Sequence {
    /// Offers the sequence with its first new token.
    fn offer(&self, table: &StepTable) {
        let request = GenerationRequest::greedy(self.prompt.clone(), 20);
        let placed = PlacedRequest { batch: 0, slot: self.slot, request };
        let (generated, computed) = (&self.tokens[..1], self.prompt.len() as u32);
        let (capacity, arrival) = (CONTEXT, self.slot as u32);
        let placed = &placed;
        let offer = OfferedSequence { placed, generated, computed, capacity, arrival };
        offer_sequence(table, &offer);
    }

    /// Passes the hidden states of rows up to `end`, from which a token was drawn.
    fn compute(&mut self, table: &StepTable, model: &mut DraftModel, end: usize) {
        let rows = self.residual[self.computed..end].concat();
        let hidden =
            HiddenRows { slot: self.slot, first: self.computed, rows: &rows, is_drawn: true };
        model.take_hidden(table, 0, hidden);
        self.computed = end;
    }

    /// Draws the next token.
    fn draw(&self, table: &StepTable) {
        let generated = table.field(0, self.slot, Field::Generated);
        table.set_output(0, self.slot, generated as usize, self.tokens[generated as usize]);
        table.set_field(0, self.slot, Field::Generated, generated + 1);
        table.set_field(0, self.slot, Field::Computed, self.computed as u32);
    }

    fn drafts(&self, table: &StepTable) -> Vec<u32> {
        let field = |field| table.field(0, self.slot, field) as usize;
        let (generated, drafts) = (field(Field::Generated), field(Field::Drafts));
        (generated..generated + drafts).map(|place| table.output(0, self.slot, place)).collect()
    }
}

fn sequences(fixture: &Fixture) -> Vec<Sequence> {
    let prompts = fixture.lists::<Vec<u32>>("prompts").into_iter();
    let tokens = fixture.lists::<Vec<u32>>("tokens").into_iter();
    let residual = fixture.lists::<Vec<Vec<f32>>>("residual").into_iter();
    let all = prompts.zip(tokens).zip(residual).enumerate();
    all.map(|(slot, ((prompt, tokens), residual))| Sequence {
        slot,
        prompt,
        tokens,
        residual,
        computed: 0,
    })
    .collect()
}

/// Runs sequences token by token; returns the drafts of each after each of its tokens. Prompts are
/// computed in two steps, and after the rows that were `skipped`.
fn drafts(
    table: &StepTable,
    model: &mut DraftModel,
    mut all: Vec<Sequence>,
    skipped: usize,
) -> Vec<Vec<Vec<u32>>> {
    for sequence in &mut all {
        sequence.offer(table);
        sequence.computed = skipped;
        let (end, middle) = (sequence.prompt.len(), (skipped + sequence.prompt.len()) / 2);
        for end in [middle, end] {
            sequence.compute(table, model, end);
        }
    }
    let mut found = vec![Vec::new(); all.len()];
    let mut scratch = Vec::with_capacity(4);
    for step in 0..all[0].tokens.len() {
        for sequence in all.iter_mut().filter(|_| step > 0) {
            let end = sequence.computed + 1;
            sequence.compute(table, model, end);
            sequence.draw(table);
        }
        list_step(table, 0, &mut scratch, model);
        for (sequence, found) in all.iter().zip(&mut found) {
            found.push(sequence.drafts(table));
        }
    }
    found
}

#[test]
fn layers_draft_what_they_predict() {
    for name in ["glm4_moe_mtp", "glm4_moe_mtp_dense", "deepseek_v3_mtp"] {
        let fixture = Fixture::open(name);
        let (table, mut model) = fixture.start(Dtype::F32);
        let expected: Vec<Vec<Vec<u32>>> = fixture.lists("drafts");
        assert_eq!(drafts(&table, &mut model, sequences(&fixture), 0), expected, "{name}");
    }
}

#[test]
fn a_copy_begins_after_the_rows_that_a_run_reuses() {
    let fixture = Fixture::open("glm4_moe_mtp");
    let (table, mut model) = fixture.start(Dtype::F32);
    let suffix = &fixture.golden["suffix"];
    let skipped = suffix["skipped"].as_u64().expect("a number") as usize;
    let last = sequences(&fixture).pop().expect("a prompt");
    let found = drafts(&table, &mut model, vec![last], skipped);
    let expected: Vec<Vec<u32>> = serde_json::from_value(suffix["drafts"].clone()).expect("lists");
    assert_eq!(found, [expected]);
}
