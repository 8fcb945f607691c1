//! Tests of table 1, of the direction of the equations, and of maps.

use model::config::{Dtype, ModelConfig};
use model::known::find_known as model;

use crate::machine::{Machine, find_bundled};

use super::{
    LiaStage, LiaWorkload, OffloadVector, batch_ranges, best_vector, latency_ms, latency_parts,
    sublayers,
};

fn config(name: &str) -> ModelConfig {
    model(name).expect("known").config
}

fn machine() -> Machine {
    find_bundled("spr-a100").expect("a machine").expect("a valid file")
}

fn case(batch: u32, length: u32) -> LiaWorkload {
    LiaWorkload { batch, length, dtype: Dtype::Bf16, resident: false }
}

#[test]
fn operands_of_opt_are_those_of_table_1() {
    let config = config("opt-175b");
    let (b, l, d) = (7.0, 300.0, 12288.0);
    let rows = |stage| {
        sublayers(&config, stage, &case(7, 300)).map(|row| [row.x_bytes, row.y_bytes, row.flops])
    };
    let prefill = [
        [2.0 * b * l * d, 6.0 * d * d, 6.0 * b * l * d * d],
        [2.0 * b * l * d, 2.0 * b * l * d, 2.0 * b * l * l * d],
        [2.0 * b * l * d, 2.0 * b * l * d, 2.0 * b * l * l * d],
        [2.0 * b * l * d, 2.0 * d * d, 2.0 * b * l * d * d],
        [2.0 * b * l * d, 8.0 * d * d, 8.0 * b * l * d * d],
        [8.0 * b * l * d, 8.0 * d * d, 8.0 * b * l * d * d],
    ];
    let decode = [
        [2.0 * b * d, 6.0 * d * d, 6.0 * b * d * d],
        [2.0 * b * d, 2.0 * b * l * d, 2.0 * b * l * d],
        [2.0 * b * d, 2.0 * b * l * d, 2.0 * b * l * d],
        [2.0 * b * d, 2.0 * d * d, 2.0 * b * d * d],
        [2.0 * b * d, 8.0 * d * d, 8.0 * b * d * d],
        [8.0 * b * d, 8.0 * d * d, 8.0 * b * d * d],
    ];
    assert_eq!(rows(LiaStage::Prefill), prefill);
    assert_eq!(rows(LiaStage::Decode), decode);
}

#[test]
fn one_means_cpu() {
    let (config, machine, case) = (config("opt-175b"), machine(), case(16, 512));
    let of = |stage, vector| latency_parts(&machine, &config, stage, &case, vector).expect("rates");
    for stage in [LiaStage::Prefill, LiaStage::Decode] {
        // With everything on the CPU, nothing crosses the link.
        let all = of(stage, OffloadVector::FULL_CPU);
        assert!(all.iter().all(|part| part.load_ms == 0.0 && part.store_ms == 0.0));
        // On the GPU, parameters are loaded and fresh K and V stored; K and V of a prompt are
        // already there.
        let none = of(stage, OffloadVector::FULL_GPU);
        assert!([0, 3, 4, 5].iter().all(|i| none[*i].load_ms > 0.0) && none[0].store_ms > 0.0);
        assert_eq!(none[1].load_ms > 0.0, stage == LiaStage::Decode);
        assert!(none[4].compute_ms < all[4].compute_ms);
    }
    // With attention on the CPU, its input and output cross the link, but no residual does.
    let partial = of(LiaStage::Decode, OffloadVector::PARTIAL_CPU);
    let none = of(LiaStage::Decode, OffloadVector::FULL_GPU);
    assert!(partial[1].load_ms > 0.0 && partial[1].load_ms < none[1].load_ms);
    assert_eq!(partial[2].load_ms, 0.0);
    assert!(partial[3].load_ms > none[3].load_ms);
    assert_eq!(partial[5].load_ms, none[5].load_ms);
}

