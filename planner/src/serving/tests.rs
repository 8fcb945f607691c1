//! Serving checked by hand, and properties of every policy.

use model::config::{Dtype, ModelConfig};
use model::known::find_known as known_model;
use scheduler::hybrid::{
    DeferredRows, IterationLimits, IterationShape, LayerCosts, LinkCosts, SchedulingPolicy,
};

use super::{
    CacheCapacity, RequestArrival, ServingCosts, ServingError, ServingResults, replay_decisions,
    simulate,
};
use crate::machine::{Machine, find_bundled};

/// Costs with 1 ms per layer regardless of its rows, and attention on the host that takes no time.
#[derive(Debug)]
struct FixedLayerCosts;

impl LayerCosts for FixedLayerCosts {
    fn layers(&self) -> u32 {
        2
    }

    fn linear_ms(&self, rows: u32) -> f64 {
        f64::from(rows.min(1))
    }

    fn prefill_attention_ms(&self, _tokens: u32) -> f64 {
        0.0
    }

    fn device_decode_ms(&self, _positions: u64) -> f64 {
        0.0
    }

    fn host_decode_ms(&self, _sequences: u32, _positions: u64) -> f64 {
        0.0
    }

    fn launch_ms(&self) -> f64 {
        0.0
    }

    fn ends_ms(&self, _rows: u32, _samples: u32) -> f64 {
        0.0
    }

    fn link(&self) -> LinkCosts {
        LinkCosts::default()
    }
}

fn machine(name: &str) -> Machine {
    find_bundled(name).expect("a machine").expect("a valid file")
}

fn config(name: &str) -> ModelConfig {
    known_model(name).expect("a known model").config
}

fn arrival(at_ms: f64, prompt_tokens: u32, answer_tokens: u32) -> RequestArrival {
    RequestArrival { at_ms, prompt_tokens, answer_tokens }
}

const AMPLE: IterationLimits = IterationLimits {
    rows: 100,
    page_positions: 4,
    device_pages: 100,
    host_pages: 100,
    patience: 100,
    deferred_rows: DeferredRows::SameLayer,
};

/// Device capacity for some requests of [`many`].
const SMALL: IterationLimits = IterationLimits {
    rows: 2048,
    page_positions: 16,
    device_pages: 120,
    host_pages: 2000,
    patience: 1000,
    deferred_rows: DeferredRows::SameLayer,
};

#[test]
fn two_requests_by_hand() {
    // The first request is alone for an iteration of 2 ms; the second arrives during the second
    // iteration, and waits.
    let arrivals = [arrival(10.0, 5, 3), arrival(13.0, 5, 2)];
    let served = simulate(SchedulingPolicy::GpuOnly, &arrivals, &AMPLE, &FixedLayerCosts);
    assert_eq!((served.requests, served.prompt_tokens, served.answer_tokens), (2, 10, 5));
    assert_eq!(served.makespan_ms, 8.0, "at 12, 14, 16 and 18");
    let first = served.first_token.expect("tokens");
    assert_eq!((first.mean_ms, first.p50_ms), (2.5, 2.5), "2 ms and 3 ms");
    assert_eq!(served.per_token.expect("several").mean_ms, 2.0);
    assert_eq!(served.shape_stats(IterationShape::Gpu).iterations, 4);
    assert_eq!(served.utilisation(|times| times.device_ms), 1.0);
    assert_eq!(served.latency_per_token_ms, (2.0 + 2.5) / 2.0);
    assert_eq!(served.host_gaps, None);
    assert_eq!(served.window_requests_per_s, Some(500.0), "one between 16 and 18 ms");
}

#[test]
fn by_another_clock_a_request_is_in_the_iterations_that_were_decided_behind_it() {
    let arrivals = [arrival(10.0, 5, 3), arrival(13.0, 5, 2)];
    let rows = |decided_ms: &[f64]| -> Vec<u32> {
        let ran = replay_decisions(
            SchedulingPolicy::GpuOnly,
            &arrivals,
            &AMPLE,
            &FixedLayerCosts,
            decided_ms,
        );
        assert!(
            ran.iter().all(|one| one.times.total_ms == 2.0 && one.shape == IterationShape::Gpu)
        );
        ran.into_iter().map(|one| one.rows).collect()
    };
    let simulated =
        simulate(SchedulingPolicy::GpuOnly, &arrivals, &AMPLE, &FixedLayerCosts).iterations;
    let of_simulated: Vec<u32> = simulated.into_iter().map(|one| one.rows).collect();
    assert_eq!(of_simulated, [5, 1, 6, 1], "its second prompt waits for the next");
    assert_eq!(rows(&[10.0, 12.0, 14.0, 16.0]), of_simulated);
    assert_eq!(rows(&[11.0, 13.5, 20.0]), [5, 6, 2], "a slower clock has it one earlier");
    assert!(rows(&[9.0]).is_empty(), "nobody is there");
}

