//! Sequences owned by the device or by the host: tokens equal the CPU's in any order of the streams
//! and in either shape of iteration, while caches migrate.

use model::config::Dtype;
use program::compile::compile;
use program::kv_owner::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use protocol::table::HybridPolicy;
use scheduler::StepCostCurve;
use scheduler::hybrid::{DeferredRows, IterationLimits, SchedulingPolicy, StepCosts};
use workers::testing::PlacedRequest;

use crate::case::{group, llama, map_of, on_cpu, runs_all_cases, shape};
use crate::harness::{Setting, Workers};

/// Returns the sequences of both batches in one batch.
fn in_one_batch() -> Vec<PlacedRequest> {
    let one = |(slot, placed): (usize, PlacedRequest)| PlacedRequest { batch: 0, slot, ..placed };
    group().into_iter().enumerate().map(one).collect()
}

fn plan(streams: bool) -> Plan {
    let config = llama();
    let mut map = map_of(&config, Some("gpu-only"), None, MemoryId::VRAM);
    if !streams {
        map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::VRAM);
    }
    let owned = RunShape {
        batches: 1,
        batch_size: 4,
        serves: true,
        prefill_chunk: 12,
        device_slots: 2,
        ..shape(Dtype::F32)
    };
    compile(&config, &owned, &with_owners(&map, &config)).expect("compiles")
}

/// Returns the settings for a policy. With APEX the host attends eight times slower than the
/// device, so that rows are deferred.
fn deciding(policy: SchedulingPolicy) -> HybridPolicy {
    let is_slow = policy == SchedulingPolicy::Apex;
    let mut device = StepCostCurve::NONE;
    device.points[0] = (1, 1000);
    device.points[1] = (16, 1500);
    let limits = IterationLimits {
        rows: 0,
        page_positions: 14,
        device_pages: 2,
        host_pages: 6,
        patience: 9,
        deferred_rows: DeferredRows::AnyLayer,
    };
    let mut costs = StepCosts { layers: 2, device, ..StepCosts::NONE };
    if is_slow {
        costs.device_position_ps = 100_000_000;
        costs.host_position_ps = 800_000_000;
    }
    HybridPolicy { policy, limits, costs }
}

#[test]
fn owners_give_the_tokens_of_the_cpu_in_all_orders() {
    let expected = on_cpu(&llama(), Dtype::F32);
    let plans = [plan(false), plan(true)];
    let mut all = [0; 5];
    let seeds: u64 = if runs_all_cases() { 60 } else { 24 };
    for seed in 0..seeds {
        let variables = vec![("STANDIN_CUDA_SEED", seed.to_string())];
        let setting =
            Setting { variables, copies_in_gpu_worker: seed % 4 == 3, ..Setting::default() };
        let workers =
            Workers::start(&plans[seed as usize % 2], &setting).expect("the workers start");
        let policies = [
            SchedulingPolicy::Neo,
            SchedulingPolicy::FastDecode,
            SchedulingPolicy::Auto,
            SchedulingPolicy::Apex,
        ];
        let policy = policies[seed as usize % 4];
        let (found, ran) =
            workers.serve(&in_one_batch(), &deciding(policy)).expect("they are served");
        assert_eq!(tokens(&found), tokens(&expected), "seed {seed} {policy:?}");
        all.iter_mut().zip(ran).for_each(|(all, ran)| *all += ran);
        workers.finish().expect("they end well");
    }
    assert!(all.iter().all(|ran| u64::from(*ran) > seeds / 6), "each program ran: {all:?}");
}

fn tokens(outcomes: &[workers::testing::Outcome]) -> Vec<&[u32]> {
    outcomes.iter().map(|outcome| outcome.tokens.as_slice()).collect()
}

#[test]
fn a_wait_that_owners_lose_is_caught() {
    let expected = on_cpu(&llama(), Dtype::F32);
    let plan = plan(false);
    let wrong = (0..20u64).any(|seed| {
        let variables = vec![
            ("STANDIN_CUDA_SEED", seed.to_string()),
            ("STANDIN_CUDA_DROP_WAIT", "2".to_owned()),
        ];
        let setting = Setting { variables, ..Setting::default() };
        let workers = Workers::start(&plan, &setting).expect("the workers start");
        let served = workers.serve(&in_one_batch(), &deciding(SchedulingPolicy::FastDecode));
        served.map_or(true, |(found, _)| tokens(&found) != tokens(&expected))
    });
    assert!(wrong, "half of all waits were lost, and twenty orders did not show it");
}
