//! Lists of many instructions with queues as short as a driver's: lanes run ahead of the device
//! only as far as none of their calls finds a queue full, which would block the process.

use model::config::{Dtype, ModelConfig};
use program::plan::RunShape;
use program::topology::MemoryId;
use workers::testing::{GenerationRequest, PlacedRequest};

use crate::case::{group, llama, on_cpu, on_cpu_of, opt, plan, plan_of, shape};
use crate::faults::{counted, log};
use crate::harness::{Setting, Workers};

/// Capacity of a channel in these tests. A driver's capacity is about a thousand, and not
/// documented.
const QUEUE_ENTRIES: usize = 600;

/// Returns the seeds of the long list: a few, or a hundredth of the number requested by `make
/// fuzz`.
fn seeds() -> std::ops::Range<u64> {
    let from_environment = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let begin: u64 = from_environment("TANDEM_FUZZ_SEED").unwrap_or(0);
    let cases: u64 = from_environment("TANDEM_FUZZ_CASES").unwrap_or(0);
    begin..begin + (cases / 100).max(4)
}

fn setting(name: &str, seed: u64) -> Setting<'static> {
    let variables = vec![
        ("STANDIN_CUDA_SEED", seed.to_string()),
        ("STANDIN_CUDA_QUEUE", QUEUE_ENTRIES.to_string()),
        ("STANDIN_CUDA_LOG", log(name)),
    ];
    Setting { variables, copies_in_gpu_worker: seed % 4 == 3, ..Setting::default() }
}

/// Returns the number of calls that found a queue full, in the process with the most of them.
fn full(name: &str) -> u64 {
    counted(name).get("note: full").copied().unwrap_or(0)
}

#[test]
fn lists_of_many_layers_never_fill_a_queue() {
    let config = ModelConfig { num_layers: 24, ..llama() };
    let expected = on_cpu(&config, Dtype::F32);
    // Weights stream into the slots of a layer or two, so that their lane is far ahead.
    let plan = plan(&config, Dtype::F32, Some("gpu-only"), None, MemoryId::DRAM);
    for seed in seeds() {
        let workers = Workers::start(&plan, &setting("layers", seed)).expect("the workers start");
        assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected), "seed {seed}");
        workers.finish().expect("they end well");
        assert_eq!(full("layers"), 0, "seed {seed}: a call found its queue full");
    }
}

/// A cache is copied in one span per sequence and head, all of them in one instruction.
#[test]
fn an_instruction_of_many_copies_never_fills_a_queue() {
    const SEQUENCES: usize = 288;
    let config = opt();
    let shape = RunShape {
        batches: 1,
        batch_size: SEQUENCES as u16,
        micro_sequences: SEQUENCES as u16,
        ..shape(Dtype::F32)
    };
    let placed = |slot: usize| {
        let request = GenerationRequest::greedy(vec![slot as u32 % 90, 7], 3);
        PlacedRequest { batch: 0, slot, request }
    };
    let group: Vec<PlacedRequest> = (0..SEQUENCES).map(placed).collect();
    let of = |split| plan_of(&config, &shape, split, None, MemoryId::DRAM);
    let expected = on_cpu_of(&config, of(None), &group);
    let on_device = of(Some("gpu-only"));
    for seed in 0..2 {
        let workers =
            Workers::start(&on_device, &setting("copies", seed)).expect("the workers start");
        assert_eq!(workers.run_group(&group).as_ref(), Ok(&expected), "seed {seed}");
        workers.finish().expect("they end well");
        assert!(counted("copies")["cuMemcpyHtoDAsync"] > QUEUE_ENTRIES as u64, "many copies");
        assert_eq!(full("copies"), 0, "seed {seed}: a call found its queue full");
    }
}
