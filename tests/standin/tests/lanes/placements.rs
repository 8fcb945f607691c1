//! f32 tokens of the device equal the CPU's, wherever the operations run.

use model::config::{Dtype, ModelConfig};
use planner::split::parse_split;
use program::map::{ChunkOrder, Chunking, layer_list};
use program::plan::RunShape;
use program::topology::MemoryId;

use crate::case::{group, llama, on_cpu, opt, plan, plan_of, runs_all_cases, shape};
use crate::harness::{Setting, Workers};

/// Returns intervals `[i, j)` of a layer, in the syntax of `--split`: all of them, or a sample with
/// each operation alone, each beginning and each end. `workers/tests/in_process/placement.rs` has
/// every interval on an emulated device.
fn intervals(config: &ModelConfig) -> Vec<String> {
    let names: Vec<String> = layer_list(config, 0, None).iter().map(|op| op.name(config)).collect();
    let mut found = Vec::new();
    for first in 0..names.len() {
        let is_sampled =
            |last: &usize| runs_all_cases() || *last == first + 1 || (first + last) % 3 == 1;
        for last in (first + 1..=names.len()).filter(is_sampled) {
            let end = names.get(last).map_or("", String::as_str);
            found.push(format!("{}:{end}", names[first]));
        }
    }
    found
}

fn same_tokens(config: &ModelConfig, splits: &[String], chunking: Option<Chunking>, kv: MemoryId) {
    let expected = on_cpu(config, Dtype::F32);
    for split in splits {
        let plan = plan(config, Dtype::F32, Some(split), chunking, kv);
        let workers = Workers::start(&plan, &Setting::default()).expect(split);
        assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected), "{split} {chunking:?}");
        workers.finish().expect(split);
    }
}

#[test]
fn intervals_give_the_tokens_of_the_cpu() {
    for config in [llama(), opt()] {
        let splits = intervals(&config);
        assert!(splits.iter().all(|split| parse_split(split, &config, None).is_ok()), "{splits:?}");
        same_tokens(&config, &splits, None, MemoryId::DRAM);
    }
}

#[test]
fn chunks_of_attention_give_the_tokens_of_the_cpu() {
    let config = llama();
    for (order, split) in
        [(ChunkOrder::Scores, "scores.1:wv"), (ChunkOrder::Attention, "scores.1:out")]
    {
        let chunking = Some(Chunking { order, chunks: 3 });
        same_tokens(&config, &[split.to_owned()], chunking, MemoryId::DRAM);
    }
}

#[test]
fn caches_in_device_memory_give_the_tokens_of_the_cpu() {
    for config in [llama(), opt()] {
        same_tokens(&config, &["gpu-only".to_owned()], None, MemoryId::VRAM);
    }
}

#[test]
fn chunks_of_prompts_give_the_tokens_of_the_cpu() {
    for config in [llama(), opt()] {
        let expected = on_cpu(&config, Dtype::F32);
        let parts = |order| Some(Chunking { order, chunks: 2 });
        for (split, chunking, kv) in [
            ("gpu-only", None, MemoryId::VRAM),
            ("gpu-only", None, MemoryId::DRAM),
            ("k:out", None, MemoryId::DRAM),
            ("scores.1:", parts(ChunkOrder::Scores), MemoryId::VRAM),
            ("scores.1:", parts(ChunkOrder::Attention), MemoryId::DRAM),
        ] {
            for prefill_chunk in [1, 3] {
                let shape = RunShape { prefill_chunk, ..shape(Dtype::F32) };
                let plan = plan_of(&config, &shape, Some(split), chunking, kv);
                let workers = Workers::start(&plan, &Setting::default()).expect(split);
                let found = workers.run_group(&group());
                assert_eq!(found.as_ref(), Ok(&expected), "{split} {kv:?} in {prefill_chunk}");
                workers.finish().expect(split);
            }
        }
    }
}

#[test]
fn copies_in_the_gpu_worker_give_the_same_and_nothing_is_allocated() {
    let config = llama();
    let expected = on_cpu(&config, Dtype::F32);
    let plan = plan(&config, Dtype::F32, Some("k:up"), None, MemoryId::DRAM);
    for copies_in_gpu_worker in [false, true] {
        let setting = Setting { copies_in_gpu_worker, ..Setting::default() };
        let workers = Workers::start(&plan, &setting).expect("the workers start");
        for _ in 0..3 {
            assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected));
        }
        workers.finish().expect("they end well");
    }
}
