//! Sequences that arrive during a run, into slots that others leave: whatever is computed together
//! with them, in whatever chunks, and however often they are cancelled and begun again, their bits
//! are those of a batch job.

use crate::common::placed::{cpu_only, shape, start, two_split};
use crate::common::served::{ServingHarness, run_alone, tokens};
use crate::common::{delta, delta_experts, llama, opt};
use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::Split;
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::topology::MemoryId;
use protocol::serving::clear_table;
use scheduler::StepCostCurve;
use workers::testing::Outcome;

/// Returns pseudorandom costs of a step, which lead to chunks of many lengths.
fn costs(seed: u64) -> (u32, StepCostCurve) {
    let mut costs =
        StepCostCurve { position_ps: (seed % 3) as u32 * 100_000, ..StepCostCurve::NONE };
    costs.points[0] = (1, 100);
    costs.points[1] = (64, 6400);
    ([100, 400, 2000][(seed % 3) as usize], costs)
}

/// Returns the outcomes, and the number of sequences that began again.
fn serve(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    seed: u64,
) -> (Vec<Outcome>, usize) {
    let mut lanes = start(config, shape, map, Variant::best());
    let (aim_us, costs) = costs(seed);
    clear_table(&lanes.table().clone(), lanes.plan(), aim_us, &costs);
    let mut serve = ServingHarness::new(&mut lanes, config, seed);
    let outcomes = serve.run(|_, _| {});
    let restarts = serve.restarts;
    assert!(lanes.finish().iter().all(Result::is_ok));
    (outcomes, restarts)
}

#[test]
fn sequences_that_come_and_go_have_the_bits_of_a_batch_job() {
    let mut restarts = 0;
    for (config, dtype, kv_format) in [
        (llama(), Dtype::Bf16, KvFormat::Plain),
        (opt(), Dtype::F32, KvFormat::Plain),
        (llama(), Dtype::Bf16, KvFormat::Four),
        (llama(), Dtype::Bf16, KvFormat::Eight),
        (delta(), Dtype::F32, KvFormat::Plain),
        (delta_experts(), Dtype::Bf16, KvFormat::Plain),
    ] {
        let with_format = |map: DeviceMap| DeviceMap { kv_format, ..map };
        let expected = run_alone(&config, &shape(1, 1, 1, dtype), &with_format(cpu_only(&config)));
        let mut maps = vec![cpu_only(&config)];
        maps.push(two_split(&config, Split { start: 3, end: 8 }, None));
        let homes = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
        maps.push(device_map(&Policy::GpuOnly, &config, false, homes));
        for (map, seed) in maps.into_iter().map(with_format).zip(0..) {
            for batches in [1, 2] {
                let shape =
                    RunShape { serves: true, prefill_chunk: 5, ..shape(batches, 4, 1, dtype) };
                let (found, begun_again) = serve(&config, &shape, &map, seed);
                restarts += begun_again;
                let case = format!("{:?} {kv_format:?} {} x{batches}", config.family, map.policy);
                assert_eq!(tokens(&found), tokens(&expected), "{case}");
            }
        }
    }
    assert!(restarts > 0, "{restarts} sequences were called off and begun again");
}
