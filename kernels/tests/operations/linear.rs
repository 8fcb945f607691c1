//! Tests of linears: every variant against the reference, all kinds of output, row independence.

use crate::common::{LIMITS, Random, assert_close, bits, kernels, poison, tolerance, variants};
use half::bf16;
use kernels::{
    ColumnsOut, ColumnsWeight, Element, Kernels, Linear, LinearColumns, LinearOut, ScratchLimits,
    Variant, reference,
};

struct Case<T> {
    shape: (usize, usize, usize),
    x: Vec<T>,
    weight: Vec<T>,
    bias: Vec<f32>,
}

fn case<T: Element>(seed: u64, (rows, n, k): (usize, usize, usize)) -> Case<T> {
    let mut random = Random::new(seed);
    let (x, weight) = (random.vector(rows * k), random.vector(n * k));
    Case { shape: (rows, n, k), x, weight, bias: random.vector(n) }
}

impl<T: Element> Case<T> {
    fn run(&self, kernels: &Kernels, bias: bool, out: LinearOut<'_, T>) {
        let (rows, n, k) = self.shape;
        let bias = bias.then_some(&self.bias[..]);
        kernels.linear(Linear { rows, n, k, x: &self.x, weight: &self.weight, bias, out });
    }

    fn expected(&self, bias: bool) -> Vec<f64> {
        let ((rows, n, k), bias) = (self.shape, bias.then_some(&self.bias[..]));
        reference::linear(rows, n, k, &self.x, &self.weight, bias)
    }
}

const ROWS: [usize; 23] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 25, 31, 32, 33, 48, 130];
const SIZES: [usize; 12] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65];

fn check_sizes<T: Element>(name: &str) {
    for variant in variants(name) {
        let kernels = kernels(variant, 2);
        for (round, &rows) in ROWS.iter().enumerate() {
            for (offset, &n) in SIZES.iter().enumerate() {
                // Every k with every n would only repeat paths; the diagonals meet each pair class.
                for k in [SIZES[(offset + round) % 12], SIZES[(offset * 5 + 7 + round) % 12], 300] {
                    let seed = (rows * 1_000_003 + n * 1_009 + k) as u64;
                    let context = format!("seed {seed} {variant:?} {rows}x{n}x{k}");
                    let case = case::<T>(seed, (rows, n, k));
                    let mut out = poison::<T>(rows * n);
                    case.run(&kernels, true, LinearOut::Store(&mut out));
                    assert_close(
                        &out,
                        &case.expected(true),
                        (n, (k as f64).sqrt() / 2.0),
                        tolerance(),
                        &context,
                    );
                }
            }
        }
    }
}

#[test]
fn bf16_agrees_with_the_reference_over_awkward_sizes() {
    check_sizes::<bf16>("bf16_agrees_with_the_reference_over_awkward_sizes");
}

#[test]
fn f32_agrees_with_the_reference_over_awkward_sizes() {
    check_sizes::<f32>("f32_agrees_with_the_reference_over_awkward_sizes");
}

