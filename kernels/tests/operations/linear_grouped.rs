//! Tests of linears on grouped low-bit weights: the documented order of operations bit for bit, 4
//! bits against the same weights in 8, row independence, kinds of output, unaligned records.

use crate::common::records::{formats, random_records, said};
use crate::common::{
    Random, assert_close, bits, bytes_of, has_integers, kernels, poison, runs_all_cases, step_of,
    tolerance, variants,
};
use half::{bf16, f16};
use kernels::quant::widen;
use kernels::{Element, Kernels, LinearOut, LinearQuant, Variant};
use model::quantized_format::ActivationFormat::{Int8, Int12};
use model::quantized_format::{ActivationFormat, Bits, Grouped, ROWS, ScaleLayout};

/// A grouped matrix as numbers, and its records.
struct Matrix {
    format: Grouped,
    n: usize,
    k: usize,
    q: Vec<i8>,
    /// Scale and minimum by row and group.
    scales: Vec<(f32, f32)>,
    records: Vec<u8>,
}

impl Matrix {
    /// Returns 4-bit numbers in records of 4 or 8 bits; with `wide`, 8-bit numbers. Other formats
    /// have any numbers that they can hold.
    fn random(random: &mut Random, format: Grouped, (n, k): (usize, usize), wide: bool) -> Matrix {
        let is_plain = matches!(format.bits, Bits::Four | Bits::Eight);
        if !is_plain || format.scales != ScaleLayout::Halves {
            let records = random_records(random, format, n, k);
            let said = said(format, &records, n, k);
            return Matrix { format, n, k, q: said.q, scales: said.ranges, records };
        }
        let groups = format.groups(k);
        let q = (0..n * k)
            .map(|_| if wide { random.bits() as i8 } else { (random.bits() & 15) as i8 })
            .collect();
        let scales =
            (0..n * groups).map(|_| (half(random.unit() / 8.0), half(random.unit()))).collect();
        let mut matrix = Matrix { format, n, k, q, scales, records: Vec::new() };
        matrix.records = matrix.encode(format);
        matrix
    }

    /// Returns the records, according to the written description of the format.
    fn encode(&self, format: Grouped) -> Vec<u8> {
        let groups = format.groups(self.k);
        let mut records = vec![0u8; format.size_bytes(self.n, self.k)];
        for row in 0..self.n {
            for group in 0..groups {
                let start = (row / ROWS * groups + group) * format.record_bytes();
                let record = &mut records[start..][..format.record_bytes()];
                let lane = row % ROWS;
                let (scale, min) = self.scales[row * groups + group];
                let bytes = |value: f32| f16::from_f32(value).to_le_bytes();
                record[2 * lane..][..2].copy_from_slice(&bytes(scale));
                record[2 * (ROWS + lane)..][..2].copy_from_slice(&bytes(min));
                for i in 0..format.group.min(self.k - group * format.group) {
                    let q = self.q[row * self.k + group * format.group + i];
                    match format.bits {
                        Bits::Four => {
                            let nibble = i % 8 / 2 + i % 2 * 4;
                            let at = 64 + i / 8 * 64 + 4 * lane + nibble / 2;
                            record[at] |= (q as u8) << (4 * (nibble % 2));
                        }
                        _ => record[64 + i / 4 * 64 + 4 * lane + i % 4] = q as u8,
                    }
                }
            }
        }
        records
    }

    /// Computes every output from the sums of its groups: `group_sums` are those of `q * x` and of
    /// `x`.
    fn of_groups<T: Element>(
        &self,
        x: &[T],
        group_sums: impl Fn(&[i8], &[T]) -> (f32, f32),
    ) -> Vec<f32> {
        let Matrix { format, n, k, .. } = *self;
        let mut out = Vec::new();
        for x in x.chunks(k) {
            for row in 0..n {
                let mut total = 0.0f32;
                for (group, x) in x.chunks(format.group).enumerate() {
                    let q = &self.q[row * k + group * format.group..][..x.len()];
                    let (part, sum) = group_sums(q, x);
                    let (scale, min) = self.scales[row * format.groups(k) + group];
                    total = scale.mul_add(part, total);
                    total = min.mul_add(sum, total);
                }
                out.push(total);
            }
        }
        out
    }

