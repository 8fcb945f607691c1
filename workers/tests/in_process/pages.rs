//! Paged caches: whichever pages contain a sequence's positions, the bits are those of extents.

use crate::common::llama;
use crate::common::placed::{cpu_only, shape, start, two_split};
use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use model::layers::{LayerKind, Layers};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{Split, parse_chunking, parse_split};
use program::compile::{CompileError, compile};
use program::formats::KvFormat;
use program::map::{ComputeDevice, DeviceMap};
use program::plan::RunShape;
use program::topology::MemoryId;
use protocol::prefix_sharing::share_prefixes;
use workers::testing::{GenerationRequest, Outcome, PlacedRequest, fill_even};

/// Number of pages of a batch that belong to no sequence.
const SPARE: u32 = 3;

/// Returns requests whose prompts end near the ends of pages, which the answers cross.
fn requests() -> Vec<PlacedRequest> {
    let lengths = [15, 1, 16, 33, 47, 60];
    let placed = |(index, length): (usize, usize)| {
        let prompt = (0..length).map(|i| ((i * 7 + index) % 61) as u32).collect();
        let request = GenerationRequest { logprobs: 4, ..GenerationRequest::greedy(prompt, 19) };
        PlacedRequest { batch: index / 3, slot: index % 3, request }
    };
    lengths.into_iter().enumerate().map(placed).collect()
}

fn extents(dtype: Dtype, prefill_chunk: u32) -> RunShape {
    let base = shape(2, 3, 2, dtype);
    RunShape { max_prompt: 60, max_context: 79, max_new: 19, prefill_chunk, ..base }
}

fn in_pages(extents: &RunShape, page_positions: u32) -> RunShape {
    let of_sequence = extents.max_context.div_ceil(page_positions);
    let kv_pages = of_sequence * u32::from(extents.batch_size) + SPARE;
    RunShape { page_positions, kv_pages, ..*extents }
}

/// Returns the results of the requests. With paged caches, the order of their pages depends on a
/// seed.
fn run(config: &ModelConfig, shape: &RunShape, map: &DeviceMap, variant: Variant) -> Vec<Outcome> {
    let mut lanes = start(config, shape, map, variant);
    let requests = requests();
    let table = lanes.table().clone();
    let mut outcomes = Vec::new();
    // The second group starts with pages full of the first group's data.
    for seed in [1u64, 5] {
        fill_even(&table, lanes.plan(), &requests);
        if shape.page_positions > 0 {
            for batch in 0..table.batches() {
                let mut pages: Vec<u32> = (0..shape.kv_pages).collect();
                let mut state = seed + batch as u64;
                for last in (1..pages.len()).rev() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    pages.swap(last, (state >> 33) as usize % (last + 1));
                }
                for (index, page) in pages.iter().take(table.pages() * 3).enumerate() {
                    table.set_page(batch, index / table.pages(), index % table.pages(), *page);
                }
            }
        }
        if seed > 1 {
            share_prefixes(&table, 1);
        }
        lanes.release().expect("the lanes drain");
        outcomes.extend(requests.iter().map(|placed| Outcome::read(&table, placed)));
    }
    assert!(lanes.finish().iter().all(Result::is_ok));
    assert!(outcomes.iter().all(|outcome| outcome.tokens.len() == 19));
    outcomes
}

/// Returns a model with a layer whose cache is a ring and one whose cache is paged.
fn with_window() -> ModelConfig {
    let global = llama().layers.kind(0).clone();
    let local = LayerKind { window: Some(21), ..global.clone() };
    ModelConfig { layers: Layers::from_kinds([local, global]), max_positions: 80, ..llama() }
}

#[test]
fn pages_in_any_order_give_the_bits_of_extents() {
    let whole = ModelConfig { max_positions: 80, ..llama() };
    for (config, dtype, kv_format) in [
        (&whole, Dtype::Bf16, KvFormat::Plain),
        (&whole, Dtype::F32, KvFormat::Plain),
        (&whole, Dtype::Bf16, KvFormat::Four),
        (&whole, Dtype::Bf16, KvFormat::Eight),
        (&with_window(), Dtype::Bf16, KvFormat::Plain),
        (&with_window(), Dtype::F32, KvFormat::Four),
    ] {
        let map = DeviceMap { kv_format, ..cpu_only(config) };
        // Prefill of whole prompts, in chunks that begin within pages, and in one chunk longer than
        // any prompt.
        for chunk in [0, 7, 256] {
            let extents = extents(dtype, chunk);
            let expected = run(config, &extents, &map, Variant::best());
            for page_positions in [16, 32, 256] {
                let found = run(config, &in_pages(&extents, page_positions), &map, Variant::best());
                let context = format!("{dtype:?} {kv_format:?} {page_positions} in {chunk}");
                assert_eq!(found, expected, "{context}");
            }
        }
    }
}

