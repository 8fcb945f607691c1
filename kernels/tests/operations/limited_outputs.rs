//! Tests of gated outputs with limits, and of outputs in which a sum is the gate of a whole head.

use crate::common::{LIMITS, Random, bits, kernels, poison, variants};
use half::bf16;
use kernels::{
    ColumnsOut, ColumnsWeight, Element, Kernels, Linear, LinearColumns, LinearOut, ScratchLimits,
    Variant, reference,
};

const WIDTH: usize = 37;
const INPUTS: usize = 130;

struct Case<T> {
    rows: usize,
    x: Vec<T>,
    weight: Vec<T>,
}

impl<T: Element> Case<T> {
    fn new(rows: usize) -> Case<T> {
        let mut random = Random::new(9);
        let (weight, x) = (random.vector(WIDTH * INPUTS), random.vector(rows * INPUTS));
        Case { rows, x, weight }
    }

    fn run(&self, kernels: &Kernels, out: LinearOut<'_, T>) {
        let Case { rows, x, weight } = self;
        let (n, k) = (WIDTH, INPUTS);
        kernels.linear(Linear { rows: *rows, n, k, x, weight, bias: None, out });
    }

    fn sums(&self, kernels: &Kernels) -> Vec<f32> {
        let mut sums = poison::<f32>(self.rows * WIDTH);
        self.run(kernels, LinearOut::StoreF32(&mut sums));
        assert!(sums.iter().any(|sum| *sum < -2.0) && sums.iter().any(|sum| *sum > 2.0));
        sums
    }
}

fn tolerance<T>() -> f64 {
    if size_of::<T>() == 2 { 4e-3 } else { 2e-6 }
}

fn limited<T: Element>(kernels: &Kernels) {
    let case = Case::<T>::new(5);
    let sums = case.sums(kernels);
    let gate: Vec<T> = Random::new(3).vector(sums.len());
    let mut free = poison::<T>(sums.len());
    case.run(kernels, LinearOut::SiluMul { gate: &gate, out: &mut free });
    for limit in [0.25f32, 1.0, 7.0] {
        let mut out = poison::<T>(sums.len());
        case.run(kernels, LinearOut::LimitedSiluMul { gate: &gate, out: &mut out, limit });
        let (mut gates, mut values) = (0, 0);
        for (((out, free), gate), sum) in out.iter().zip(&free).zip(&gate).zip(&sums) {
            let (gate, wide) = (f64::from(gate.to_f32()), f64::from(limit));
            let expected = reference::limited_swiglu(gate, f64::from(*sum), wide);
            let error = (f64::from(out.to_f32()) - expected).abs();
            assert!(error < tolerance::<T>() * expected.abs().max(1.0), "{out:?} {expected}");
            let is_gate_free = reference::silu(gate) < wide - 1e-5;
            (gates, values) =
                (gates + usize::from(!is_gate_free), values + usize::from(sum.abs() > limit));
            if is_gate_free && sum.abs() <= limit {
                assert_eq!(bits(&[*out]), bits(&[*free]), "limit {limit}");
            }
        }
        // Gates are within -4..4, and at a limit of 7 only sums exceed it.
        assert!(values > 0 && (gates > 0) == (limit < 4.0), "{limit}: {gates} {values}");
    }
}

/// Limits may apply before the SiLU.
fn limited_before<T: Element>(kernels: &Kernels) {
    let case = Case::<T>::new(5);
    let sums = case.sums(kernels);
    let gate: Vec<T> = Random::new(3).vector(sums.len());
    for limit in [0.25f32, 1.0] {
        let (mut out, mut parts) = (poison::<T>(sums.len()), poison::<T>(sums.len()));
        case.run(kernels, LinearOut::SiluOfLimitedMul { gate: &gate, out: &mut out, limit });
        let wide = f64::from(limit);
        for ((out, gate), sum) in out.iter().zip(&gate).zip(&sums) {
            let gate = reference::silu(f64::from(gate.to_f32()).min(wide));
            let expected = gate * f64::from(*sum).clamp(-wide, wide);
            let error = (f64::from(out.to_f32()) - expected).abs();
            assert!(error < tolerance::<T>() * expected.abs().max(1.0), "{out:?} {expected}");
        }
        for columns in [0..16, 16..WIDTH] {
            let weight = &case.weight[columns.start * INPUTS..columns.end * INPUTS];
            let (mut own, weight) = (gate.clone(), ColumnsWeight::Plain(weight));
            let (gate, out) = (own.as_mut_slice().into(), parts.as_mut_slice().into());
            let out = ColumnsOut::SiluOfLimitedMul { gate, out, limit };
            let (rows, n, k, x) = (5, WIDTH, INPUTS, &case.x[..]);
            kernels.linear_columns(LinearColumns {
                rows,
                n,
                k,
                columns,
                x,
                weight,
                bias: None,
                out,
            });
        }
        assert_eq!(bits(&parts), bits(&out));
    }
}