fn check_outputs<T: Element>(variant: Variant) {
    let kernels = kernels(variant, 2);
    let (rows, n, k) = (7, 45, 97);
    let seed = 77;
    let context = |form: &str| format!("seed {seed} {variant:?} {form}");
    let case = case::<T>(seed, (rows, n, k));
    let mut random = Random::new(seed + 1);
    // The slope of activations is at most 1.2, and silu(gate) is below 2 here.
    let loose = 2.5 * tolerance();
    for bias in [false, true] {
        let expected = case.expected(bias);
        let mapped = |f: &dyn Fn(f64) -> f64| expected.iter().map(|&x| f(x)).collect::<Vec<f64>>();

        let mut out = poison::<T>(rows * n);
        case.run(&kernels, bias, LinearOut::Relu(&mut out));
        assert_close(&out, &mapped(&|x| x.max(0.0)), (n, 1.0), loose, &context("relu"));

        let mut out = poison::<T>(rows * n);
        case.run(&kernels, bias, LinearOut::Gelu(&mut out));
        assert_close(&out, &mapped(&reference::gelu), (n, 1.0), loose, &context("gelu"));

        let gate: Vec<T> = random.vector(rows * n);
        let mut out = poison::<T>(rows * n);
        case.run(&kernels, bias, LinearOut::SiluMul { gate: &gate, out: &mut out });
        let gates = gate.iter().map(|gate| reference::silu(f64::from(gate.to_f32())));
        let gated: Vec<f64> = expected.iter().zip(gates).map(|(x, gate)| x * gate).collect();
        assert_close(&out, &gated, (n, 1.0), loose, &context("silu"));

        check_gates(&kernels, &case, bias, &gate);
        let mut out = poison::<f32>(rows * n);
        case.run(&kernels, bias, LinearOut::StoreF32(&mut out));
        assert_close(&out, &expected, (n, 1.0), tolerance(), &context("f32"));
        let mut scaled = poison::<f32>(rows * n);
        case.run(&kernels, bias, LinearOut::StoreScaled { out: &mut scaled, factor: 0.22 });
        let product: Vec<u32> = out.iter().map(|sum| (sum * 0.22).to_bits()).collect();
        assert_eq!(bits(&scaled), product, "{}", context("f32, scaled"));

        let before: Vec<f32> = random.vector(rows * n);
        let mut out = before.clone();
        case.run(&kernels, bias, LinearOut::AddTo(&mut out));
        let sums: Vec<f64> =
            expected.iter().zip(&before).map(|(x, &before)| x + f64::from(before)).collect();
        assert_close(&out, &sums, (n, 1.0), tolerance(), &context("add"));
        let mut added = before.clone();
        case.run(&kernels, bias, LinearOut::AddScaled { out: &mut added, factor: 0.22 });
        let sums: Vec<u32> =
            before.iter().zip(&scaled).map(|(old, sum)| (old + sum).to_bits()).collect();
        assert_eq!(bits(&added), sums, "{}", context("add, scaled"));
    }
}

/// Checks outputs with a gate other than SiLU, and those that are a gate.
fn check_gates<T: Element>(kernels: &Kernels, case: &Case<T>, bias: bool, gate: &[T]) {
    let (rows, n, _) = case.shape;
    let context = |form: &str| format!("{:?} bias {bias} {form}", kernels.variant());
    let sums = case.expected(bias);
    let gated = |meaning: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let gates = gate.iter().map(|gate| f64::from(gate.to_f32()));
        gates.zip(&sums).map(|(gate, sum)| meaning(gate, *sum)).collect()
    };
    let loose = 2.5 * tolerance();
    let mut out = poison::<T>(rows * n);
    case.run(kernels, bias, LinearOut::GeluTanhMul { gate, out: &mut out });
    let expected = gated(&|gate, sum| reference::gelu_tanh(gate) * sum);
    assert_close(&out, &expected, (n, 1.0), loose, &context("gelu by tanh"));
    // The result is the gate.
    let mut out = poison::<T>(rows * n);
    case.run(kernels, bias, LinearOut::TimesSilu { x: gate, out: &mut out });
    let expected = gated(&|x, sum| x * reference::silu(sum));
    assert_close(&out, &expected, (n, 1.0), loose, &context("times silu"));
    let mut out = poison::<T>(rows * n);
    case.run(kernels, bias, LinearOut::TimesSigmoid { x: gate, out: &mut out });
    let expected = gated(&|x, sum| x / (1.0 + (-sum).exp()));
    assert_close(&out, &expected, (n, 1.0), loose, &context("times sigmoid"));
    // Limits that many gates and sums exceed, and those of gpt-oss.
    for (alpha, limit) in [(1.702f32, 0.7f32), (1.702, 7.0), (0.5, 1.25)] {
        let mut out = poison::<T>(rows * n);
        case.run(kernels, bias, LinearOut::ClampedSwiGlu { gate, out: &mut out, alpha, limit });
        let (alpha, limit) = (f64::from(alpha), f64::from(limit));
        let expected = gated(&|gate, sum| reference::clamped_swiglu(gate, sum, alpha, limit));
        assert_close(&out, &expected, (n, 1.0), loose, &context(&format!("limit {limit}")));
    }
}

