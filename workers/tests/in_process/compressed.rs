//! Weights and KV caches in 4 bits: whatever the placement, the bits are those of the run on the
//! CPU. Both devices multiply directly from 4 bits with f16 scales. The CPU also does so from every
//! other stored format, which the device widens first; attention reads 4-bit caches directly on
//! both.

use crate::common::placed::{cpu_only, intervals, run, shape, two_split};
use crate::common::{llama, opt};
use model::config::{Dtype, ModelConfig};
use model::quantized_format::{Grouped, WeightFormat};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{parse_chunking, parse_split};
use program::compile::compile;
use program::formats::{KvFormat, WeightFormats};
use program::map::{DeviceMap, layer_list};
use program::topology::MemoryId;

/// Data stored in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum StoredFormat {
    W4,
    Kv4,
    Kv8,
    W4Kv4,
}

impl StoredFormat {
    fn of(self, config: &ModelConfig, mut map: DeviceMap) -> DeviceMap {
        if matches!(self, StoredFormat::W4 | StoredFormat::W4Kv4) {
            let format = WeightFormat::Grouped(Grouped::W4);
            map.weight_formats = WeightFormats::with_layers(config, format);
        }
        map.kv_format = match self {
            StoredFormat::W4 => KvFormat::Plain,
            StoredFormat::Kv4 | StoredFormat::W4Kv4 => KvFormat::Four,
            StoredFormat::Kv8 => KvFormat::Eight,
        };
        map
    }
}

fn compressed(config: &ModelConfig, map: DeviceMap) -> DeviceMap {
    StoredFormat::W4.of(config, map)
}

/// Returns the map with scores, softmax and weighted values as separate operations everywhere in
/// decode.
fn unfused(map: DeviceMap) -> DeviceMap {
    DeviceMap { fuse_attention: false, ..map }
}

#[test]
fn every_interval_gives_the_bits_of_the_cpu() {
    for (config, dtype) in [(llama(), Dtype::Bf16), (opt(), Dtype::F32)] {
        let shape = shape(2, 3, 2, dtype);
        let plain = run(&config, &shape, &cpu_only(&config));
        let expected = run(&config, &shape, &compressed(&config, cpu_only(&config)));
        assert_ne!(plain.1, expected.1, "4 bits cannot give the same logits");
        assert!(expected.1.iter().all(|logit| logit.is_finite()));
        let ops = layer_list(&config, 0, None).len();
        for split in intervals(ops) {
            let map = two_split(&config, split, None);
            let found = run(&config, &shape, &compressed(&config, map));
            assert!(found == expected, "{:?} {split:?}", config.family);
        }
    }
}

/// Formats of GGUF's types that are widened; the layers' matrices use them in turn, since files mix
/// them.
const STORED: [Grouped; 13] = [
    Grouped::GGUF_Q4_K,
    Grouped::GGUF_Q6_K,
    Grouped::GGUF_Q5_K,
    Grouped::GGUF_Q5_0,
    Grouped::GGUF_Q5_1,
    Grouped::GGUF_IQ4_NL,
    Grouped::GGUF_IQ4_XS,
    Grouped::GGUF_MXFP4,
    Grouped::GGUF_Q2_K,
    Grouped::GGUF_Q3_K,
    Grouped::GGUF_IQ2_S,
    Grouped::GGUF_IQ3_XXS,
    Grouped::GGUF_IQ1_M,
];

/// Returns the map with all matrices in stored formats, starting with index `first`. This includes
/// embedding and head unless the model has learned positions, which are added to rows of the table.
fn stored(config: &ModelConfig, first: usize, mut map: DeviceMap) -> DeviceMap {
    let form = |index: usize| WeightFormat::Grouped(STORED[(first + index) % STORED.len()]);
    let mut formats = WeightFormats::with_layers(config, form(0));
    let grouped = formats.layers.iter_mut().flatten().filter(|of| **of != WeightFormat::Plain);
    for (index, format) in grouped.enumerate() {
        *format = form(index);
    }
    if config.learned_positions.is_none() {
        (formats.embedding, formats.head) = (form(1), form(1));
    }
    map.weight_formats = formats;
    map
}

#[test]
fn stored_forms_give_the_bits_of_the_cpu_in_every_interval() {
    for (config, dtype, first) in
        [(llama(), Dtype::Bf16, 0), (llama(), Dtype::Bf16, 5), (opt(), Dtype::F32, 2)]
    {
        let shape = shape(2, 3, 2, dtype);
        let plain = run(&config, &shape, &cpu_only(&config));
        let expected = run(&config, &shape, &stored(&config, first, cpu_only(&config)));
        assert_ne!(plain.1, expected.1, "few bits cannot give the same logits");
        assert!(expected.1.iter().all(|logit| logit.is_finite()));
        let ops = layer_list(&config, 0, None).len();
        for split in intervals(ops) {
            let map = two_split(&config, split, None);
            let found = run(&config, &shape, &stored(&config, first, map));
            assert!(found == expected, "{:?} {first} {split:?}", config.family);
        }
        for home in [MemoryId::DRAM, MemoryId::VRAM] {
            let homes = DefaultTiers { kv: home, prefill_hidden: home };
            let map = device_map(&Policy::GpuOnly, &config, false, homes);
            let mut map = stored(&config, first, map);
            assert!(run(&config, &shape, &map) == expected, "{homes:?}");
            map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::VRAM);
            map.outer_weights = MemoryId::VRAM;
            assert!(run(&config, &shape, &map) == expected, "{homes:?} resident");
        }
    }
}