    /// Computes every output in the documented order of fused operations.
    fn fused<T: Element>(&self, x: &[T]) -> Vec<f32> {
        self.of_groups(x, |q, x| {
            q.iter().zip(x).fold((0.0f32, 0.0f32), |(part, sum), (&q, x)| {
                (f32::from(q).mul_add(x.to_f32(), part), sum + x.to_f32())
            })
        })
    }

    /// Computes every output in the documented order of products of bf16 in bytes.
    fn in_bytes<T: Element>(&self, x: &[T]) -> Vec<f32> {
        let Matrix { format, n, k, .. } = *self;
        let mut out = Vec::new();
        for x in x.chunks(k) {
            for row in 0..n {
                let mut total = 0.0f32;
                for (group, x) in x.chunks(format.group).enumerate() {
                    let (scale, min) = self.scales[row * format.groups(k) + group];
                    let q = &self.q[row * k + group * format.group..][..x.len()];
                    for (q, x) in q.chunks(32).zip(x.chunks(32)) {
                        let (bytes, step) = bytes_of(x);
                        let (mut part, mut sum) = (0, 0);
                        for (&q, v) in q.iter().zip(bytes) {
                            (part, sum) = (part + v * i32::from(q), sum + v);
                        }
                        total = scale.mul_add(part as f32 * step, total);
                        total = min.mul_add(sum as f32 * step, total);
                    }
                }
                out.push(total);
            }
        }
        out
    }

    /// Computes every output in the documented order of products of bf16 in integers.
    fn in_integers<T: Element>(&self, x: &[T]) -> Vec<f32> {
        self.of_groups(x, |q, x| {
            let step = step_of(x);
            let (part, sum) = q.iter().zip(x).fold((0i64, 0i64), |(part, sum), (&q, x)| {
                let v = (f64::from(x.to_f32()) / step).round_ties_even() as i64;
                (part + v * i64::from(q), sum + v)
            });
            (part as f32 * step as f32, sum as f32 * step as f32)
        })
    }

    fn run<T: Element>(&self, kernels: &Kernels, x: &[T], out: LinearOut<'_, T>) {
        let Matrix { format, n, k, .. } = *self;
        let rows = x.len() / k;
        let records = &self.records;
        kernels.linear_grouped(LinearQuant { rows, n, k, x, format, records, bias: None, out });
    }

    fn sums<T: Element>(&self, kernels: &Kernels, x: &[T]) -> Vec<f32> {
        let mut out = poison::<f32>(x.len() / self.k * self.n);
        self.run(kernels, x, LinearOut::StoreF32(&mut out));
        out
    }
}

/// Returns every variant of this machine with every format of activations.
fn combinations(test: &str) -> Vec<(Variant, ActivationFormat)> {
    let both = |variant| [(variant, Int8), (variant, Int12)];
    variants(test).into_iter().flat_map(both).collect()
}

fn kernels_with(variant: Variant, threads: usize, activations: ActivationFormat) -> Kernels {
    kernels(variant, threads).with_activations(activations)
}

