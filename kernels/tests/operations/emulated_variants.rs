//! Tests of linears of the variants whose instructions this machine may lack, emulated if so:
//! against the reference, in every kind of output, and row by row. Cases are few and small, because
//! an emulated instruction takes microseconds.

use crate::common::records::{formats, random_records, said};
use crate::common::{
    Random, assert_close, bits, bytes_of, has_integers, kernels as native_kernels, poison, step_of,
    tolerance,
};
use crate::emulate::emulated;
use half::bf16;
use kernels::{Kernels, Linear, LinearOut, LinearQuant, Variant, reference};
use model::quantized_format::{ActivationFormat, Grouped};

/// Returns kernels of each variant with dedicated bf16 instructions, on `threads` threads.
fn all_kernels(test: &str, threads: usize) -> Vec<Kernels> {
    let mut all = Vec::new();
    for variant in [Variant::Avx512Bf16, Variant::Amx] {
        match crate::emulate::kernels(variant, threads) {
            Some(kernels) => all.push(kernels),
            None => println!("SKIP {test} ({}): no AVX-512 to emulate it with", variant.name()),
        }
    }
    all
}

/// Panics unless instructions were emulated since `before`, or did not need to be.
fn assert_emulated(variant: Variant, before: u64) {
    assert!(variant.is_available() || emulated() > before, "{variant:?} used none of its own");
}

/// `(rows, n, k)`: below, at and above tiles, odd inputs, steps and blocks of inputs with and
/// without a remainder.
const SHAPES: [(usize, usize, usize); 20] = [
    (1, 1, 1),
    (1, 16, 32),
    (1, 33, 65),
    (2, 15, 31),
    (3, 17, 63),
    (4, 65, 2),
    (5, 32, 64),
    (7, 31, 33),
    (13, 3, 127),
    (14, 47, 15),
    (15, 64, 17),
    (16, 16, 16),
    (17, 2, 3),
    (25, 63, 66),
    (31, 5, 95),
    (33, 48, 34),
    (50, 35, 97),
    (1, 35, 1025),
    (18, 20, 561),
    (3, 130, 513),
];

#[test]
fn plain_linears_agree_with_the_reference() {
    for kernels in all_kernels("plain_linears_agree_with_the_reference", 1) {
        let before = emulated();
        for (seed, (rows, n, k)) in SHAPES.into_iter().enumerate() {
            let mut random = Random::new(seed as u64);
            let (x, weight): (Vec<bf16>, Vec<bf16>) =
                (random.vector(rows * k), random.vector(n * k));
            let bias: Vec<f32> = random.vector(n);
            let mut out = poison::<f32>(rows * n);
            let target = LinearOut::StoreF32(&mut out);
            kernels.linear(Linear {
                rows,
                n,
                k,
                x: &x,
                weight: &weight,
                bias: Some(&bias),
                out: target,
            });
            let expected = reference::linear(rows, n, k, &x, &weight, Some(&bias));
            let context = format!("seed {seed} {:?} {rows}x{n}x{k}", kernels.variant());
            let typical = (k as f64).sqrt() / 2.0;
            assert_close(&out, &expected, (n, typical), tolerance(), &context);
        }
        assert_emulated(kernels.variant(), before);
    }
}

/// No variant has dedicated f32 instructions: nothing to emulate, but each has its own tiles of
/// rows.
#[test]
fn f32_linears_agree_with_the_reference() {
    for kernels in all_kernels("f32_linears_agree_with_the_reference", 1) {
        for (seed, (rows, n, k)) in SHAPES.into_iter().enumerate() {
            let mut random = Random::new(seed as u64);
            let (x, weight): (Vec<f32>, Vec<f32>) = (random.vector(rows * k), random.vector(n * k));
            let mut out = poison::<f32>(rows * n);
            let (bias, target) = (None, LinearOut::StoreF32(&mut out));
            kernels.linear(Linear { rows, n, k, x: &x, weight: &weight, bias, out: target });
            let expected = reference::linear(rows, n, k, &x, &weight, None);
            let context = format!("seed {seed} {:?} {rows}x{n}x{k}", kernels.variant());
            assert_close(&out, &expected, (n, (k as f64).sqrt() / 2.0), tolerance(), &context);
        }
    }
}

/// A grouped matrix with random scales and integers, and its values.
struct Matrix {
    format: Grouped,
    records: Vec<u8>,
    /// `[n, k]`.
    values: Vec<f64>,
}

fn matrix(random: &mut Random, format: Grouped, n: usize, k: usize) -> Matrix {
    let records = random_records(random, format, n, k);
    let said = said(format, &records, n, k);
    let value = |at: usize| {
        let (scale, min) = said.ranges[at / k * format.groups(k) + at % k / format.group];
        f64::from(scale) * f64::from(said.q[at]) + f64::from(min)
    };
    let values = (0..n * k).map(value).collect();
    Matrix { format, records, values }
}