#[test]
fn every_kind_of_output_agrees_with_the_reference() {
    for variant in variants("every_kind_of_output_agrees_with_the_reference") {
        check_outputs::<bf16>(variant);
        check_outputs::<f32>(variant);
    }
}

#[test]
fn gelu_and_silu_hold_far_from_zero() {
    for variant in variants("gelu_and_silu_hold_far_from_zero") {
        let kernels = kernels(variant, 1);
        let x: Vec<f32> =
            vec![-300.0, -88.0, -20.0, -9.0, -5.0, -1.5, -0.0, 0.0, 1e-6, 0.3, 6.0, 50.0, 300.0];
        let n = x.len();
        // An identity matrix as weight passes the values to the activation.
        let weight: Vec<f32> = (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect();
        let linear = |out| {
            kernels.linear(Linear { rows: 1, n, k: n, x: &x, weight: &weight, bias: None, out })
        };
        let mut out = poison::<f32>(n);
        linear(LinearOut::Gelu(&mut out));
        for (x, out) in x.iter().zip(&out) {
            let expected = reference::gelu(f64::from(*x));
            let allowed = 1e-6 * f64::from(x.abs()).max(1.0);
            assert!((f64::from(*out) - expected).abs() < allowed, "{variant:?} gelu({x}) = {out}");
        }
        let ones = vec![1.0f32; n];
        let mut out = poison::<f32>(n);
        kernels.linear(Linear {
            rows: 1,
            n,
            k: n,
            x: &ones,
            weight: &weight,
            bias: None,
            out: LinearOut::SiluMul { gate: &x, out: &mut out },
        });
        for (x, out) in x.iter().zip(&out) {
            let expected = reference::silu(f64::from(*x));
            let allowed = 1e-6 * f64::from(x.abs()).max(1.0);
            assert!((f64::from(*out) - expected).abs() < allowed, "{variant:?} silu({x}) = {out}");
        }
        gates_hold_far_from_zero(&kernels, &x, &weight);
    }
}

/// Checks gates far from zero; `weight` passes values through.
fn gates_hold_far_from_zero(kernels: &Kernels, x: &[f32], weight: &[f32]) {
    let n = x.len();
    let run = |values: &[f32], out| {
        kernels.linear(Linear { rows: 1, n, k: n, x: values, weight, bias: None, out })
    };
    let (mut gelu, mut clamped) = (poison::<f32>(n), poison::<f32>(n));
    run(&vec![1.0; n], LinearOut::GeluTanhMul { gate: x, out: &mut gelu });
    let (alpha, limit) = (1.702, 7.0);
    run(x, LinearOut::ClampedSwiGlu { gate: x, out: &mut clamped, alpha, limit });
    for ((value, gelu), clamped) in x.iter().zip(gelu).zip(clamped) {
        let wide = f64::from(*value);
        let allowed = 1e-6 * wide.abs().max(1.0);
        let expected = reference::gelu_tanh(wide);
        let difference = (f64::from(gelu) - expected).abs();
        assert!(difference < allowed, "{:?} gelu({value}) = {gelu}", kernels.variant());
        let (alpha, limit) = (f64::from(alpha), f64::from(limit));
        let expected = reference::clamped_swiglu(wide, wide, alpha, limit);
        let difference = (f64::from(clamped) - expected).abs();
        assert!(difference < 60.0 * 1e-6, "{:?} {value}: {clamped}", kernels.variant());
    }
}

#[test]
fn an_overflow_or_nan_is_not_hidden() {
    for variant in variants("an_overflow_or_nan_is_not_hidden") {
        let kernels = kernels(variant, 1);
        for bad in [f32::NAN, f32::INFINITY] {
            let (x, weight) = (vec![bf16::from_f32(bad); 40], vec![bf16::ONE; 40]);
            for kind in 0..4 {
                let (mut out, gate) = ([bf16::ZERO], [bf16::ONE]);
                let target = match kind {
                    0 => LinearOut::Store(&mut out[..]),
                    1 => LinearOut::Relu(&mut out[..]),
                    2 => LinearOut::Gelu(&mut out[..]),
                    _ => LinearOut::GeluTanhMul { gate: &gate, out: &mut out[..] },
                };
                kernels.linear(Linear {
                    rows: 1,
                    n: 1,
                    k: 40,
                    x: &x,
                    weight: &weight,
                    bias: None,
                    out: target,
                });
                assert!(!out[0].to_f32().is_finite(), "{variant:?} {kind} {bad}");
            }
        }
        // Limits on values do not hide NaN, in gate or result.
        for (x, gate) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let (x, gate, mut out) = ([x; 5], [gate], [0.0f32]);
            kernels.linear(Linear {
                rows: 1,
                n: 1,
                k: 5,
                x: &x,
                weight: &[1.0f32; 5],
                bias: None,
                out: LinearOut::ClampedSwiGlu {
                    gate: &gate,
                    out: &mut out,
                    alpha: 1.7,
                    limit: 7.0,
                },
            });
            assert!(out[0].is_nan(), "{variant:?} {x:?} {gate:?}");
        }
    }
}

