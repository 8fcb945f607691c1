//! Rates of a profile that follows the cost law are recovered.

use std::collections::BTreeMap;

use model::known::find_known;
use model::quantized_format::Grouped;

use super::*;
use crate::fingerprint::Fingerprint;
use crate::key::{Point, WorkKey};
use crate::profile::{Overhead, ProfileMeasurements};
use crate::request::ComputeThreads;
use crate::stat::Stat;

const GBPS: f64 = 20.0;
const TFLOPS: f64 = 0.8;
const KV_GBPS: f64 = 12.0;
const KV_TFLOPS: f64 = 0.4;
const OVERHEAD_NS: f64 = 900.0;
/// Factor by which bytes and arithmetic are slower in 4 bits.
const SLOWER: f64 = 2.0;
const FOUR: WeightFormat = WeightFormat::Grouped(Grouped::W4);

fn config() -> ModelConfig {
    find_known("opt-1.3b").expect("known").config
}

fn profile(work: Vec<WorkMeasurement>) -> Profile {
    Profile {
        fingerprint: Fingerprint { machine: BTreeMap::new(), profiled: BTreeMap::new() },
        measurements: ProfileMeasurements {
            threads: ComputeThreads { cpu: 1, gpu: 1 },
            best_cpu_threads: 1,
            work,
            sweep: Vec::new(),
            overhead: Overhead { wake: None, empty_span: None, between_spans: None },
            skipped: Vec::new(),
            rehearsals: Vec::new(),
            finished: Vec::new(),
            took_ms: 0,
        },
    }
}

fn measured(
    lane: LaneId,
    phase: Option<Phase>,
    work: ProfiledWork,
    point: (u32, u32),
) -> WorkMeasurement {
    let (rows, positions) = point;
    WorkMeasurement {
        key: WorkKey { lane, phase, work },
        point: Point { rows, positions },
        concurrent: Vec::new(),
        time: Stat::from_samples(&[1]).expect("a sample"),
        disputed: false,
    }
}

/// Returns the points of a device, with times that follow the law.
fn device(lane: LaneId) -> Vec<WorkMeasurement> {
    let config = config();
    let compute = |op, weights, kv| ProfiledWork::Compute { op, chunk: None, weights, kv };
    let mut work = Vec::new();
    for weights in [WeightFormat::Plain, FOUR] {
        for op in [Op::Q, Op::Fc0] {
            for rows in [1, 4, 64] {
                work.push(measured(lane, None, compute(op, weights, None), (rows, 0)));
            }
        }
    }
    for kv in [KvFormat::Plain, KvFormat::Four] {
        let attention = compute(Op::Attention, WeightFormat::Plain, Some(kv));
        for (phase, positions) in
            [(Phase::Decode, 512), (Phase::Decode, 640), (Phase::Prefill, 256)]
        {
            work.push(measured(lane, Some(phase), attention, (4, positions)));
        }
    }
    let of = profile(Vec::new());
    let points = MeasuredPoints { profile: &of, config: &config, dtype: Dtype::Bf16 };
    for one in &mut work {
        let (timed, gbps, tflops) = [false, true]
            .into_iter()
            .find_map(|four_bit| {
                let slower = if four_bit { SLOWER } else { 1.0 };
                let linear = points.linear(one, four_bit).map(|timed| (timed, GBPS, TFLOPS));
                let attention = points.attention(one, four_bit);
                let attention = attention.map(|timed| (timed, KV_GBPS, KV_TFLOPS));
                let (timed, gbps, tflops) = linear.or(attention)?;
                Some((timed, gbps / slower, tflops / slower))
            })
            .expect("all of it is a linear or attention");
        let operands_ns = timed.operands / gbps + timed.flops / (tflops * 1e3);
        one.time.mean_ns = operands_ns + timed.activations / GBPS + OVERHEAD_NS;
    }
    work
}

fn near(rate: f64, expected: f64) {
    assert!((rate / expected - 1.0).abs() < 1e-3, "{rate} for {expected}");
}

#[test]
fn rates_of_the_law_are_found() {
    let mut work = device(LaneId::CPU_COMPUTE);
    let mut copy = measured(
        LaneId::H2D_WEIGHTS,
        None,
        ProfiledWork::CopyWeights { op: Op::Fc0, weights: WeightFormat::Plain },
        (0, 0),
    );
    let bytes =
        Weights::of(Op::Fc0, Some(0)).size_bytes(&config(), Dtype::Bf16, WeightFormat::Plain);
    copy.time.mean_ns = bytes as f64 / 7.0;
    work.push(copy);
    let found = derive_rates(&profile(work), &config(), Dtype::Bf16);
    let cpu = found.cpu.expect("measured");
    near(cpu.linear_gbps, GBPS);
    near(cpu.linear_tflops, TFLOPS);
    near(cpu.attention_gbps, KV_GBPS);
    near(cpu.attention_tflops, KV_TFLOPS);
    near(cpu.overhead_us, OVERHEAD_NS / 1e3);
    let four = cpu.four_bit.expect("measured");
    near(four.linear_gbps, GBPS / SLOWER);
    near(four.linear_tflops, TFLOPS / SLOWER);
    near(four.attention_gbps, KV_GBPS / SLOWER);
    near(four.attention_tflops, KV_TFLOPS / SLOWER);
    near(found.h2d_gbps.expect("measured"), 7.0);
    assert_eq!((found.gpu, found.d2h_gbps, found.decompress), (None, None, None));
    // Nothing was measured concurrently, so nothing is slower there.
    near(found.dram_gbps.expect("known"), 27.0);
}

#[test]
fn what_the_other_slows_down_is_less_together() {
    let alone = device(LaneId::CPU_COMPUTE);
    let beside = alone.iter().cloned().map(|mut one| {
        one.concurrent = vec![LaneId::H2D_WEIGHTS];
        one.time.mean_ns *= 2.0;
        one
    });
    let mut work: Vec<WorkMeasurement> = alone.iter().cloned().chain(beside).collect();
    let mut copy = measured(
        LaneId::H2D_WEIGHTS,
        None,
        ProfiledWork::CopyWeights { op: Op::Fc0, weights: WeightFormat::Plain },
        (0, 0),
    );
    let bytes =
        Weights::of(Op::Fc0, Some(0)).size_bytes(&config(), Dtype::Bf16, WeightFormat::Plain);
    copy.time.mean_ns = bytes as f64 / 15.0;
    work.push(copy);
    let found = derive_rates(&profile(work), &config(), Dtype::Bf16);
    near(found.cpu.expect("measured").linear_gbps, GBPS);
    near(found.dram_gbps.expect("known"), GBPS / 2.0 + 15.0);
}
