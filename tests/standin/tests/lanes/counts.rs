//! Numbers of calls of the driver in a decode step, for a model that stays on the device. They are
//! what a small model's step costs beyond its bytes; a change of them is deliberate.

use std::collections::BTreeMap;

use model::config::{Dtype, ModelConfig};
use planner::policy::{DefaultTiers, Placement, Policy, Residency, ResidentAttention};
use program::compile::compile;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use workers::testing::{GenerationRequest, PlacedRequest};

use crate::case::{llama, shape};
use crate::faults::{counted, log};
use crate::harness::{Setting, Workers};

/// Calls of the driver by name.
type Calls = BTreeMap<String, u64>;

const COPY_TO_HOST: &str = "cuMemcpyDtoHAsync";
/// Calls that enqueue work, whose number does not depend on the progress of the device.
const ENQUEUEING: [&str; 4] =
    ["cuLaunchKernel", "cuEventRecord", "cuMemcpyHtoDAsync", COPY_TO_HOST];

fn plan(layers: usize) -> Plan {
    let config = ModelConfig { num_layers: layers, ..llama() };
    let homes = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let residency = Residency {
        layers: (0..layers).collect(),
        attention: ResidentAttention::WithKv,
        head: true,
    };
    let placement = Placement { residency, ..Placement::from_policy(Policy::GpuOnly) };
    let map = placement.map(&config, true, homes);
    let shape = RunShape { batches: 1, max_new: 8, max_context: 16, ..shape(Dtype::F32) };
    compile(&config, &shape, &map).expect("compiles")
}

/// Returns the calls of the process that computes and copies, for two sequences. `log_name` names
/// its log, of which each test has its own.
fn calls(
    log_name: &str,
    layers: usize,
    new_tokens: u32,
    change: impl Fn(&mut GenerationRequest),
) -> Calls {
    let placed = |slot: usize| {
        let mut request = GenerationRequest::greedy(vec![slot as u32 + 5, 7], new_tokens);
        change(&mut request);
        PlacedRequest { batch: 0, slot, request }
    };
    let variables = vec![("STANDIN_CUDA_LOG", log(log_name))];
    let setting = Setting { variables, copies_in_gpu_worker: true, ..Setting::default() };
    let workers = Workers::start(&plan(layers), &setting).expect("the workers start");
    workers.run_group(&[placed(0), placed(1)]).expect("it runs");
    workers.finish().expect("they end well");
    counted(log_name)
}

/// Returns the calls of a decode step of a model of `layers` layers.
fn step(log_name: &str, layers: usize, change: impl Fn(&mut GenerationRequest)) -> Calls {
    let (few, many) = (calls(log_name, layers, 3, &change), calls(log_name, layers, 5, &change));
    let name = |name: &String| ENQUEUEING.contains(&name.as_str()) || name.starts_with("note: to");
    let names = many.keys().filter(|found| name(found));
    let found = names.map(|name| (name.clone(), (count(&many, name) - count(&few, name)) / 2));
    found.filter(|(_, count)| *count > 0).collect()
}

fn count(calls: &Calls, name: &str) -> u64 {
    calls.get(name).copied().unwrap_or(0)
}

#[test]
fn a_decode_step_makes_a_fixed_number_of_calls() {
    let (two, four) = (step("counts", 2, |_| {}), step("counts", 4, |_| {}));
    let of_layer = |name: &str| (count(&four, name) - count(&two, name)) / 2;
    // Norms 2, q, k and v 3, rope 2, attention 2, appends 2, linears after it 4.
    assert_eq!(of_layer("cuLaunchKernel"), 15);
    assert_eq!(of_layer("cuEventRecord"), 2 * 12, "two for each instruction");
    for name in ["cuMemcpyHtoDAsync", COPY_TO_HOST] {
        assert_eq!(of_layer(name), 0, "{name}");
    }
    let outside = |name: &str| count(&two, name) - 2 * of_layer(name);
    assert_eq!(outside("cuLaunchKernel"), 3, "final norm, head, largest logits");
    assert_eq!(outside("cuEventRecord"), 8);
    // The embedding, positions, and the units of attention and of appends.
    assert_eq!(outside("cuMemcpyHtoDAsync"), 4);
}

#[test]
fn logits_are_copied_only_if_the_sampler_needs_them() {
    // Two rows of a token or of 96 logits, four bytes each.
    let (tokens, logits) = ("note: to host 8", "note: to host 768");
    type Change = fn(&mut GenerationRequest);
    let cases: [(Change, [u64; 2]); 3] = [
        (|_| {}, [1, 0]),
        (|request| request.sampling.temperature = 1.0, [0, 1]),
        (|request| request.sampling.penalties.presence = 0.5, [0, 1]),
    ];
    for (change, expected) in cases {
        let calls = step("logits", 2, change);
        assert_eq!([count(&calls, tokens), count(&calls, logits)], expected, "{calls:?}");
        assert_eq!(count(&calls, COPY_TO_HOST), 1, "{calls:?}");
    }
}