#[test]
fn pages_give_the_bits_of_extents_in_every_variant() {
    let config = ModelConfig { max_positions: 80, ..llama() };
    let extents = extents(Dtype::Bf16, 7);
    for variant in Variant::available() {
        for kv_format in [KvFormat::Plain, KvFormat::Four, KvFormat::Eight] {
            let map = DeviceMap { kv_format, ..cpu_only(&config) };
            let expected = run(&config, &extents, &map, variant);
            let found = run(&config, &in_pages(&extents, 16), &map, variant);
            assert_eq!(found, expected, "{variant:?} {kv_format:?}");
        }
    }
}

#[test]
fn linears_on_the_device_go_with_pages_on_the_host() {
    let config = ModelConfig { max_positions: 80, ..llama() };
    let shape = extents(Dtype::Bf16, 7);
    // Attention of prefill stays on the host too.
    let split = parse_split("out:down", &config, None).expect("a split");
    let mut map = two_split(&config, split, None);
    map.prefill = map.decode.clone();
    let mut devices = map.decode.layers.iter().flatten();
    assert!(
        devices.any(|device| *device == ComputeDevice::Gpu),
        "some operations are on the device"
    );
    let expected = run(&config, &shape, &map, Variant::best());
    assert_eq!(run(&config, &in_pages(&shape, 16), &map, Variant::best()), expected);
}

#[test]
fn what_cannot_be_in_pages_is_refused_with_a_sentence() {
    let config = ModelConfig { max_positions: 80, ..llama() };
    let shape = in_pages(&extents(Dtype::Bf16, 7), 16);
    let cpu = cpu_only(&config);
    assert!(compile(&config, &shape, &cpu).is_ok());
    let sizes = [(0, 16), (4, 0), (4, 24)];
    for (kv_pages, page_positions) in sizes {
        let refused = compile(&config, &RunShape { kv_pages, page_positions, ..shape }, &cpu);
        assert!(matches!(refused, Err(CompileError::Pages { .. })), "{refused:?}");
    }
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let parted = Policy::TwoSplit {
        split: Split { start: 4, end: 5 },
        chunking: Some(parse_chunking("attention=4").expect("a chunking")),
    };
    let refused = compile(&config, &shape, &device_map(&parted, &config, true, homes));
    assert!(matches!(refused, Err(CompileError::PagesInParts)), "{refused:?}");
    for kv in [MemoryId::DRAM, MemoryId::VRAM] {
        let homes = DefaultTiers { kv, prefill_hidden: MemoryId::DRAM };
        let refused = compile(&config, &shape, &device_map(&Policy::GpuOnly, &config, true, homes));
        assert!(matches!(refused, Err(CompileError::PagesOnDevice { layer: 0 })), "{refused:?}");
    }
}

#[test]
fn a_cache_takes_its_pages_and_a_ring_its_windows() {
    let config = with_window();
    let extents = extents(Dtype::Bf16, 7);
    let pages = RunShape { page_positions: 32, kv_pages: 4, ..extents };
    let sizes = |shape: &RunShape, layer: &str| {
        let plan = compile(&config, shape, &cpu_only(&config)).expect("compiles");
        let caches = plan.buffers.iter().filter(|buffer| buffer.name.starts_with("cache."));
        let of_layer = caches.filter(|buffer| buffer.name.contains(layer));
        of_layer.map(|buffer| buffer.size_bytes).collect::<Vec<_>>()
    };
    // K and V of two batches: two heads of eight bf16 for each position.
    assert_eq!(sizes(&pages, "layer1"), [4 * 32 * 2 * 8 * 2; 4]);
    assert_eq!(sizes(&pages, "layer0"), sizes(&extents, "layer0"));
}
