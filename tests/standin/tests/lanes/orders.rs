//! The order in which streams run changes nothing; a wait that is lost does.

use model::config::Dtype;
use program::topology::MemoryId;

use crate::case::{group, llama, on_cpu, plan};
use crate::harness::{Setting, Workers};

const SEEDS: u64 = 200;

#[test]
fn two_hundred_orders_give_the_same_tokens() {
    let config = llama();
    let expected = on_cpu(&config, Dtype::F32);
    // Weights, K and V streamed, and results back, between operations of both sides.
    let plan = plan(&config, Dtype::F32, Some("k:up"), None, MemoryId::DRAM);
    for seed in 0..SEEDS {
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