#[test]
fn whole_numbers_say_what_rates_do() {
    let machine = machine("g5-16xlarge");
    let costs = ServingCosts::new(&machine, &config("llama-3.1-8b"), Dtype::Bf16, 0).expect("bf16");
    let whole = costs.step_costs();
    let layers = f64::from(costs.layers());
    for rows in [1, 20, 300, 2000] {
        let rates_ms = costs.linear_ms(rows) * layers + costs.ends_ms(rows, 1);
        let error = whole.linear_ms(rows) * layers / rates_ms - 1.0;
        assert!(error.abs() < 0.01, "{rows} rows: {error}");
    }
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} for {b}");
    near(whole.prefill_attention_ms(1500), costs.prefill_attention_ms(1500));
    near(whole.device_decode_ms(30_000), costs.device_decode_ms(30_000));
    near(whole.host_decode_ms(1, 30_000), costs.host_decode_ms(1, 30_000));
    near(whole.launch_ms(), costs.launch_ms());
    near(whole.link().position_out_ms, costs.link().position_out_ms);
}

#[test]
fn who_comes_late_is_waited_for_and_who_is_too_long_is_refused() {
    let arrivals = [arrival(0.0, 4, 1), arrival(50.0, 4, 1), arrival(50.0, 99, 2)];
    let served = simulate(SchedulingPolicy::GpuOnly, &arrivals, &AMPLE, &FixedLayerCosts);
    assert_eq!((served.requests, served.rejected, served.makespan_ms), (2, 1, 52.0));
    assert_eq!(served.utilisation(|times| times.total_ms), 4.0 / 52.0);
    let small = IterationLimits { device_pages: 2, ..AMPLE };
    let arrivals = [arrival(0.0, 8, 1)];
    let of = |policy| simulate(policy, &arrivals, &small, &FixedLayerCosts).rejected;
    assert_eq!(SchedulingPolicy::ALL.map(of), [1, 0, 0, 0, 0], "in the order of the policies");
}

/// Returns simultaneous requests of several lengths.
fn many() -> Vec<RequestArrival> {
    (0..60).map(|index| arrival(0.0, 100 + index * 37 % 300, 10 + index * 13 % 50)).collect()
}

fn served(
    policy: SchedulingPolicy,
    name: &str,
    model: &str,
    streamed_bytes: u64,
) -> ServingResults {
    served_lagging(DeferredRows::SameLayer, policy, (name, model, streamed_bytes))
}

fn served_lagging(
    deferred_rows: DeferredRows,
    policy: SchedulingPolicy,
    of: (&str, &str, u64),
) -> ServingResults {
    let (name, model, streamed_bytes) = of;
    let costs = ServingCosts::new(&machine(name), &config(model), Dtype::Bf16, streamed_bytes);
    let limits = IterationLimits { deferred_rows, ..SMALL };
    simulate(policy, &many(), &limits, &costs.expect("rates"))
}

#[test]
fn every_policy_answers_everything_and_says_by_whom() {
    for policy in SchedulingPolicy::ALL {
        let served = served(policy, "g5-16xlarge", "llama-3.1-8b", 0);
        assert_eq!((served.requests, served.rejected), (60, 0), "{policy:?}");
        let tokens: u32 = many().iter().map(|one| one.answer_tokens).sum();
        assert_eq!(served.answer_tokens, u64::from(tokens), "{policy:?}");
        let shapes = IterationShape::ALL.map(|shape| served.shape_stats(shape).iterations > 0);
        match policy {
            SchedulingPolicy::GpuOnly => {
                assert_eq!(served.host_tokens, 0);
                assert_eq!(shapes, [true, false, false]);
            }
            SchedulingPolicy::FastDecode => assert!(served.host_tokens > served.answer_tokens / 2),
            SchedulingPolicy::Neo => assert!(!shapes[2] && shapes[1], "{shapes:?}"),
            SchedulingPolicy::Apex | SchedulingPolicy::Auto => {}
        }
        let total_ms: f64 =
            IterationShape::ALL.iter().map(|shape| served.shape_stats(*shape).ms).sum();
        assert!((total_ms - served.makespan_ms).abs() < 1e-6 * total_ms, "{policy:?}");
    }
}

/// Deferred rows as in a server: each is at its own layer, and the iteration waits for the host.
#[test]
fn rows_that_lag_apart_answer_everything() {
    let apart =
        |policy| served_lagging(DeferredRows::AnyLayer, policy, ("g5-16xlarge", "llama-3.1-8b", 0));
    let tokens: u32 = many().iter().map(|one| one.answer_tokens).sum();
    for policy in [SchedulingPolicy::Apex, SchedulingPolicy::Auto] {
        let served = apart(policy);
        assert_eq!((served.requests, served.answer_tokens), (60, u64::from(tokens)), "{policy:?}");
    }
    // A CPU with 1/50 of its bandwidth.
    let mut slow = machine("g5-16xlarge");
    slow.cpu.bf16.attention_gbps /= 50.0;
    let costs = ServingCosts::new(&slow, &config("llama-3.1-8b"), Dtype::Bf16, 0).expect("rates");
    for deferred_rows in [DeferredRows::AnyLayer, DeferredRows::SameLayer] {
        let limits = IterationLimits { deferred_rows, ..SMALL };
        let served = simulate(SchedulingPolicy::Apex, &many(), &limits, &costs);
        let iterations = served.shape_stats(IterationShape::Async).iterations;
        assert!(iterations > 100 && served.host_tokens > 0, "{deferred_rows:?} {iterations}");
    }
}