fn run_grouped(
    kernels: &Kernels,
    (rows, n, k): (usize, usize, usize),
    x: &[bf16],
    matrix: &Matrix,
) -> Vec<f32> {
    let mut out = poison::<f32>(rows * n);
    let target = LinearOut::StoreF32(&mut out);
    kernels.linear_grouped(LinearQuant {
        rows,
        n,
        k,
        x,
        format: matrix.format,
        records: &matrix.records,
        bias: None,
        out: target,
    });
    out
}

/// Returns x as these kernels round it before it is multiplied by weights in `groups` of inputs.
fn rounded(kernels: &Kernels, activations: ActivationFormat, x: &[bf16], group: usize) -> Vec<f64> {
    let in_integers = has_integers(kernels.variant());
    let of_group = x.chunks(group).flat_map(|x| match activations {
        ActivationFormat::Int8 => {
            let of_32 = x.chunks(32).flat_map(|x| {
                let (bytes, step) = bytes_of(x);
                bytes.into_iter().map(move |byte| f64::from(byte) * f64::from(step))
            });
            of_32.collect::<Vec<f64>>()
        }
        ActivationFormat::Int12 if in_integers => {
            let step = step_of(x);
            let round = |x: &bf16| (f64::from(x.to_f32()) / step).round_ties_even() * step;
            x.iter().map(round).collect()
        }
        ActivationFormat::Int12 => x.iter().map(|x| f64::from(x.to_f32())).collect(),
    });
    of_group.collect()
}