#[test]
fn chunks_give_the_bits_of_the_whole() {
    let config = llama();
    let shape = shape(2, 4, 4, Dtype::Bf16);
    let expected = run(&config, &shape, &compressed(&config, cpu_only(&config)));
    for (chunks, split) in
        [("scores=3", "scores.1:up"), ("attention=3", "q:softmax.1"), ("attention=3", "wv.1:")]
    {
        let chunking = Some(parse_chunking(chunks).expect("a chunking"));
        let split = parse_split(split, &config, chunking).expect("a split");
        let map = two_split(&config, split, chunking);
        let found = run(&config, &shape, &compressed(&config, map));
        assert!(found == expected, "{chunks}");
    }
}

#[test]
fn the_device_alone_multiplies_4_bits_that_are_streamed_or_stay() {
    let config = llama();
    let shape = shape(2, 3, 1, Dtype::Bf16);
    let expected = run(&config, &shape, &compressed(&config, cpu_only(&config)));
    for home in [MemoryId::DRAM, MemoryId::VRAM] {
        let homes = DefaultTiers { kv: home, prefill_hidden: home };
        let map = device_map(&Policy::GpuOnly, &config, false, homes);
        let mut map = compressed(&config, map);
        let streamed = run(&config, &shape, &map);
        assert!(streamed == expected, "{homes:?}");
        map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::VRAM);
        map.outer_weights = MemoryId::VRAM;
        let resident = run(&config, &shape, &map);
        assert!(resident == expected, "{homes:?} resident");
    }
}

#[test]
fn a_quantised_kv_cache_gives_the_bits_of_the_cpu_wherever_attention_is() {
    for (config, dtype, form) in [
        (llama(), Dtype::Bf16, StoredFormat::Kv4),
        (opt(), Dtype::F32, StoredFormat::Kv4),
        (llama(), Dtype::Bf16, StoredFormat::Kv8),
        (llama(), Dtype::Bf16, StoredFormat::W4Kv4),
    ] {
        let shape = shape(2, 3, 2, dtype);
        let plain = run(&config, &shape, &cpu_only(&config));
        let expected = run(&config, &shape, &form.of(&config, cpu_only(&config)));
        assert_ne!(plain.1, expected.1, "fewer bits cannot give the same logits");
        assert!(expected.1.iter().all(|logit| logit.is_finite()));
        let ops = layer_list(&config, 0, None).len();
        for split in intervals(ops) {
            let map = form.of(&config, two_split(&config, split, None));
            let case = format!("{:?} {form:?} {split:?}", config.family);
            assert!(run(&config, &shape, &map) == expected, "{case}");
            assert!(run(&config, &shape, &unfused(map)) == expected, "{case} unfused");
        }
    }
}

#[test]
fn chunks_of_a_quantised_cache_give_the_bits_of_the_whole() {
    let config = llama();
    let shape = shape(2, 4, 4, Dtype::Bf16);
    for form in [StoredFormat::Kv4, StoredFormat::Kv8, StoredFormat::W4Kv4] {
        let expected = run(&config, &shape, &form.of(&config, cpu_only(&config)));
        for (chunks, split) in [
            ("scores=3", "scores.1:up"),
            ("scores=2", "k:scores.1"),
            ("attention=3", "q:softmax.1"),
            ("attention=3", "wv.1:"),
        ] {
            let chunking = Some(parse_chunking(chunks).expect("a chunking"));
            let split = parse_split(split, &config, chunking).expect("a split");
            let map = form.of(&config, two_split(&config, split, chunking));
            assert!(run(&config, &shape, &map) == expected, "{form:?} {chunks}");
            assert!(run(&config, &shape, &unfused(map)) == expected, "{form:?} {chunks} unfused");
        }
    }
}

#[test]
fn the_device_alone_reads_quantised_caches_that_are_streamed_or_stay() {
    let config = llama();
    let shape = shape(2, 3, 1, Dtype::Bf16);
    for form in [StoredFormat::Kv4, StoredFormat::Kv8, StoredFormat::W4Kv4] {
        let expected = run(&config, &shape, &form.of(&config, cpu_only(&config)));
        for home in [MemoryId::DRAM, MemoryId::VRAM] {
            let homes = DefaultTiers { kv: home, prefill_hidden: home };
            let map = form.of(&config, device_map(&Policy::GpuOnly, &config, false, homes));
            assert!(run(&config, &shape, &map) == expected, "{form:?} {homes:?}");
        }
    }
}

#[test]
fn a_quantised_cache_of_odd_heads_is_refused_with_a_sentence() {
    let config = ModelConfig { head_dim: 7, ..opt() };
    let shape = shape(1, 2, 1, Dtype::F32);
    for (form, name) in [(StoredFormat::Kv4, "kv4"), (StoredFormat::Kv8, "kv8")] {
        let refused = compile(&config, &shape, &form.of(&config, cpu_only(&config)));
        let Err(error) = refused else { panic!("an odd head has no {name} form") };
        assert!(error.to_string().contains("heads of even size"), "{error}");
        assert!(error.to_string().contains(&format!("leave {name} out")), "{error}");
    }
}