/// Columns by themselves have the bits of the whole.
fn limited_columns<T: Element>(kernels: &Kernels) {
    let case = Case::<T>::new(7);
    let (rows, n, k, limit) = (case.rows, WIDTH, INPUTS, 0.75);
    let mut gate: Vec<T> = Random::new(3).vector(rows * n);
    let (mut whole, mut parts) = (poison::<T>(rows * n), poison::<T>(rows * n));
    case.run(kernels, LinearOut::LimitedSiluMul { gate: &gate, out: &mut whole, limit });
    for columns in [16..32, 0..16, 32..WIDTH] {
        let weight = ColumnsWeight::Plain(&case.weight[columns.start * k..columns.end * k]);
        let (gate, out) = (gate.as_mut_slice().into(), parts.as_mut_slice().into());
        let out = ColumnsOut::LimitedSiluMul { gate, out, limit };
        let (x, bias) = (&case.x[..], None);
        kernels.linear_columns(LinearColumns { rows, n, k, columns, x, weight, bias, out });
    }
    assert_eq!(bits(&parts), bits(&whole));
}

#[test]
fn gates_and_values_have_a_limit() {
    for variant in variants("gates_and_values_have_a_limit") {
        limited::<f32>(&kernels(variant, 2));
        limited::<bf16>(&kernels(variant, 2));
        limited_before::<f32>(&kernels(variant, 2));
        limited_before::<bf16>(&kernels(variant, 2));
        limited_columns::<f32>(&kernels(variant, 2));
        limited_columns::<bf16>(&kernels(variant, 2));
    }
}

fn of_heads<T: Element>(kernels: &Kernels, rows: usize, head_dim: usize) -> Vec<u32> {
    let case = Case::<T>::new(rows);
    let sums = case.sums(kernels);
    let x: Vec<T> = Random::new(4).vector(sums.len() * head_dim);
    let mut out = poison::<T>(x.len());
    case.run(kernels, LinearOut::TimesSigmoidOfHead { x: &x, out: &mut out, head_dim });
    let heads = out.chunks_exact(head_dim).zip(x.chunks_exact(head_dim));
    for ((out, x), sum) in heads.zip(&sums) {
        let gate = 1.0 / (1.0 + f64::from(-sum).exp());
        for (out, x) in out.iter().zip(x) {
            let expected = f64::from(x.to_f32()) * gate;
            let error = (f64::from(out.to_f32()) - expected).abs();
            assert!(error < tolerance::<T>(), "{head_dim}: {out:?} {expected}");
        }
    }
    if head_dim == 1 {
        let mut same = poison::<T>(x.len());
        case.run(kernels, LinearOut::TimesSigmoid { x: &x, out: &mut same });
        assert_eq!(bits(&out), bits(&same));
    }
    bits(&out)
}

#[test]
fn a_sum_is_the_gate_of_a_head() {
    for variant in variants("a_sum_is_the_gate_of_a_head") {
        for head_dim in [1, 3, 8, 16, 17, 64, 129] {
            of_heads::<f32>(&kernels(variant, 2), 5, head_dim);
            of_heads::<bf16>(&kernels(variant, 2), 5, head_dim);
        }
    }
}

#[test]
fn heads_have_the_bits_of_one_thread() {
    let with_threads = |variant: Variant, threads: usize| {
        let limits = ScratchLimits { rows: 521, linear_inputs: INPUTS, ..LIMITS };
        let kernels = Kernels::new(variant, threads, limits).expect("threads start");
        of_heads::<bf16>(&kernels, 521, 24)
    };
    for variant in variants("heads_have_the_bits_of_one_thread") {
        let one = with_threads(variant, 1);
        assert!(with_threads(variant, 3) == one, "{variant:?}");
        // Rows do not depend on those after them.
        let few = of_heads::<bf16>(&kernels(variant, 1), 3, 24);
        assert!(few[..] == one[..few.len()], "{variant:?}");
    }
}

#[test]
fn results_that_are_no_numbers_are_not_hidden() {
    for variant in variants("results_that_are_no_numbers_are_not_hidden") {
        let kernels = kernels(variant, 1);
        let bad =
            Case { rows: 2, x: vec![f32::NAN; 2 * INPUTS], weight: vec![1.0; WIDTH * INPUTS] };
        let (ones, mut out) = (vec![1.0; 2 * WIDTH], vec![0.0; 2 * WIDTH]);
        bad.run(&kernels, LinearOut::LimitedSiluMul { gate: &ones, out: &mut out, limit: 2.0 });
        assert!(out.iter().all(|value| value.is_nan()), "{variant:?}");
        let (x, mut out) = (vec![1.0; 6 * WIDTH], vec![0.0; 6 * WIDTH]);
        bad.run(&kernels, LinearOut::TimesSigmoidOfHead { x: &x, out: &mut out, head_dim: 3 });
        assert!(out.iter().all(|value| value.is_nan()), "{variant:?}");
        bad.run(
            &kernels,
            LinearOut::SiluOfLimitedMul { gate: &ones, out: &mut out[..2 * WIDTH], limit: 2.0 },
        );
        assert!(out[..2 * WIDTH].iter().all(|value| value.is_nan()), "{variant:?}");
        let good = Case::<f32>::new(2);
        let (gate, mut out) = (vec![f32::NAN; 2 * WIDTH], vec![0.0; 2 * WIDTH]);
        good.run(&kernels, LinearOut::LimitedSiluMul { gate: &gate, out: &mut out, limit: 2.0 });
        assert!(out.iter().all(|value| value.is_nan()), "{variant:?}");
    }
}