/// Rounds to f16.
fn half(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

fn check_sizes<T: Element>(name: &str, activations: ActivationFormat) {
    const SIZES: [usize; 12] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65];
    for variant in variants(name) {
        let kernels = kernels_with(variant, 2, activations);
        for (index, format) in formats().into_iter().enumerate() {
            for (round, &rows) in
                [1, 2, 3, 4, 5, 7, 8, 12, 13, 14, 16, 17, 25, 33].iter().enumerate()
            {
                // Every format is combined with every number of rows, and a third of the widths
                // with each.
                for (offset, &n) in SIZES.iter().enumerate().skip((index + round) % 3).step_by(3) {
                    for k in [SIZES[(offset + round) % 12], SIZES[(offset * 5 + round) % 12], 600] {
                        let seed = (rows * 1_000_003 + n * 1_009 + k) as u64;
                        let mut random = Random::new(seed);
                        let wide = format.bits == Bits::Eight && round % 2 == 1;
                        let matrix = Matrix::random(&mut random, format, (n, k), wide);
                        let x: Vec<T> = random.vector(rows * k);
                        let context = format!("seed {seed} {variant:?} {format:?} {rows}x{n}x{k}");
                        let out = matrix.sums(&kernels, &x);
                        let in_bytes = size_of::<T>() == 2 && activations == ActivationFormat::Int8;
                        let expected =
                            if in_bytes { matrix.in_bytes(&x) } else { matrix.fused(&x) };
                        if !in_bytes && size_of::<T>() == 2 && has_integers(variant) {
                            assert_eq!(bits(&out), bits(&matrix.in_integers(&x)), "{context}");
                        } else if variant != Variant::Scalar {
                            assert_eq!(bits(&out), bits(&expected), "{context}");
                        } else {
                            let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
                            let is_wide = wide || format.bits.count() != 4;
                            let typical = (k as f64).sqrt() * if is_wide { 8.0 } else { 1.0 };
                            let allowed = 4.0 * tolerance();
                            assert_close(&out, &expected, (n, typical), allowed, &context);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn bf16_follows_the_stated_order_over_awkward_sizes() {
    check_sizes::<bf16>("bf16_follows_the_stated_order_over_awkward_sizes", Int12);
}

#[test]
fn bytes_follow_the_stated_order_over_awkward_sizes() {
    check_sizes::<bf16>("bytes_follow_the_stated_order_over_awkward_sizes", Int8);
}

#[test]
fn f32_follows_the_stated_order_over_awkward_sizes() {
    check_sizes::<f32>("f32_follows_the_stated_order_over_awkward_sizes", Int8);
}

/// Returns rows whose values are far apart within a group, zero, subnormal or huge.
fn extreme_rows(random: &mut Random, k: usize) -> Vec<bf16> {
    let scale = |row: usize, i: usize| match row {
        0 => 0.0,
        1 => 1e-39,
        2 => 1e33,
        3 => 2.0f32.powi(-(i as i32 % 40)),
        4 => {
            if i % 97 == 5 {
                1000.0
            } else {
                0.01
            }
        }
        _ => 1.0,
    };
    (0..8 * k).map(|at| bf16::from_f32(random.unit() * scale(at / k, at % k))).collect()
}

#[test]
fn what_integers_of_x_lose_is_bounded() {
    let mut random = Random::new(77);
    let (n, k) = (48, 330);
    for format in formats() {
        let matrix = Matrix::random(&mut random, format, (n, k), false);
        let x = extreme_rows(&mut random, k);
        for (variant, activations) in combinations("what_integers_of_x_lose_is_bounded") {
            let out = matrix.sums(&kernels_with(variant, 2, activations), &x);
            for (row, x) in x.chunks(k).enumerate() {
                for column in 0..n {
                    let (mut exact, mut sizes, mut lost) = (0.0, 0.0, 0.0);
                    for (group, x) in x.chunks(format.group).enumerate() {
                        let (scale, min) = matrix.scales[column * format.groups(k) + group];
                        let (scale, min) = (f64::from(scale), f64::from(min));
                        let step = match activations {
                            // No group of 32 has a larger step than all of them.
                            Int8 => f64::from(bytes_of(x).1),
                            Int12 => step_of(x),
                        };
                        for (i, x) in x.iter().enumerate() {
                            let q = matrix.q[column * k + group * format.group + i];
                            let (x_value, weight) =
                                (f64::from(x.to_f32()), scale * f64::from(q) + min);
                            exact += x_value * weight;
                            sizes += (x_value * scale * f64::from(q)).abs() + (x_value * min).abs();
                            lost += weight.abs() * step / 2.0;
                        }
                    }
                    // Rounding of f32 sums; and half a step of each input if these are integers.
                    let rounds = activations == Int8 || has_integers(variant);
                    let lost = if rounds { lost } else { 0.0 };
                    let allowed = lost + 1e-5 * sizes + 1e-44;
                    let value = f64::from(out[row * n + column]);
                    let difference = (value - exact).abs();
                    let context = format!("{variant:?} {format:?} row {row} column {column}");
                    assert!(difference <= allowed, "{context}: {value} instead of {exact}");
                }
            }
        }
    }
}

#[test]
fn infinities_and_nans_of_x_show_in_their_row_alone() {
    let mut random = Random::new(78);
    let matrix = Matrix::random(&mut random, Grouped::W4, (33, 200), false);
    for (variant, activations) in combinations("infinities_and_nans_of_x_show_in_their_row_alone") {
        for rows in [3, 20] {
            let mut x: Vec<bf16> = random.vector(rows * 200);
            let before = matrix.sums(&kernels_with(variant, 1, activations), &x);
            (x[70], x[200 + 199]) = (bf16::NEG_INFINITY, bf16::NAN);
            let out = matrix.sums(&kernels_with(variant, 1, activations), &x);
            assert!(out[..66].iter().all(|value| !value.is_finite()), "{variant:?}");
            assert_eq!(bits(&out[66..]), bits(&before[66..]), "{variant:?}");
        }
    }
}

fn check_widening<T: Element>(kernels: &Kernels, format: Grouped, k: usize) {
    let variant = kernels.variant();
    let mut random = Random::new(8);
    let mut matrix = Matrix::random(&mut random, format, (150, k), false);
    let mut wide = vec![0xff; format.widened().size_bytes(150, k)];
    widen(variant, format, k, &matrix.records, &mut wide);
    for rows in [1, 2, 4, 9, 30] {
        let x: Vec<T> = random.vector(rows * k);
        let narrow = matrix.sums(kernels, &x);
        std::mem::swap(&mut matrix.records, &mut wide);
        matrix.format = format.widened();
        let sums = matrix.sums(kernels, &x);
        std::mem::swap(&mut matrix.records, &mut wide);
        matrix.format = format;
        assert_eq!(bits(&narrow), bits(&sums), "{variant:?} {format:?} k {k} rows {rows}");
    }
}

#[test]
fn every_form_and_its_widening_to_eight_bits_give_the_same_bits() {
    for (variant, activations) in
        combinations("every_form_and_its_widening_to_eight_bits_give_the_same_bits")
    {
        let kernels = kernels_with(variant, 2, activations);
        for format in formats().into_iter().filter(|format| format.bits != Bits::Eight) {
            // The second ends within a record of several groups.
            for k in [512, 330] {
                check_widening::<bf16>(&kernels, format, k);
                if activations == Int8 {
                    check_widening::<f32>(&kernels, format, k);
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_threads() {
    for (variant, activations) in combinations("a_row_does_not_depend_on_its_batch_or_on_threads") {
        for format in formats() {
            let mut random = Random::new(99);
            let matrix = Matrix::random(&mut random, format, (135, 700), false);
            let row: Vec<bf16> = random.vector(700);
            let alone = bits(&matrix.sums(&kernels_with(variant, 1, activations), &row));
            let all = &[1, 2, 3, 4, 6, 13, 17, 290, 512][..];
            for (threads, some) in [(1, &[1, 4, 13, 290][..]), (2, &[]), (3, all)] {
                let kernels = kernels_with(variant, threads, activations);
                for &rows in if runs_all_cases() { all } else { some } {
                    let mut x: Vec<bf16> = random.vector(rows * 700);
                    for position in [0, rows / 2, rows - 1] {
                        x[position * 700..][..700].copy_from_slice(&row);
                    }
                    let out = matrix.sums(&kernels, &x);
                    for position in [0, rows / 2, rows - 1] {
                        assert_eq!(
                            bits(&out[position * 135..][..135]),
                            alone,
                            "{variant:?} {format:?} {threads} threads, row {position} of {rows}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn records_need_no_alignment_and_every_kind_of_output_works() {
    for variant in variants("records_need_no_alignment_and_every_kind_of_output_works") {
        let kernels = kernels(variant, 2);
        let mut random = Random::new(5);
        let matrix = Matrix::random(&mut random, Grouped::W4, (40, 130), false);
        let x: Vec<bf16> = random.vector(6 * 130);
        let expected = matrix.sums(&kernels, &x);
        let shifted: Vec<u8> = std::iter::once(0).chain(matrix.records.iter().copied()).collect();
        let mut out = poison::<f32>(6 * 40);
        kernels.linear_grouped(LinearQuant {
            rows: 6,
            n: 40,
            k: 130,
            x: &x,
            format: Grouped::W4,
            records: &shifted[1..],
            bias: None,
            out: LinearOut::StoreF32(&mut out),
        });
        assert_eq!(bits(&out), bits(&expected), "{variant:?}");
        let mut relu = poison::<bf16>(6 * 40);
        matrix.run(&kernels, &x, LinearOut::Relu(&mut relu));
        for (relu, sum) in relu.iter().zip(&expected) {
            assert_eq!(relu.to_bits(), bf16::from_f32(sum.max(0.0)).to_bits(), "{variant:?}");
        }
    }
}