#[test]
fn grouped_linears_agree_with_the_reference() {
    for kernels in all_kernels("grouped_linears_agree_with_the_reference", 1) {
        let variant = kernels.variant();
        let before = emulated();
        let mut kernels = Some(kernels);
        for activations in [ActivationFormat::Int8, ActivationFormat::Int12] {
            let rounding = kernels.take().expect("returned").with_activations(activations);
            for (seed, (rows, n, k)) in SHAPES.into_iter().enumerate() {
                // Some formats for each shape.
                for format in formats().into_iter().skip(seed % 3).step_by(3) {
                    let mut random = Random::new(seed as u64);
                    let x: Vec<bf16> = random.vector(rows * k);
                    let matrix = matrix(&mut random, format, n, k);
                    let out = run_grouped(&rounding, (rows, n, k), &x, &matrix);
                    let mut expected = Vec::with_capacity(rows * n);
                    for x in x.chunks(k) {
                        let x = rounded(&rounding, activations, x, format.group);
                        for weight in matrix.values.chunks(k) {
                            let terms = x.iter().zip(weight).map(|(x, w)| x * w);
                            expected.push(terms.sum::<f64>());
                        }
                    }
                    let context = format!(
                        "seed {seed} {variant:?} {activations:?} {rows}x{n}x{k} {format:?}"
                    );
                    // Terms are larger than their sum: up to 128 steps of a scale in addition to
                    // the minimum.
                    let typical = 4.0 * (k as f64).sqrt();
                    assert_close(&out, &expected, (n, typical), tolerance(), &context);
                }
            }
            kernels = Some(rounding);
        }
        // AMX has tiles of integers; AVX512-BF16 has no instruction for them.
        if variant == Variant::Amx && has_integers(Variant::Amx) {
            assert_emulated(variant, before);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_threads() {
    let test = "a_row_does_not_depend_on_its_batch_or_on_threads";
    let alone_kernels = all_kernels(test, 1);
    let threaded = all_kernels(test, 2);
    for (one, two) in alone_kernels.iter().zip(&threaded) {
        // The second shape has two blocks of inputs.
        for (n, k, batches) in [
            (37, 97, &[(1, vec![0]), (3, vec![0, 2]), (17, vec![0, 7, 16])][..]),
            (18, 530, &[(1, vec![0]), (19, vec![0, 18])]),
        ] {
            let mut random = Random::new(4242);
            let weight: Vec<bf16> = random.vector(n * k);
            let matrices: Vec<Matrix> =
                formats().into_iter().map(|format| matrix(&mut random, format, n, k)).collect();
            let row: Vec<bf16> = random.vector(k);
            // Index 0 is the plain weight, the others are the grouped formats.
            let run = |kernels: &Kernels, rows: usize, x: &[bf16], which: usize| {
                if which > 0 {
                    return run_grouped(kernels, (rows, n, k), x, &matrices[which - 1]);
                }
                let mut out = poison::<f32>(rows * n);
                let target = LinearOut::StoreF32(&mut out);
                kernels.linear(Linear { rows, n, k, x, weight: &weight, bias: None, out: target });
                out
            };
            for which in 0..=matrices.len() {
                let alone = bits(&run(one, 1, &row, which));
                for (kernels, threads) in [(one, 1), (two, 2)] {
                    for (rows, positions) in batches {
                        let rows = *rows;
                        let mut x: Vec<bf16> = random.vector(rows * k);
                        for &position in positions {
                            x[position * k..][..k].copy_from_slice(&row);
                        }
                        // A neighbour that would spoil every sum it entered.
                        if rows > 1 {
                            x[k..][..k].fill(bf16::NAN);
                        }
                        let out = run(kernels, rows, &x, which);
                        for position in positions {
                            let variant = one.variant();
                            let context = format!(
                                "{variant:?} format {which} {n}x{k}, {threads} threads, row \
                                 {position} of {rows}"
                            );
                            assert_eq!(bits(&out[position * n..][..n]), alone, "{context}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_chunk_of_outputs_has_the_bits_of_the_whole() {
    for kernels in all_kernels("a_chunk_of_outputs_has_the_bits_of_the_whole", 1) {
        let (rows, n, k) = (5, 50, 80);
        let mut random = Random::new(3);
        let (x, weight): (Vec<bf16>, Vec<bf16>) = (random.vector(rows * k), random.vector(n * k));
        let run = |first: usize, end: usize| {
            let mut out = poison::<bf16>(rows * (end - first));
            let target = LinearOut::Store(&mut out);
            kernels.linear(Linear {
                rows,
                n: end - first,
                k,
                x: &x,
                weight: &weight[first * k..end * k],
                bias: None,
                out: target,
            });
            out
        };
        let all = run(0, n);
        for (first, end) in [(0, 7), (7, 31), (31, 50)] {
            let (part, width) = (run(first, end), end - first);
            for row in 0..rows {
                let expected = &all[row * n + first..row * n + end];
                assert_eq!(bits(&part[row * width..][..width]), bits(expected));
            }
        }
    }
}

#[test]
fn an_overflow_or_nan_in_a_weight_stays_in_its_column() {
    for kernels in all_kernels("an_overflow_or_nan_in_a_weight_stays_in_its_column", 1) {
        // Odd inputs: the last pair of a row must not see the next row's first element.
        for (bad, k) in [(f32::NAN, 33), (f32::INFINITY, 31), (f32::NAN, 65)] {
            let n = 20;
            let x = vec![bf16::ONE; 2 * k];
            for column in [0, 1, 15, 16, 19] {
                let mut weight = vec![bf16::ONE; n * k];
                weight[column * k] = bf16::from_f32(bad);
                let mut out = poison::<f32>(2 * n);
                let target = LinearOut::StoreF32(&mut out);
                kernels.linear(Linear {
                    rows: 2,
                    n,
                    k,
                    x: &x,
                    weight: &weight,
                    bias: None,
                    out: target,
                });
                for (at, value) in out.iter().enumerate() {
                    let variant = kernels.variant();
                    assert_eq!(value.is_finite(), at % n != column, "{variant:?} {column} {at}");
                }
            }
        }
    }
}

#[test]
fn what_has_no_instructions_of_its_own_is_avx512() {
    for kernels in all_kernels("what_has_no_instructions_of_its_own_is_avx512", 1) {
        let reference = native_kernels(Variant::Avx512, 1);
        let mut random = Random::new(5);
        let (rows, n, k) = (3, 18, 70);
        let (x, weight): (Vec<f32>, Vec<f32>) = (random.vector(rows * k), random.vector(n * k));
        let gain: Vec<f32> = random.vector(k);
        let run = |kernels: &Kernels| {
            let (mut out, mut normed) = (poison::<f32>(rows * n), poison::<bf16>(rows * k));
            let target = LinearOut::Gelu(&mut out);
            kernels.linear(Linear { rows, n, k, x: &x, weight: &weight, bias: None, out: target });
            kernels.rms_norm(rows, k, &x, &gain, 1e-5, None, &mut normed);
            (bits(&out), bits(&normed))
        };
        let before = emulated();
        assert_eq!(run(&kernels), run(&reference), "{:?}", kernels.variant());
        assert_eq!(emulated(), before, "f32 and norms use nothing that would be emulated");
    }
}

#[test]
fn a_variant_that_is_only_emulated_is_still_refused() {
    crate::emulate::install();
    for variant in Variant::ALL.into_iter().filter(|variant| !variant.is_available()) {
        let refused = Variant::from_name(variant.name()).expect_err("this machine lacks it");
        let sentence = refused.to_string();
        assert!(sentence.contains(variant.name()) && sentence.ends_with('.'), "{sentence}");
        let built = std::panic::catch_unwind(|| Kernels::new(variant, 1, crate::common::LIMITS));
        assert!(built.is_err(), "{variant:?} must not be built without its instructions");
    }
}
