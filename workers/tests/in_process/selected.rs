//! New tokens that select what they attend to: with everything selected a run has the bits of one
//! without selection. Whatever is selected, a sequence's bits do not depend on its batch, slot,
//! chunks, pages or threads, nor on a previous return of its caches.

use crate::common::placed::{cpu_only, options, shape};
use crate::common::{llama, opt};
use model::config::{Dtype, ModelConfig};
use model::layers::{LayerKind, Layers};
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::{CompileError, compile};
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::page_runs::PageRuns;
use program::plan::RunShape;
use program::select::{COLUMNS_THOUSANDTHS, KvSelect};
use program::topology::MemoryId;
use protocol::release::{SERVING_STAGES, list_first};
use protocol::serving::{OfferedSequence, clear_table, offer_sequence};
use protocol::table::StepTable;
use scheduler::StepCostCurve;
use workers::testing::{GenerationRequest, InProcess, Outcome, PlacedRequest, fill_even};

const PROMPT: u32 = 75;
const NEW: u32 = 19;

const EVERYTHING: KvSelect = KvSelect {
    alpha_thousandths: 1_000_000,
    max_thousandths: 1000,
    columns_thousandths: COLUMNS_THOUSANDTHS,
    text: 0,
};
/// Selection from at most 94 positions.
const FEW: KvSelect = KvSelect { alpha_thousandths: 500, max_thousandths: 150, ..EVERYTHING };

fn models() -> [ModelConfig; 2] {
    let longer = |config| ModelConfig { max_positions: 96, ..config };
    [longer(llama()), longer(opt())]
}

fn run_shape(batch_size: u16, dtype: Dtype, prefill_chunk: u32) -> RunShape {
    RunShape {
        max_prompt: PROMPT,
        max_context: PROMPT + NEW,
        max_new: NEW,
        prefill_chunk,
        ..shape(1, batch_size, 1, dtype)
    }
}

fn in_pages(of: RunShape) -> RunShape {
    let of_sequence = of.max_context.div_ceil(16);
    RunShape { page_positions: 16, kv_pages: of_sequence * u32::from(of.batch_size), ..of }
}

fn requests(vocab: usize) -> Vec<GenerationRequest> {
    let lengths = [75, 1, 40, 61, 33];
    let prompt = |index: usize, length: usize| {
        (0..length).map(|i| ((i * i + 7 * i + 13 * index) % vocab) as u32).collect()
    };
    let request = |(index, length): (usize, usize)| GenerationRequest {
        logprobs: 4,
        ..GenerationRequest::greedy(prompt(index, length), NEW)
    };
    lengths.into_iter().enumerate().map(request).collect()
}

fn start(config: &ModelConfig, shape: &RunShape, map: &DeviceMap, threads: usize) -> InProcess {
    let plan = compile(config, shape, map).expect("the map compiles");
    if let Err(error) = program::validate::validate(&plan) {
        panic!("{error}");
    }
    let source = DummySource::new(config.clone(), 5);
    InProcess::start(plan, &source, options(threads)).expect("the lanes start")
}

fn selecting(config: &ModelConfig, kv_format: KvFormat, kv_select: Option<KvSelect>) -> DeviceMap {
    DeviceMap { kv_format, kv_select, ..cpu_only(config) }
}