/// A row has the same bits alone and at every position of batches, on several thread counts.
fn check_independence<T: Element>(variant: Variant) {
    let mut random = Random::new(4242);
    // Full tiles, edges, several blocks of k, a batch beyond a pass of packed rows, a wide task
    // that ends within a panel and far from its next register tile, and x of four and of three rows
    // larger than L1.
    for (n, k, batches) in [
        (87, 97, &[2, 3, 5, 9, 17][..]),
        (24, 1100, &[4, 8, 13, 25]),
        (13, 64, &[129, 290]),
        (186, 40, &[2, 3, 4, 8]),
        (99, 3301, &[4, 5, 6, 7, 8]),
        (53, 4419, &[2, 3, 4]),
    ] {
        let weight: Vec<T> = random.vector(n * k);
        let bias: Vec<f32> = random.vector(n);
        let row: Vec<T> = random.vector(k);
        let run = |kernels: &Kernels, rows: usize, x: &[T]| {
            let mut out = poison::<f32>(rows * n);
            let target = LinearOut::StoreF32(&mut out);
            kernels.linear(Linear {
                rows,
                n,
                k,
                x,
                weight: &weight,
                bias: Some(&bias),
                out: target,
            });
            out
        };
        let alone = bits(&run(&kernels(variant, 1), 1, &row));
        for threads in [1, 2, 3] {
            let kernels = kernels(variant, threads);
            assert_eq!(bits(&run(&kernels, 1, &row)), alone, "{variant:?} {threads} threads");
            for &rows in batches {
                let mut x: Vec<T> = random.vector(rows * k);
                let step = if rows > 100 { 31 } else { 1 };
                for position in (0..rows).step_by(step).chain([rows - 1]) {
                    let saved = x[position * k..][..k].to_vec();
                    x[position * k..][..k].copy_from_slice(&row);
                    let out = run(&kernels, rows, &x);
                    let context =
                        format!("{variant:?} {threads} threads, row {position} of {rows}");
                    assert_eq!(bits(&out[position * n..][..n]), alone, "{context}");
                    x[position * k..][..k].copy_from_slice(&saved);
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_threads() {
    for variant in variants("a_row_does_not_depend_on_its_batch_or_on_threads") {
        check_independence::<bf16>(variant);
        check_independence::<f32>(variant);
    }
}

/// Batches of large linears take other paths than small ones; tasks end within a register tile.
#[test]
fn a_row_of_a_large_linear_has_the_bits_of_the_row_alone() {
    for variant in variants("a_row_of_a_large_linear_has_the_bits_of_the_row_alone") {
        for (n, k) in [(2051, 2083), (2090, 2048), (2049, 2064)] {
            let whole = case::<bf16>(n as u64, (48, n, k));
            let run = |kernels: &Kernels, first: usize, rows: usize| {
                let mut out = poison::<f32>(rows * n);
                kernels.linear(Linear {
                    rows,
                    n,
                    k,
                    x: &whole.x[first * k..][..rows * k],
                    weight: &whole.weight,
                    bias: Some(&whole.bias),
                    out: LinearOut::StoreF32(&mut out),
                });
                bits(&out)
            };
            let one = kernels(variant, 2);
            let alone: Vec<_> = (0..48).flat_map(|row| run(&one, row, 1)).collect();
            for (threads, sampled) in [(1, 3), (2, 1), (3, 10)] {
                let kernels = kernels(variant, threads);
                let count = if crate::common::runs_all_cases() { 10 } else { sampled };
                for rows in [48, 17, 4, 2, 3, 7, 8, 9, 16, 39].into_iter().take(count) {
                    let context = format!("{variant:?} {threads} threads, {rows}x{n}x{k}");
                    assert!(run(&kernels, 0, rows) == alone[..rows * n], "{context}");
                }
            }
        }
    }
}

#[test]
fn scratch_for_few_rows_takes_many_rows_in_passes() {
    for variant in variants("scratch_for_few_rows_takes_many_rows_in_passes") {
        let case = case::<bf16>(9, (11, 26, 70));
        let small = ScratchLimits { rows: 3, linear_inputs: 70, ..LIMITS };
        let small = Kernels::new(variant, 2, small).expect("threads start");
        let (mut few, mut many) = (poison::<bf16>(11 * 26), poison::<bf16>(11 * 26));
        case.run(&small, true, LinearOut::Store(&mut few));
        case.run(&kernels(variant, 1), true, LinearOut::Store(&mut many));
        assert_eq!(bits(&few), bits(&many));
    }
}

#[test]
fn a_chunk_of_outputs_has_the_bits_of_the_whole() {
    for variant in variants("a_chunk_of_outputs_has_the_bits_of_the_whole") {
        let (rows, n, k) = (5, 50, 80);
        let whole = case::<bf16>(3, (rows, n, k));
        let kernels = kernels(variant, 2);
        let mut all = poison::<bf16>(rows * n);
        whole.run(&kernels, false, LinearOut::Store(&mut all));
        for (first, end) in [(0, 7), (7, 31), (31, 50)] {
            let width = end - first;
            let mut part = poison::<bf16>(rows * width);
            kernels.linear(Linear {
                rows,
                n: width,
                k,
                x: &whole.x,
                weight: &whole.weight[first * k..end * k],
                bias: None,
                out: LinearOut::Store(&mut part),
            });
            for row in 0..rows {
                let expected = &all[row * n + first..row * n + end];
                assert_eq!(bits(&part[row * width..][..width]), bits(expected), "{variant:?}");
            }
        }
    }
}

/// Many rows are distributed over threads, in shares of unequal size; a single thread processes
/// them in passes. Each row has the bits that it has alone.
#[test]
fn rows_that_threads_share_have_the_bits_of_one_thread() {
    for variant in variants("rows_that_threads_share_have_the_bits_of_one_thread") {
        let (rows, n, k) = (521, 71, 1090);
        let case = case::<bf16>(11, (rows, n, k));
        let (gate, residual) = (case.x[..rows * n].to_vec(), vec![0.25f32; rows * n]);
        let run = |threads: usize| {
            let limits = ScratchLimits { rows: 521, linear_inputs: k, ..LIMITS };
            let kernels = Kernels::new(variant, threads, limits).expect("threads start");
            let (mut stored, mut gated) = (poison::<bf16>(rows * n), poison::<bf16>(rows * n));
            let (mut floats, mut added) = (poison::<f32>(rows * n), residual.clone());
            case.run(&kernels, true, LinearOut::Store(&mut stored));
            case.run(&kernels, true, LinearOut::SiluMul { gate: &gate, out: &mut gated });
            case.run(&kernels, true, LinearOut::StoreF32(&mut floats));
            case.run(&kernels, true, LinearOut::AddTo(&mut added));
            let (mut clamped, mut scaled) = (poison::<bf16>(rows * n), residual.clone());
            let (alpha, limit) = (1.702, 0.9);
            let out = LinearOut::ClampedSwiGlu { gate: &gate, out: &mut clamped, alpha, limit };
            case.run(&kernels, true, out);
            case.run(&kernels, true, LinearOut::AddScaled { out: &mut scaled, factor: 0.3 });
            let (stored, gated, clamped) = (bits(&stored), bits(&gated), bits(&clamped));
            [stored, gated, clamped, bits(&added), bits(&scaled), bits(&floats)]
        };
        let one_thread = run(1);
        for threads in [2, 3, 4] {
            assert!(run(threads) == one_thread, "{variant:?} {threads} threads");
        }
        let kernels = kernels(variant, 1);
        let [.., floats] = &one_thread;
        for (row, whole) in floats.chunks_exact(n).enumerate() {
            let (x, mut alone) = (case.x[row * k..][..k].to_vec(), poison::<f32>(n));
            let (weight, bias) = (case.weight.clone(), case.bias.clone());
            let one = Case { shape: (1, n, k), x, weight, bias };
            one.run(&kernels, true, LinearOut::StoreF32(&mut alone));
            assert_eq!(bits(&alone), whole, "{variant:?} row {row}");
        }
    }
}

/// Checks outputs of a range of columns at a time, with the other outputs left unchanged.
fn check_columns<T: Element>(variant: Variant) {
    let kernels = kernels(variant, 2);
    let (n, k) = (80, 97);
    for rows in [1, 7, 130] {
        let case = case::<T>(5, (rows, n, k));
        let mut random = Random::new(6);
        let gate: Vec<T> = random.vector(rows * n);
        let start: Vec<f32> = random.vector(rows * n);
        let (mut stored, mut gated) = (poison::<T>(rows * n), poison::<T>(rows * n));
        case.run(&kernels, true, LinearOut::Store(&mut stored));
        case.run(&kernels, true, LinearOut::SiluMul { gate: &gate, out: &mut gated });
        let mut added = start.clone();
        case.run(&kernels, true, LinearOut::AddScaled { out: &mut added, factor: 0.5 });
        let mut same_gate = gate.clone();
        let (mut store, mut product) = (poison::<T>(rows * n), poison::<T>(rows * n));
        let mut sum = start;
        for columns in [0..16, 48..80, 16..48] {
            let weight = ColumnsWeight::Plain(&case.weight[columns.start * k..columns.end * k]);
            let bias = Some(&case.bias[columns.clone()]);
            let run = |out| {
                let (x, columns) = (&case.x[..], columns.clone());
                kernels.linear_columns(LinearColumns { rows, n, k, columns, x, weight, bias, out });
            };
            run(ColumnsOut::Store(store.as_mut_slice().into()));
            let gate = same_gate.as_mut_slice().into();
            run(ColumnsOut::SiluMul { gate, out: product.as_mut_slice().into() });
            run(ColumnsOut::Add { out: sum.as_mut_slice().into(), factor: 0.5 });
            if columns.start == 0 {
                let is_poison = |value: &T| value.to_f32().is_nan();
                assert!(store.chunks(n).all(|row| row[16..].iter().all(is_poison)));
            }
        }
        let context = format!("{variant:?} {rows} rows");
        assert_eq!(bits(&store), bits(&stored), "{context}");
        assert_eq!(bits(&product), bits(&gated), "{context}");
        assert_eq!(bits(&sum), bits(&added), "{context}");
    }
}

#[test]
fn columns_by_themselves_have_the_bits_of_the_whole() {
    for variant in variants("columns_by_themselves_have_the_bits_of_the_whole") {
        check_columns::<bf16>(variant);
        check_columns::<f32>(variant);
    }
}
