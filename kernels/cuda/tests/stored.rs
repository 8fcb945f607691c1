//! Tests of linears over stored records: they have the bits of linears over the same records
//! expanded to 8 bits, in every number of rows, and match the reference.

#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use common::records::random_records;
use common::{Random, assert_close, bits};
use cuda_kernels::{
    DeviceLinear, DeviceLinearOut, DeviceWeight, decompress, linear, multiplies_stored, widen,
};
use cuda_shim::set_order;
use device::{Half, Output, dtype, of, of_mut, run};
use kernels::quant::decode_row;
use kernels::{Element, reference};
use model::quantized_format::Grouped;

/// Maximum number of rows of a block.
const ROWS: usize = 64;

fn formats() -> Vec<Grouped> {
    let found: Vec<Grouped> =
        Grouped::STORED.into_iter().filter(|format| multiplies_stored(*format)).collect();
    assert_eq!(found.len(), 8);
    found
}

struct Matrix {
    format: Grouped,
    n: usize,
    k: usize,
    records: Vec<u8>,
    /// The same weights, which the kernel has expanded to 8 bits.
    wide: Vec<u8>,
}

impl Matrix {
    fn random(random: &mut Random, format: Grouped, n: usize, k: usize) -> Matrix {
        let mut records = random_records(random, format, n, k);
        if format == Grouped::GGUF_MXFP4 {
            // Powers of two near those of models.
            let record = format.record_bytes();
            for exponents in records.chunks_mut(record).map(|record| &mut record[..64]) {
                exponents.iter_mut().for_each(|byte| *byte = (*byte % 8).wrapping_sub(8));
            }
        }
        // On a boundary as a device has it.
        let mut wide = vec![0; format.widened().size_bytes(n, k)];
        run(&[widen(format, n as u32, k as u32, of(&records), of_mut(&mut wide))]);
        Matrix { format, n, k, records, wide }
    }

    fn multiplied<T: Element>(&self, x: &[T], is_stored: bool) -> Vec<f32> {
        let (rows, n) = (x.len() / self.k, self.n);
        let weight = if is_stored {
            DeviceWeight::Grouped(self.format, of(&self.records))
        } else {
            DeviceWeight::Grouped(self.format.widened(), of(&self.wide))
        };
        let mut out = Output::<f32>::new(rows * n);
        let to = DeviceLinearOut::StoreF32(out.pointer());
        let (n, k) = (n as u32, self.k as u32);
        let operands = DeviceLinear { rows: rows as u32, n, k, x: of(x), weight, bias: 0, out: to };
        run(&[linear(dtype::<T>(), &operands)]);
        out.take()
    }

    fn context(&self) -> String {
        format!("{:?} {} x {}", self.format, self.n, self.k)
    }
}

#[test]
fn every_number_of_rows_has_the_bits_of_records_of_eight_bits() {
    let mut random = Random::new(1);
    for format in formats() {
        let matrix = Matrix::random(&mut random, format, 20, 1056);
        let x = random.vector::<Half>(ROWS * matrix.k);
        let expected = bits(&matrix.multiplied(&x, false));
        for rows in 1..=ROWS {
            set_order(rows as u32 % 5);
            let found = matrix.multiplied(&x[..rows * matrix.k], true);
            assert!(bits(&found) == expected[..rows * 20], "{} {rows}", matrix.context());
        }
        set_order(0);
    }
}

/// `(rows, n, k)` around the edges of tiles, spans, segments and rounds of segments.
const SHAPES: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (1, 16, 32),
    (3, 17, 33),
    (8, 40, 256),
    (9, 31, 264),
    (16, 33, 7),
    (17, 16, 1030),
    (2, 64, 512),
    (33, 70, 768),
    (65, 20, 776),
    (130, 33, 64),
    (5, 16, 4352),
    (40, 16, 3600),
];

#[test]
fn odd_shapes_have_the_bits_of_records_of_eight_bits_and_match_the_reference() {
    let mut random = Random::new(2);
    for (shape, format) in
        SHAPES.iter().flat_map(|shape| formats().into_iter().map(move |f| (shape, f)))
    {
        let (rows, n, k) = *shape;
        let matrix = Matrix::random(&mut random, format, n, k);
        let x = random.vector::<Half>(rows * k);
        let found = matrix.multiplied(&x, true);
        let context = format!("{rows} rows of {}", matrix.context());
        assert_eq!(bits(&found), bits(&matrix.multiplied(&x, false)), "{context}");
        let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let weight = decoded(&matrix);
        let expected = reference::linear(rows, n, k, &x, &weight, None);
        let largest = weight.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let scale = (k as f64).sqrt() * f64::from(largest);
        assert_close(&found, &expected, (n, scale), 1e-5, &context);
    }
}

fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.n * matrix.k];
    for (row, values) in values.chunks_mut(matrix.k).enumerate() {
        decode_row(matrix.format, &matrix.records, matrix.k, row, values);
    }
    values
}

#[test]
fn in_f32_and_decompressed_they_have_the_bits_of_records_of_eight_bits() {
    let mut random = Random::new(3);
    for (format, (n, k)) in formats().into_iter().flat_map(|f| [(f, (33, 520)), (f, (5, 33))]) {
        let matrix = Matrix::random(&mut random, format, n, k);
        let x = random.vector::<f32>(3 * k);
        let context = matrix.context();
        let found = matrix.multiplied(&x, true);
        assert_eq!(bits(&found), bits(&matrix.multiplied(&x, false)), "{context}");
        decompressed::<f32>(&matrix);
        decompressed::<Half>(&matrix);
    }
}

fn decompressed<T: Element + bytemuck::Pod>(matrix: &Matrix) {
    let Matrix { format, n, k, .. } = *matrix;
    let mut out = Output::<T>::new(n * k);
    let (columns, inputs, to) = (n as u32, k as u32, out.pointer());
    run(&[decompress(dtype::<T>(), format, columns, inputs, of(&matrix.records), to)]);
    let expected: Vec<T> = decoded(matrix).into_iter().map(T::from_f32).collect();
    assert_eq!(bits(&out.take()), bits(&expected), "{}", matrix.context());
}

/// Bits of a weight in files.
fn bits_in_file(format: Grouped) -> f64 {
    match format {
        Grouped::GGUF_Q4_K | Grouped::GGUF_IQ4_NL => 4.5,
        Grouped::GGUF_Q5_K | Grouped::GGUF_Q5_0 => 5.5,
        Grouped::GGUF_Q6_K => 6.5625,
        Grouped::GGUF_Q5_1 => 6.0,
        _ => 4.25,
    }
}

/// Returns the bytes of weights that a linear reads, and those of the weights in a file.
fn traffic(matrix: &Matrix, rows: usize) -> (f64, f64) {
    let x = vec![Half::from_f32(0.5); rows * matrix.k];
    let read_bytes = cuda_shim::bytes_read(&matrix.records, || {
        matrix.multiplied(&x, true);
    });
    let weights = (matrix.n * matrix.k) as f64;
    (read_bytes as f64, weights * bits_in_file(matrix.format) / 8.0)
}

/// Counts what all matrices of a layer and a head of a file of type Q4_K_M, resident on a device,
/// are read in a step. Nothing is expanded before: `program::formats` has no other format for them.
#[test]
fn a_step_reads_at_most_a_tenth_more_than_the_file_has() {
    let (hidden, kv, ffn, vocabulary) = (256, 64, 768, 320);
    let (q4_k, q6_k) = (Grouped::GGUF_Q4_K, Grouped::GGUF_Q6_K);
    let mut random = Random::new(4);
    let matrices = [
        (q4_k, hidden, hidden),
        (q4_k, kv, hidden),
        (q6_k, kv, hidden),
        (q4_k, hidden, hidden),
        (q4_k, ffn, hidden),
        (q4_k, ffn, hidden),
        (q6_k, hidden, ffn),
        (q6_k, vocabulary, hidden),
    ];
    let matrices = matrices.map(|(format, n, k)| Matrix::random(&mut random, format, n, k));
    for rows in [1, 8, 16, 32, 64] {
        let each = matrices.iter().map(|matrix| traffic(matrix, rows));
        let (read, stored) = each.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
        let share = read / stored;
        assert!((1.0..=1.1).contains(&share), "{rows} rows: {share}");
    }
}

#[test]
fn every_record_is_read_once() {
    let mut random = Random::new(5);
    for format in formats() {
        let matrix = Matrix::random(&mut random, format, 48, 1024);
        for rows in [1, 16, 32, 64] {
            let (read, stored) = traffic(&matrix, rows);
            // The last block has 32 columns of which it reads sixteen twice, from a cache. Records
            // need not begin where sectors do.
            let share = read / matrix.records.len() as f64;
            assert!((0.99..=1.02).contains(&share), "{rows} rows of {}: {share}", matrix.context());
            assert!(matrix.records.len() as f64 / stored <= 1.1, "{}", matrix.context());
        }
    }
}