#[test]
fn residuals_cross_when_their_ends_differ() {
    let (config, machine, case) = (config("opt-30b"), machine(), case(4, 64));
    // Sublayer 6 on the CPU, 4 and 5 on the GPU: both activation and residual are copied back.
    let vector = OffloadVector([false, false, false, false, false, true]);
    let parts = latency_parts(&machine, &config, LiaStage::Decode, &case, vector).expect("rates");
    let row = sublayers(&config, LiaStage::Decode, &case)[5];
    let crossing = 2.0 * row.x_bytes / (machine.link.d2h_gbps * 1e9) * 1e3;
    assert!((parts[5].load_ms / crossing - 1.0).abs() < 1e-12);
}

#[test]
fn resident_parameters_are_not_loaded() {
    let (config, machine) = (config("opt-30b"), machine());
    let stays = LiaWorkload { resident: true, ..case(1, 512) };
    let latency = |case: &LiaWorkload| {
        latency_ms(&machine, &config, LiaStage::Decode, case, OffloadVector::FULL_GPU)
            .expect("rates")
    };
    assert!(latency(&stays) < latency(&case(1, 512)) / 5.0);
}

#[test]
fn experts_are_read_where_they_are_hit_and_moved_whole() {
    let config = config("qwen3-30b-a3b");
    let (d, f) = (2048.0, 768.0);
    let (b, distinct) = (8.0, 128.0 * (1.0 - (15.0_f64 / 16.0).powi(8)));
    let [.., fc1, fc2] = sublayers(&config, LiaStage::Decode, &case(8, 300));
    let router = 128.0 * d;
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
    near(fc1.y_bytes, 2.0 * (distinct * 2.0 * d * f + router));
    near(fc1.loaded_bytes, 2.0 * (128.0 * 2.0 * d * f + router));
    near(fc1.flops, 2.0 * b * (8.0 * 2.0 * d * f + router));
    near(fc2.x_bytes, 2.0 * b * 8.0 * f);
    near(fc2.y_bytes, 2.0 * distinct * d * f);
    near(fc2.loaded_bytes, 2.0 * 128.0 * d * f);
    near(fc2.flops, 2.0 * b * 8.0 * d * f);
}

/// LIA §7.1 expects that the CPU keeps experts where the GPU takes the other linears. With the
/// faster link of its machines this holds for thousands of sequences.
#[test]
fn experts_stay_on_the_cpu_where_other_linears_leave_it() {
    let machine = find_bundled("spr-h100").expect("a machine").expect("a valid file");
    let ranges = |name: &str| {
        let config = config(name);
        batch_ranges(&machine, &config, LiaStage::Decode, &case(1, 512), 65_535).expect("rates")
    };
    for name in ["qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b"] {
        let ranges = ranges(name);
        assert_eq!(ranges[0].vector, OffloadVector::FULL_CPU, "{name}: {ranges:?}");
        let range = ranges.iter().find(|range| range.vector == OffloadVector::EXPERTS_ON_CPU);
        let range = range.unwrap_or_else(|| panic!("{name}: {ranges:?}"));
        assert!((300..800).contains(&range.first), "{name}: {ranges:?}");
        assert!(range.last > 3 * range.first, "{name}: {ranges:?}");
    }
    assert!(ranges("opt-30b").iter().all(|range| range.vector != OffloadVector::EXPERTS_ON_CPU));
}

#[test]
fn ranges_are_those_of_each_batch() {
    let (machine, config) = (machine(), config("opt-175b"));
    let one = case(1, 64);
    let ranges = batch_ranges(&machine, &config, LiaStage::Decode, &one, 1024).expect("rates");
    assert_eq!((ranges[0].first, ranges[ranges.len() - 1].last), (1, 1024));
    assert!(ranges.windows(2).all(|pair| pair[1].first == pair[0].last + 1), "{ranges:?}");
    let of = |batch| {
        let range = ranges.iter().find(|range| (range.first..=range.last).contains(&batch));
        range.expect("every batch is in one").vector
    };
    for batch in 1..=1024 {
        let case = LiaWorkload { batch, ..one };
        let best = best_vector(&machine, &config, LiaStage::Decode, &case).expect("rates").0;
        assert_eq!(of(batch), best, "batch {batch}");
    }
}
