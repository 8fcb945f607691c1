//! Tests that a squared ReLU is the square of the ReLU of the sum, bit for bit.

use crate::common::{Random, bits, kernels, poison, variants};
use half::bf16;
use kernels::{Element, Kernels, Linear, LinearOut};

const ROWS: usize = 5;
const WIDTH: usize = 37;
const INPUTS: usize = 130;

fn run<T: Element>(kernels: &Kernels, x: &[T], weight: &[T], out: LinearOut<'_, T>) {
    let (rows, n, k) = (ROWS, WIDTH, INPUTS);
    kernels.linear(Linear { rows, n, k, x, weight, bias: None, out });
}

fn check<T: Element>(kernels: &Kernels) {
    let mut random = Random::new(5);
    let (x, weight): (Vec<T>, Vec<T>) =
        (random.vector(ROWS * INPUTS), random.vector(WIDTH * INPUTS));
    let mut sums = poison::<f32>(ROWS * WIDTH);
    run(kernels, &x, &weight, LinearOut::StoreF32(&mut sums));
    assert!(sums.iter().any(|sum| *sum < 0.0) && sums.iter().any(|sum| *sum > 1.0));
    let mut out = poison::<T>(ROWS * WIDTH);
    run(kernels, &x, &weight, LinearOut::ReluSquared(&mut out));
    let squares: Vec<T> = sums.iter().map(|sum| T::from_f32(sum.max(0.0).powi(2))).collect();
    assert_eq!(bits(&out), bits(&squares), "{:?}", kernels.variant());
}

#[test]
fn squares_are_those_of_positive_sums() {
    for variant in variants("squares_are_those_of_positive_sums") {
        check::<f32>(&kernels(variant, 2));
        check::<bf16>(&kernels(variant, 2));
    }
}

#[test]
fn a_result_that_is_no_number_is_not_hidden() {
    for variant in variants("a_result_that_is_no_number_is_not_hidden") {
        let (x, weight) = (vec![f32::NAN; ROWS * INPUTS], vec![1.0; WIDTH * INPUTS]);
        let mut out = vec![0.0; ROWS * WIDTH];
        run(&kernels(variant, 1), &x, &weight, LinearOut::ReluSquared(&mut out));
        assert!(out.iter().all(|value| value.is_nan()), "{variant:?}");
    }
}