#[test]
fn weights_that_stream_bound_every_iteration() {
    let name = "g5-16xlarge";
    let (bytes, link) = (8_000_000_000, machine(name).link.h2d_gbps);
    for policy in SchedulingPolicy::ALL {
        let with = served(policy, name, "llama-3.1-8b", bytes);
        let iterations: u64 =
            IterationShape::ALL.iter().map(|shape| with.shape_stats(*shape).iterations).sum();
        let least_ms = iterations as f64 * bytes as f64 / link / 1e6;
        assert!(with.makespan_ms >= 0.999 * least_ms, "{policy:?}");
        let without = served(policy, name, "llama-3.1-8b", 0);
        assert!(with.makespan_ms > without.makespan_ms, "{policy:?}");
    }
}

#[test]
fn costs_are_bytes_and_operations_over_rates() {
    let (machine, config) = (machine("g5-4xlarge"), config("llama-3.1-8b"));
    let costs = ServingCosts::new(&machine, &config, Dtype::Bf16, 0).expect("rates");
    // 218.1 M parameters per layer: 436.2 MB at 500 GB/s, and 436.2 MFLOP per row at 45 TFLOPS.
    let (one, many) = (costs.linear_ms(1), costs.linear_ms(1001));
    assert!((one - 0.882).abs() < 0.01, "{one}");
    assert!(((many - one) / 1000.0 - 0.009_7).abs() < 0.000_6, "{many}");
    assert_eq!(costs.linear_ms(0), 0.0);
    // K and V of 8 heads of 128: 4096 bytes, and 16.5 kFLOP.
    let position_ms = 4096.0 / 26e6 + 16_512.0 / (machine.cpu.bf16.attention_tflops * 1e9);
    assert!((costs.host_decode_ms(7, 1000) / 1000.0 / position_ms - 1.0).abs() < 1e-6);
    assert!(costs.device_decode_ms(1000) < costs.host_decode_ms(1, 1000) / 10.0);
    assert_eq!(costs.link().weights_ms, 0.0);
    let streamed = ServingCosts::new(&machine, &config, Dtype::Bf16, 32 * 24_385_000);
    assert!((streamed.expect("rates").link().weights_ms - 1.0).abs() < 1e-9);
    let mixture = ServingCosts::new(&machine, &self::config("mixtral-8x7b"), Dtype::Bf16, 0);
    let mixture = mixture.expect("rates");
    let hit = |rows| {
        mixture.linear_ms(rows)
            - f64::from(rows) * (mixture.linear_ms(10_001) - mixture.linear_ms(10_000))
    };
    assert!(hit(64) > 2.0 * hit(1), "few rows read few experts");
}

#[test]
fn what_has_no_room_streams_or_is_refused() {
    let capacity = |name: &str, model: &str, rows| {
        CacheCapacity::compute(&machine(name), &config(model), Dtype::Bf16, rows)
    };
    let fits = capacity("g5-16xlarge", "llama-3.1-8b", 2048).expect("it fits");
    assert_eq!(fits.streamed_bytes, 0);
    // 24 GB minus 16.06 GB and some overhead; NEO's 1650 pages of 16 positions are 3.5 GB.
    assert!((26_000..60_000).contains(&fits.device_positions), "{fits:?}");
    let streams = capacity("g5-16xlarge", "llama-2-13b", 2048).expect("it streams");
    assert!((3_000_000_000..20_000_000_000).contains(&streams.streamed_bytes), "{streams:?}");
    assert!(streams.device_positions > 1000, "{streams:?}");
    let refused = capacity("g5-2xlarge", "llama-3.1-70b", 2048).expect_err("140 GB");
    assert!(matches!(refused, ServingError::HostMemory { .. }), "{refused}");
    let refused = capacity("g5-16xlarge", "qwen3.5-9b", 2048).expect_err("a state, no cache");
    assert!(matches!(refused, ServingError::States { .. }), "{refused}");
    let refused = capacity("g5-16xlarge", "glm-4.5-air", 2048).expect_err("a router");
    assert!(matches!(refused, ServingError::NotOnDevice { op: "router", .. }), "{refused}");
    let refused = capacity("g4dn-4xlarge", "llama-2-7b", 4_000_000).expect_err("rows");
    assert!(matches!(refused, ServingError::DeviceMemory { .. }), "{refused}");
}
