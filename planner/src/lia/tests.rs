//! Table 1, the sense of the equations, and maps.

use model::config::{Dtype, ModelConfig};
use model::known::known as model;

use crate::machine::{Machine, known};

use super::{Case, Stage, Vector, latency_ms, parts, sublayers};

fn config(name: &str) -> ModelConfig {
    model(name).expect("known").config
}

fn machine() -> Machine {
    known("spr-a100").expect("a machine").expect("a valid file")
}

fn case(batch: u32, length: u32) -> Case {
    Case { batch, length, dtype: Dtype::Bf16, resident: false }
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
    assert_eq!(rows(Stage::Prefill), prefill);
    assert_eq!(rows(Stage::Decode), decode);
}

#[test]
fn one_means_cpu() {
    let (config, machine, case) = (config("opt-175b"), machine(), case(16, 512));
    let of = |stage, vector| parts(&machine, &config, stage, &case, vector).expect("rates");
    for stage in [Stage::Prefill, Stage::Decode] {
        // Everything on the CPU crosses nothing.
        let all = of(stage, Vector::FULL_CPU);
        assert!(all.iter().all(|part| part.load_ms == 0.0 && part.store_ms == 0.0));
        // On the GPU parameters are loaded and fresh K and V stored; K and V of a prompt are there.
        let none = of(stage, Vector::FULL_GPU);
        assert!([0, 3, 4, 5].iter().all(|i| none[*i].load_ms > 0.0) && none[0].store_ms > 0.0);
        assert_eq!(none[1].load_ms > 0.0, stage == Stage::Decode);
        assert!(none[4].compute_ms < all[4].compute_ms);
    }
    // Attention on the CPU: its input crosses, its output crosses, no residual does.
    let partial = of(Stage::Decode, Vector::PARTIAL_CPU);
    let none = of(Stage::Decode, Vector::FULL_GPU);
    assert!(partial[1].load_ms > 0.0 && partial[1].load_ms < none[1].load_ms);
    assert_eq!(partial[2].load_ms, 0.0);
    assert!(partial[3].load_ms > none[3].load_ms);
    assert_eq!(partial[5].load_ms, none[5].load_ms);
}

#[test]
fn residuals_cross_when_their_ends_differ() {
    let (config, machine, case) = (config("opt-30b"), machine(), case(4, 64));
    // Sublayer 6 on the CPU, 4 and 5 on the GPU: activation and residual both come back.
    let vector = Vector([false, false, false, false, false, true]);
    let parts = parts(&machine, &config, Stage::Decode, &case, vector).expect("rates");
    let row = sublayers(&config, Stage::Decode, &case)[5];
    let crossing = 2.0 * row.x_bytes / (machine.link.d2h_gbps * 1e9) * 1e3;
    assert!((parts[5].load_ms / crossing - 1.0).abs() < 1e-12);
}

#[test]
fn resident_parameters_are_not_loaded() {
    let (config, machine) = (config("opt-30b"), machine());
    let stays = Case { resident: true, ..case(1, 512) };
    let latency = |case: &Case| {
        latency_ms(&machine, &config, Stage::Decode, case, Vector::FULL_GPU).expect("rates")
    };
    assert!(latency(&stays) < latency(&case(1, 512)) / 5.0);
}
