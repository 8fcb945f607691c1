//! The memory estimate of a plan before it is compiled equals the memory of the compiled plan,
//! regardless of what stays in device memory.

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use planner::policy::{
    DefaultTiers, Flexgen, Placement, Policy, Residency, ResidentAttention, spread_evenly,
};
use planner::split::Split;
use program::compile::{compile, footprint, program_footprint, runs_in_chunks};
use program::ir::ProgramId;
use program::map::{ChunkOrder, Chunking, DeviceMap};
use program::plan::RunShape;
use program::topology::MemoryId;

const LAYERS: usize = 6;

fn config() -> ModelConfig {
    let mut config = find_known("opt-125m").expect("known").config;
    (config.num_layers, config.vocab_size) = (LAYERS, 1024);
    config
}

fn policies() -> Vec<Policy> {
    let split = |start, end, chunking| Policy::TwoSplit { split: Split { start, end }, chunking };
    let cut = |order| Some(Chunking { order, chunks: 8 });
    vec![
        split(0, 4, None),
        split(3, 8, None),
        // ln0 q k v, followed by eight chunks of attention.
        split(3, 12, cut(ChunkOrder::Scores)),
        split(4, 10, cut(ChunkOrder::Attention)),
        // More chunks of V are streamed than of K.
        split(5, 10, cut(ChunkOrder::Attention)),
        Policy::Flexgen(Flexgen { spread: false, cpu_attention: false }),
    ]
}

fn maps(config: &ModelConfig) -> Vec<DeviceMap> {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let mut maps = Vec::new();
    for policy in policies() {
        for count in [0, 1, LAYERS / 2, LAYERS] {
            for attention in ResidentAttention::ALL {
                let layers = spread_evenly(count, LAYERS);
                let residency = Residency { layers, attention, head: count % 2 == 1 };
                // If prompts are computed on the CPU, decode has the largest footprint.
                let prefills: &[bool] = match policy {
                    Policy::Flexgen(_) => &[false],
                    _ => &[false, true],
                };
                for prefill_on_cpu in prefills.iter().copied() {
                    for device_batches in [0, 1] {
                        let residency = residency.clone();
                        let of = Placement::from_policy(policy);
                        let one = Placement { prefill_on_cpu, device_batches, residency, ..of };
                        maps.push(one.map(config, true, homes));
                    }
                }
            }
        }
    }
    maps
}

#[test]
fn a_footprint_is_that_of_the_compiled_plan() {
    let config = config();
    for map in maps(&config) {
        for (batches, prefill_chunk) in [(1, 0), (1, 16), (2, 0), (3, 16)] {
            if prefill_chunk > 0 && !runs_in_chunks(&config, &map) {
                continue;
            }
            let shape = RunShape {
                batches,
                batch_size: 8,
                max_prompt: 24,
                shared_prompt: 0,
                max_context: 64,
                max_new: 40,
                logprobs: 0,
                micro_sequences: 1,
                prefill_chunk,
                serves: false,
                page_positions: 0,
                kv_pages: 0,
                checkpoints: 0,
                logits_rows: 0,
                device_slots: 0,
                dtype: Dtype::Bf16,
            };
            let what = || format!("{batches} {prefill_chunk} {map:?}");
            let whole = footprint(&config, &shape, &map, None).expect("a map that compiles");
            let compiled = compile(&config, &shape, &map).expect("a map that compiles");
            assert_eq!(whole, compiled.footprint(None), "{}", what());

            let alone = [ProgramId::PREFILL, ProgramId::DECODE].map(|program| {
                program_footprint(&config, &shape, &map, None, program).expect("compiles")
            });
            assert_eq!(alone[0].kept_bytes, alone[1].kept_bytes, "{}", what());
            let most = alone[0].own_bytes.max(alone[1].own_bytes);
            assert_eq!(alone[0].kept_bytes + most, whole.device_bytes, "{}", what());
        }
    }
}