/// Returns the results of each sequence alone, in slot 0 of a batch of one.
fn alone(config: &ModelConfig, map: &DeviceMap, dtype: Dtype) -> Vec<Outcome> {
    let mut lanes = start(config, &run_shape(1, dtype, 0), map, 1);
    let of = |request| lanes.run_group(&[PlacedRequest { batch: 0, slot: 0, request }]).remove(0);
    let found = requests(config.vocab_size).into_iter().map(of).collect();
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

/// Runs all sequences together, placed from the last slot on.
fn together(lanes: &mut InProcess) -> Vec<Outcome> {
    let requests = requests(lanes.plan().config.vocab_size);
    let last = requests.len() - 1;
    let placed = |(index, request)| PlacedRequest { batch: 0, slot: last - index, request };
    let placed: Vec<PlacedRequest> = requests.into_iter().enumerate().map(placed).collect();
    let table = lanes.table().clone();
    fill_even(&table, lanes.plan(), &placed);
    for slot in 0..table.batch_size() {
        for index in 0..table.pages() {
            table.set_page(0, slot, index, (index * table.batch_size() + slot) as u32);
        }
    }
    lanes.release().expect("the lanes drain");
    placed.iter().map(|placed| Outcome::read(&table, placed)).collect()
}

#[test]
fn everything_selected_has_the_bits_of_a_run_without() {
    for config in models() {
        for (dtype, kv_format) in [
            (Dtype::Bf16, KvFormat::Plain),
            (Dtype::F32, KvFormat::Plain),
            (Dtype::Bf16, KvFormat::Four),
            (Dtype::Bf16, KvFormat::Eight),
        ] {
            let shape = run_shape(5, dtype, 0);
            let of = |kv_select| {
                let map = selecting(&config, kv_format, kv_select);
                let mut lanes = start(&config, &shape, &map, 1);
                let outcomes = together(&mut lanes);
                let counted = lanes.table().selected_positions();
                assert!(lanes.finish().iter().all(Result::is_ok));
                (outcomes, counted)
            };
            let (expected, none) = of(None);
            let (found, (read, all)) = of(Some(EVERYTHING));
            assert_eq!(found, expected, "{:?} {dtype:?} {kv_format:?}", config.family);
            assert_eq!(none, (0, 0));
            assert!(read == all && all > 0, "{read} of {all} positions were read");
        }
    }
}

#[test]
fn what_is_selected_depends_on_the_sequence_alone() {
    for config in models() {
        for (dtype, kv_format) in [
            (Dtype::Bf16, KvFormat::Plain),
            (Dtype::F32, KvFormat::Plain),
            (Dtype::Bf16, KvFormat::Four),
        ] {
            let map = selecting(&config, kv_format, Some(FEW));
            let expected = alone(&config, &map, dtype);
            let whole = alone(&config, &selecting(&config, kv_format, None), dtype);
            assert_ne!(expected, whole, "something that is left out changes an answer");
            for (chunk, threads) in [(0, 1), (7, 2), (64, 3)] {
                for shape in [run_shape(5, dtype, chunk), in_pages(run_shape(5, dtype, chunk))] {
                    let mut lanes = start(&config, &shape, &map, threads);
                    for _ in 0..2 {
                        let case =
                            format!("{:?} {dtype:?} {kv_format:?} in {chunk}", config.family);
                        assert_eq!(together(&mut lanes), expected, "{case}");
                    }
                    let (read, all) = lanes.table().selected_positions();
                    assert!(read < all && read > all / 4, "{read} of {all} positions were read");
                    assert!(lanes.finish().iter().all(Result::is_ok));
                }
            }
        }
    }
}

/// Offers a sequence that already has some of its answer's tokens, none of them computed.
fn offer_again(table: &StepTable, placed: &PlacedRequest, generated: &[u32], capacity: u32) {
    let (computed, arrival) = (0, placed.slot as u32);
    offer_sequence(table, &OfferedSequence { placed, generated, computed, capacity, arrival });
}

#[test]
fn a_sequence_that_begins_again_selects_what_it_had() {
    for config in models() {
        let map = selecting(&config, KvFormat::Plain, Some(FEW));
        let expected = alone(&config, &map, Dtype::Bf16);
        let shape = RunShape { serves: true, ..in_pages(run_shape(5, Dtype::Bf16, 24)) };
        let shape = RunShape { max_prompt: shape.max_context, ..shape };
        for have in [0, 1, 11] {
            let mut lanes = start(&config, &shape, &map, 2);
            let table = lanes.table().clone();
            clear_table(&table, lanes.plan(), 100, &StepCostCurve::NONE);
            for (slot, request) in requests(config.vocab_size).into_iter().enumerate() {
                for index in 0..table.pages() {
                    table.set_page(0, slot, index, (index * table.batch_size() + slot) as u32);
                }
                let placed = PlacedRequest { batch: 0, slot, request };
                offer_again(&table, &placed, &expected[slot].tokens[..have], shape.max_context);
            }
            assert!(list_first(&table), "there is something to compute");
            lanes.release_stages(&SERVING_STAGES, u32::MAX - 1).expect("the lanes drain");
            for (slot, request) in requests(config.vocab_size).into_iter().enumerate() {
                let found = Outcome::read(&table, &PlacedRequest { batch: 0, slot, request });
                assert_eq!(found.tokens, expected[slot].tokens, "{slot} with {have} tokens");
            }
            assert!(lanes.finish().iter().all(Result::is_ok));
        }
    }
}

#[test]
fn what_cannot_select_is_refused_with_a_sentence() {
    let [config, _] = models();
    let shape = run_shape(2, Dtype::Bf16, 0);
    let refused = |config: &ModelConfig, map: DeviceMap, word: &str| {
        let map = DeviceMap { kv_select: Some(FEW), ..map };
        match compile(config, &shape, &map) {
            Err(error @ CompileError::Select { .. }) => {
                let sentence = error.to_string();
                assert!(sentence.contains(word) && sentence.contains("--kv-select"), "{sentence}");
            }
            other => panic!("{other:?}"),
        }
    };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    refused(&config, device_map(&Policy::GpuOnly, &config, true, homes), "CPU alone");
    refused(&config, device_map(&Policy::CpuOnly, &config, false, homes), "one operation");
    let kind = LayerKind { window: Some(21), ..config.layers.kind(0).clone() };
    let windowed = ModelConfig { layers: Layers::uniform(kind), ..config.clone() };
    refused(&windowed, cpu_only(&windowed), "window");
    let sinks = ModelConfig { sinks: true, ..config.clone() };
    refused(&sinks, cpu_only(&sinks), "sinks");
    let delta = crate::common::delta();
    refused(&delta, cpu_only(&delta), "state");
    let odd = ModelConfig { head_dim: 12, ..config.clone() };
    refused(&odd, cpu_only(&odd), "multiple of 8");
}

#[test]
fn a_plan_has_room_for_partial_keys_and_for_nothing_else() {
    let [config, _] = models();
    let shape = run_shape(3, Dtype::Bf16, 0);
    let kv_bytes = |kv_select| {
        let map = selecting(&config, KvFormat::Plain, kv_select);
        let plan = compile(&config, &shape, &map).expect("compiles");
        plan.footprint(None).host_kv_bytes
    };
    let heads = (config.num_layers * config.num_kv_heads) as u64;
    let positions = u64::from(shape.batch_size) * u64::from(shape.max_context);
    let expected = heads * positions * EVERYTHING.partial_key_bytes(config.head_dim) as u64;
    let found = kv_bytes(Some(FEW)) - kv_bytes(None);
    // Buffers end on boundaries of 64 bytes.
    assert!(found.abs_diff(expected) <= 64 * config.num_layers as u64, "{found} of {expected}");
}

/// Runs of a page consist of keys and values, so a stored page would come back without the partial
/// keys by which new tokens select.
#[test]
fn pages_with_partial_keys_are_not_stored() {
    let [config, _] = models();
    let shape = in_pages(RunShape { serves: true, ..run_shape(2, Dtype::Bf16, 24) });
    let runs = |kv_select| {
        let map = selecting(&config, KvFormat::Plain, kv_select);
        PageRuns::of(&compile(&config, &shape, &map).expect("compiles"), 0)
    };
    assert!(runs(None).is_some());
    assert_eq!(runs(Some(FEW)), None);
}
