//! Tests of linears of heads: the bits of an ordinary linear of each head and its matrix, whatever
//! the number of rows, heads and threads; and the norm of the last elements of rows.

use crate::common::records::random_records;
use crate::common::{Random, bits, kernels, poison, variants};
use half::bf16;
use kernels::{
    Element, ExpertWeight, HeadLinear, HeadSpan, Kernels, Linear, LinearOut, LinearQuant, Variant,
};
use model::quantized_format::WeightFormat;

/// Rows, heads, outputs and inputs of a head.
const SHAPES: [(usize, usize, usize, usize); 6] = [
    (1, 1, 16, 12),
    (1, 5, 48, 64),
    (3, 4, 20, 24),
    (17, 2, 112, 130),
    (70, 3, 64, 40),
    // More rows than are packed at a time.
    (300, 2, 32, 64),
];

/// Matrices of all heads in a format, plain or as records of one head after the other.
struct Matrices<T> {
    plain: Vec<T>,
    records: Vec<u8>,
}

fn check<T: Element>(variant: Variant, format: WeightFormat, seed: u64) {
    for threads in [1, 3] {
        let kernels = kernels(variant, threads).with_head_linears(130);
        for shape in SHAPES {
            let mut random = Random::new(seed);
            check_shape::<T>(&kernels, &mut random, format, shape);
        }
    }
}

fn check_shape<T: Element>(
    kernels: &Kernels,
    random: &mut Random,
    format: WeightFormat,
    (rows, heads, n, k): (usize, usize, usize, usize),
) {
    let mut matrices = Matrices { plain: Vec::new(), records: Vec::new() };
    match format {
        WeightFormat::Plain => matrices.plain = random.vector(heads * n * k),
        // Records of a head are whole blocks of rows.
        WeightFormat::Grouped(_) if !n.is_multiple_of(16) => return,
        WeightFormat::Grouped(format) => {
            for _ in 0..heads {
                matrices.records.extend(random_records(random, format, n, k));
            }
        }
    }
    let x_span = HeadSpan { width: k + 7, first: 3 };
    let out_span = HeadSpan { width: n + 5, first: 5 };
    let x: Vec<T> = random.vector(rows * heads * x_span.width);
    let mut out = poison::<T>(rows * heads * out_span.width);
    let untouched = out.clone();
    let weight = match format {
        WeightFormat::Plain => ExpertWeight::Plain(&matrices.plain),
        WeightFormat::Grouped(format) => ExpertWeight::Grouped(format, &matrices.records),
    };
    let linear = HeadLinear { rows, heads, n, k, x: &x, x_span, weight, out: &mut out, out_span };
    kernels.head_linear(linear);
    for head in 0..heads {
        let at = |row: usize, width: usize| (row * heads + head) * width;
        let head_rows: Vec<T> = (0..rows)
            .flat_map(|row| x[at(row, x_span.width) + x_span.first..][..k].to_vec())
            .collect();
        let mut expected = poison::<T>(rows * n);
        let store = LinearOut::Store(&mut expected);
        match format {
            WeightFormat::Plain => {
                let weight = &matrices.plain[head * n * k..][..n * k];
                kernels.linear(Linear {
                    rows,
                    n,
                    k,
                    x: &head_rows,
                    weight,
                    bias: None,
                    out: store,
                });
            }
            WeightFormat::Grouped(format) => {
                let len = format.size_bytes(n, k);
                let records = &matrices.records[head * len..][..len];
                let (x, bias, out) = (&head_rows[..], None, store);
                kernels.linear_grouped(LinearQuant { rows, n, k, x, format, records, bias, out });
            }
        }
        for row in 0..rows {
            let first = at(row, out_span.width);
            let (before, after) = out[first..][..out_span.width].split_at(out_span.first);
            let context = format!("{format:?}, {rows}x{heads} {n}x{k}: row {row} head {head}");
            assert_eq!(bits(after), bits(&expected[row * n..][..n]), "{context}");
            assert_eq!(bits(before), bits(&untouched[first..][..out_span.first]), "{context}");
        }
    }
}

#[test]
fn heads_have_the_bits_of_ordinary_linears() {
    for variant in variants("head_linear") {
        check::<f32>(variant, WeightFormat::Plain, 1);
        check::<bf16>(variant, WeightFormat::Plain, 2);
        for (format, seed) in crate::common::records::formats().into_iter().zip(3..) {
            check::<f32>(variant, WeightFormat::Grouped(format), seed);
            check::<bf16>(variant, WeightFormat::Grouped(format), seed);
        }
    }
}

#[test]
fn the_norm_of_a_tail_is_that_of_a_row_of_its_width() {
    for variant in variants("head_linear") {
        let kernels = kernels(variant, 2);
        let mut random = Random::new(9);
        let (rows, width, tail) = (11, 40, 24);
        let gain: Vec<f32> = random.vector(tail);
        let x: Vec<bf16> = random.vector(rows * width);
        let mut found = x.clone();
        let span = HeadSpan { width, first: width - gain.len() };
        kernels.span_norm(rows, span, &gain, 1e-6, &mut found);
        for row in 0..rows {
            let (before, after) = x[row * width..][..width].split_at(width - tail);
            let mut expected = after.to_vec();
            kernels.head_norm(1, 1, &gain, 1e-6, &mut expected);
            let (kept, normed) = found[row * width..][..width].split_at(width - tail);
            assert_eq!((bits(kept), bits(normed)), (bits(before), bits(&expected)), "row {row}");
        }
    }
}
