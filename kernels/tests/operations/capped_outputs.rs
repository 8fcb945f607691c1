//! Tests of outputs of linears that are functions of the sum: capped ones, and those that are gates
//! of another value.

use crate::common::{Random, kernels, poison, variants};
use half::bf16;
use kernels::{Element, Kernels, Linear, LinearOut};

const ROWS: usize = 5;
const WIDTH: usize = 37;
const INPUTS: usize = 130;

fn run<T: Element>(kernels: &Kernels, x: &[T], weight: &[T], out: LinearOut<'_, T>) {
    let (rows, n, k) = (ROWS, WIDTH, INPUTS);
    kernels.linear(Linear { rows, n, k, x, weight, bias: None, out });
}

/// Returns inputs, weights and their sums.
fn sums<T: Element>(kernels: &Kernels) -> (Vec<T>, Vec<T>, Vec<f32>) {
    let mut random = Random::new(9);
    let (x, weight) = (random.vector(ROWS * INPUTS), random.vector(WIDTH * INPUTS));
    let mut sums = poison::<f32>(ROWS * WIDTH);
    run(kernels, &x, &weight, LinearOut::StoreF32(&mut sums));
    assert!(sums.iter().any(|sum| *sum < -1.0) && sums.iter().any(|sum| *sum > 1.0));
    (x, weight, sums)
}

fn capped<T: Element>(kernels: &Kernels) {
    let (x, weight, sums) = sums::<T>(kernels);
    for (factor, cap) in [(1.0, 30.0), (0.5, 2.0), (4.0, 0.25)] {
        let mut out = poison::<f32>(ROWS * WIDTH);
        run(kernels, &x, &weight, LinearOut::StoreCapped { out: &mut out, factor, cap });
        for (out, sum) in out.iter().zip(&sums) {
            let expected = f64::from(cap) * (f64::from(factor * sum) / f64::from(cap)).tanh();
            let error = (f64::from(*out) - expected).abs();
            assert!(error < 1e-6 * f64::from(cap).max(1.0), "{out} {expected} {sum}");
            assert!(out.abs() <= cap, "{out}");
        }
    }
}

fn gated<T: Element>(kernels: &Kernels) {
    let (x, weight, sums) = sums::<T>(kernels);
    let gated: Vec<T> = Random::new(3).vector(ROWS * WIDTH);
    let mut out = poison::<T>(ROWS * WIDTH);
    run(kernels, &x, &weight, LinearOut::TimesGeluTanh { x: &gated, out: &mut out });
    let tolerance = if size_of::<T>() == 2 { 4e-3 } else { 1e-6 };
    for ((out, gated), sum) in out.iter().zip(&gated).zip(&sums) {
        let sum = f64::from(*sum);
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (sum + 0.044_715 * sum.powi(3));
        let expected = f64::from(gated.to_f32()) * 0.5 * sum * (1.0 + inner.tanh());
        let error = (f64::from(out.to_f32()) - expected).abs();
        assert!(error < tolerance * expected.abs().max(1.0), "{expected}");
    }
}

#[test]
fn capped_sums_are_those_of_tanh() {
    for variant in variants("capped_sums_are_those_of_tanh") {
        capped::<f32>(&kernels(variant, 2));
        capped::<bf16>(&kernels(variant, 2));
    }
}

#[test]
fn sums_are_gates_of_a_value() {
    for variant in variants("sums_are_gates_of_a_value") {
        gated::<f32>(&kernels(variant, 2));
        gated::<bf16>(&kernels(variant, 2));
    }
}

#[test]
fn results_that_are_no_numbers_are_not_hidden() {
    for variant in variants("results_that_are_no_numbers_are_not_hidden") {
        let (x, weight) = (vec![f32::NAN; ROWS * INPUTS], vec![1.0; WIDTH * INPUTS]);
        let mut out = vec![0.0; ROWS * WIDTH];
        let capped = LinearOut::StoreCapped { out: &mut out, factor: 1.0, cap: 30.0 };
        run(&kernels(variant, 1), &x, &weight, capped);
        assert!(out.iter().all(|value| value.is_nan()), "{variant:?}");
    }
}

#[test]
fn all_elements_are_multiplied() {
    for (threads, count) in [(1, 3), (3, 70_001)] {
        for variant in variants("all_elements_are_multiplied") {
            let mut x: Vec<f32> = (0..count).map(|index| index as f32).collect();
            kernels(variant, threads).scale(0.5, &mut x);
            assert!(x.iter().zip(0..).all(|(x, index)| *x == 0.5 * index as f32));
        }
    }
}
