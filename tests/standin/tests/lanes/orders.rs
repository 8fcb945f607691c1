//! The order in which streams run does not change results; a lost wait does.

use model::config::Dtype;
use program::topology::MemoryId;

use crate::case::{group, llama, on_cpu, plan, runs_all_cases};
use crate::harness::{Setting, Workers};

#[test]
fn all_orders_give_the_same_tokens() {
    let config = llama();
    let expected = on_cpu(&config, Dtype::F32);
    // Streams weights, K and V, and copies results back, between operations on both devices.
    let plan = plan(&config, Dtype::F32, Some("k:up"), None, MemoryId::DRAM);
    for seed in 0..if runs_all_cases() { 60 } else { 20 } {
        let variables = vec![("STANDIN_CUDA_SEED", seed.to_string())];
        let setting =
            Setting { variables, copies_in_gpu_worker: seed % 4 == 3, ..Setting::default() };
        let workers = Workers::start(&plan, &setting).expect("the workers start");
        assert_eq!(workers.run_group(&group()).as_ref(), Ok(&expected), "seed {seed}");
        workers.finish().expect("they end well");
    }
}

#[test]
fn a_lost_wait_is_caught() {
    let config = llama();
    let expected = on_cpu(&config, Dtype::F32);
    let plan = plan(&config, Dtype::F32, Some("k:up"), None, MemoryId::DRAM);
    let wrong = (0..20u64).any(|seed| {
        let variables = vec![
            ("STANDIN_CUDA_SEED", seed.to_string()),
            ("STANDIN_CUDA_DROP_WAIT", "2".to_owned()),
        ];
        let setting = Setting { variables, ..Setting::default() };
        let workers = Workers::start(&plan, &setting).expect("the workers start");
        workers.run_group(&group()) != Ok(expected.clone())
    });
    assert!(wrong, "half of all waits were lost, and twenty orders did not show it");
}
