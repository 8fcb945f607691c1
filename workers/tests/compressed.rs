//! Weights in 4 bits: whatever the placement, the bits are those of the run on the CPU, which
//! multiplies straight from the 4-bit form while the device decompresses first.

mod common;

use common::placed::{cpu_only, run, shape, two_split};
use common::{llama, opt};
use model::compressed::{Grouped, WeightFormat};
use model::config::{Dtype, ModelConfig};
use planner::policy::{Homes, Policy, device_map};
use planner::split::{Split, parse_chunking, parse_split};
use program::formats::WeightFormats;
use program::map::{DeviceMap, Home, layer_list};

fn compressed(config: &ModelConfig, mut map: DeviceMap) -> DeviceMap {
    let format = WeightFormat::Grouped(Grouped::W4);
    map.weight_formats = WeightFormats::with_layers(config, format);
    map
}

#[test]
fn every_interval_gives_the_bits_of_the_cpu() {
    for (config, dtype) in [(llama(), Dtype::Bf16), (opt(), Dtype::F32)] {
        let shape = shape(2, 3, 2, dtype);
        let plain = run(&config, &shape, &cpu_only(&config));
        let expected = run(&config, &shape, &compressed(&config, cpu_only(&config)));
        assert_ne!(plain.1, expected.1, "4 bits cannot give the same logits");
        assert!(expected.1.iter().all(|logit| logit.is_finite()));
        let ops = layer_list(&config, None).len();
        for start in 0..ops {
            for end in start + 1..=ops {
                let map = two_split(&config, Split { start, end }, None);
                let found = run(&config, &shape, &compressed(&config, map));
                assert!(found == expected, "{:?} [{start}, {end})", config.family);
            }
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
fn the_device_alone_decompresses_what_is_streamed_and_what_stays() {
    let config = llama();
    let shape = shape(2, 3, 1, Dtype::Bf16);
    let expected = run(&config, &shape, &compressed(&config, cpu_only(&config)));
    for home in [Home::Host, Home::Vram] {
        let homes = Homes { kv: home, prefill_hidden: home };
        let map = device_map(&Policy::GpuOnly, &config, false, homes);
        let mut map = compressed(&config, map);
        let streamed = run(&config, &shape, &map);
        assert!(streamed == expected, "{homes:?}");
        map.weights.iter_mut().flatten().for_each(|home| *home = Home::Vram);
        map.outer_weights = Home::Vram;
        let resident = run(&config, &shape, &map);
        assert!(resident == expected, "{homes:?} resident");
    }
}
