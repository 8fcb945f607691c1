//! Tests of linears against the scalar reference, and of the independence of rows across batch
//! sizes and kernels.

#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use common::{Random, assert_close, bits};
use cuda_kernels::{
    DeviceLinear, DeviceLinearOut, DevicePointer, DeviceWeight, decompress, epilogue, linear,
};
use cuda_shim::set_order;
use device::{Half, Output, dtype, of, run};
use kernels::quant::{decode_row, quantise};
use kernels::{Element, Variant, reference};
use model::quantized_format::{Bits, Grouped, ScaleLayout};

/// Tolerance relative to the rows' root mean square. Chains of 512 f32 sums; the last rounding is
/// counted separately.
const TOLERANCE: f64 = 1e-5;

/// `(rows, n, k)` around the edges of tiles, segments and rounds of segments.
const SHAPES: [(usize, usize, usize); 14] = [
    (1, 1, 1),
    (1, 16, 32),
    (3, 17, 33),
    (8, 40, 512),
    (9, 31, 520),
    (16, 33, 7),
    (17, 16, 1030),
    (32, 64, 96),
    (33, 130, 64),
    (33, 20, 63),
    (65, 129, 544),
    (129, 16, 40),
    (2, 16, 4200),
    (40, 16, 1032),
];

struct Operands<T> {
    shape: (usize, usize, usize),
    x: Vec<T>,
    weight: Vec<T>,
    bias: Vec<f32>,
}

fn operands<T: Element>(seed: u64, shape: (usize, usize, usize)) -> Operands<T> {
    let (rows, n, k) = shape;
    let mut random = Random::new(seed);
    let (x, weight) = (random.vector(rows * k), random.vector(n * k));
    Operands { shape, x, weight, bias: random.vector(n) }
}

impl<T: Element> Operands<T> {
    /// Returns the linear of the rows from `first` to the last.
    fn linear(
        &self,
        first: usize,
        rows: usize,
        weight: DeviceWeight,
        bias: bool,
        out: DeviceLinearOut,
    ) -> DeviceLinear {
        let (_, n, k) = self.shape;
        let x = of(&self.x[first * k..]);
        let bias = if bias { of(&self.bias) } else { 0 };
        DeviceLinear { rows: rows as u32, n: n as u32, k: k as u32, x, weight, bias, out }
    }

    fn plain(&self) -> DeviceWeight {
        DeviceWeight::Plain(of(&self.weight))
    }

    /// Returns results in f32, without bias.
    fn results(&self, weight: DeviceWeight) -> Vec<f32> {
        let (rows, n, _) = self.shape;
        let mut out = Output::<f32>::new(rows * n);
        let to = DeviceLinearOut::StoreF32(out.pointer());
        run(&[linear(dtype::<T>(), &self.linear(0, rows, weight, false, to))]);
        out.take()
    }

    fn context(&self) -> String {
        format!("{:?} {:?}", self.shape, dtype::<T>())
    }

    fn scale(&self) -> (usize, f64) {
        (self.shape.1, (self.shape.2 as f64).sqrt() / 2.0)
    }
}

fn matches_reference<T: Element>() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let operands = operands::<T>(seed as u64, shape);
        let (rows, n, k) = shape;
        let expected = reference::linear(rows, n, k, &operands.x, &operands.weight, None);
        let results = operands.results(operands.plain());
        assert_close(&results, &expected, operands.scale(), TOLERANCE, &operands.context());
    }
}

#[test]
fn plain_linears_match_the_reference() {
    for order in [0, 1, 4] {
        set_order(order);
        matches_reference::<Half>();
    }
    set_order(0);
    matches_reference::<f32>();
}

/// Enough rows for the widest tiles, which have the bits of the narrowest.
#[test]
fn the_widest_tiles_have_the_bits_of_the_narrowest() {
    let (rows, n, k) = (32_700, 3, 72);
    let operands = operands::<Half>(21, (rows, n, k));
    let all = operands.results(operands.plain());
    for first in [0, 120, 32_699] {
        let mut out = Output::<f32>::new(n);
        let to = DeviceLinearOut::StoreF32(out.pointer());
        let one = operands.linear(first, 1, operands.plain(), false, to);
        let all_rows = operands.linear(0, rows, operands.plain(), false, to);
        let names = [&one, &all_rows].map(|operands| linear(dtype::<Half>(), operands).name);
        assert_eq!(names, ["linear_small_8_bf16", "linear_wide_128_bf16"]);
        run(&[linear(dtype::<Half>(), &one)]);
        assert_eq!(bits(&out.take()), bits(&all[first * n..][..n]), "row {first}");
    }
}

/// Checks every epilogue, of the linear's own kernels and of sums computed elsewhere.
fn epilogues<T: Element>(shape: (usize, usize, usize)) {
    let (rows, n, k) = shape;
    let operands = operands::<T>(7, shape);
    let mut random = Random::new(8);
    let gate = random.vector::<T>(rows * n);
    let residual = random.vector::<f32>(rows * n);
    let sums = operands.results(operands.plain());
    let bias = Some(&operands.bias[..]);
    let expected = reference::linear(rows, n, k, &operands.x, &operands.weight, bias);
    type Form = fn(DevicePointer, DevicePointer) -> DeviceLinearOut;
    type Meaning = fn(f64, f64) -> f64;
    let forms: [(&str, Form, Meaning); 6] = [
        ("store", |out, _| DeviceLinearOut::Store(out), |sum, _| sum),
        ("relu", |out, _| DeviceLinearOut::Relu(out), |sum, _| sum.max(0.0)),
        ("gelu", |out, _| DeviceLinearOut::Gelu(out), |sum, _| reference::gelu(sum)),
        (
            "silu",
            |out, gate| DeviceLinearOut::SiluMul { gate, out },
            |sum, gate| reference::silu(gate) * sum,
        ),
        (
            "gelu by tanh",
            |out, gate| DeviceLinearOut::GeluTanhMul { gate, out },
            |sum, gate| reference::gelu_tanh(gate) * sum,
        ),
        (
            "clamped",
            |out, gate| DeviceLinearOut::ClampedSwiGlu { gate, out, alpha: 1.75, limit: 0.75 },
            |sum, gate| reference::clamped_swiglu(gate, sum, 1.75, 0.75),
        ),
    ];
    let dtype = dtype::<T>();
    for (name, form, reference) in forms {
        let values: Vec<f64> = expected
            .iter()
            .zip(&gate)
            .map(|(sum, gate)| reference(*sum, f64::from(gate.to_f32())))
            .collect();
        let mut own = Output::<T>::new(rows * n);
        let to = form(own.pointer(), of(&gate));
        run(&[linear(dtype, &operands.linear(0, rows, operands.plain(), true, to))]);
        let own = own.take();
        let context = format!("{name} {}", operands.context());
        assert_close(&own, &values, operands.scale(), TOLERANCE, &context);
        let mut apart = Output::<T>::new(rows * n);
        let to = form(apart.pointer(), of(&gate));
        run(&[epilogue(dtype, rows as u32, n as u32, of(&sums), of(&operands.bias), to)]);
        assert_eq!(bits(&apart.take()), bits(&own), "{context}");
    }
    let mut added = Output::holding(&residual);
    let to = DeviceLinearOut::AddTo(added.pointer());
    run(&[linear(dtype, &operands.linear(0, rows, operands.plain(), true, to))]);
    let values: Vec<f64> =
        expected.iter().zip(&residual).map(|(sum, old)| sum + f64::from(*old)).collect();
    let context = format!("residual {}", operands.context());
    assert_close(&added.take(), &values, operands.scale(), TOLERANCE, &context);
    scaled(&operands, &residual);
}

/// Checks that outputs with a factor have the bits of those without, times it.
fn scaled<T: Element>(operands: &Operands<T>, residual: &[f32]) {
    let (rows, n, _) = operands.shape;
    let factor = 0.22f32;
    let run_to =
        |to| run(&[linear(dtype::<T>(), &operands.linear(0, rows, operands.plain(), true, to))]);
    let mut stored = Output::<f32>::new(rows * n);
    run_to(DeviceLinearOut::StoreF32(stored.pointer()));
    let products: Vec<f32> = stored.take().iter().map(|sum| sum * factor).collect();
    let mut out = Output::<f32>::new(rows * n);
    run_to(DeviceLinearOut::StoreScaled { out: out.pointer(), factor });
    assert_eq!(bits(&out.take()), bits(&products), "{}", operands.context());
    let mut added = Output::holding(residual);
    run_to(DeviceLinearOut::AddScaled { out: added.pointer(), factor });
    let sums: Vec<f32> = residual.iter().zip(&products).map(|(old, sum)| old + sum).collect();
    assert_eq!(bits(&added.take()), bits(&sums), "{}", operands.context());
}

/// Limits on values do not hide NaN, in gate or sum.
#[test]
fn nan_is_not_hidden() {
    let sums = [f32::NAN, 1.0];
    let gate = [1.0, f32::NAN];
    for clamped in [false, true] {
        let mut out = Output::<f32>::new(2);
        let (gate, to) = (of(&gate), out.pointer());
        let to = match clamped {
            true => DeviceLinearOut::ClampedSwiGlu { gate, out: to, alpha: 1.7, limit: 7.0 },
            false => DeviceLinearOut::GeluTanhMul { gate, out: to },
        };
        run(&[epilogue(dtype::<f32>(), 1, 2, of(&sums), 0, to)]);
        assert!(out.take().iter().all(|value| value.is_nan()), "clamped {clamped}");
    }
}

#[test]
fn every_epilogue_matches_the_reference() {
    for shape in [(3, 20, 40), (40, 130, 72)] {
        epilogues::<Half>(shape);
        epilogues::<f32>(shape);
    }
}

/// Checks that a row alone has the bits that it has in batches of every kernel's size.
fn rows_are_independent<T: Element>(weight_of: impl Fn(&Operands<T>) -> (DeviceWeight, Vec<u8>)) {
    let (most, n, k) = (130, 24, 1064);
    let operands = operands::<T>(11, (most, n, k));
    let (weight, _records) = weight_of(&operands);
    let batch = |first: usize, rows: usize| {
        let mut out = Output::<f32>::new(rows * n);
        let to = DeviceLinearOut::StoreF32(out.pointer());
        run(&[linear(dtype::<T>(), &operands.linear(first, rows, weight, true, to))]);
        bits(&out.take())
    };
    let singles: Vec<Vec<u32>> = (0..most).map(|row| batch(row, 1)).collect();
    for (first, rows) in [(0, 130), (3, 65), (50, 64), (7, 33), (9, 32), (1, 17), (4, 9), (60, 8)] {
        for (row, bits) in batch(first, rows).chunks(n).enumerate() {
            assert_eq!(bits, singles[first + row], "row {row} of {rows}");
        }
    }
}

fn plain<T: Element>(operands: &Operands<T>) -> (DeviceWeight, Vec<u8>) {
    (operands.plain(), Vec::new())
}

#[test]
fn a_rows_bits_do_not_depend_on_the_batch() {
    rows_are_independent::<Half>(plain);
    rows_are_independent::<f32>(plain);
    for format in [Grouped::W4, Grouped::GGUF_Q4, Grouped::GGUF_Q8, Grouped::GGUF_Q6_K.widened()] {
        rows_are_independent::<Half>(|operands| grouped(operands, format));
    }
}

/// Returns the operands' weight in `format`.
fn grouped<T: Element>(operands: &Operands<T>, format: Grouped) -> (DeviceWeight, Vec<u8>) {
    let (_, n, k) = operands.shape;
    let narrow = match (format.scales, format.group) {
        (ScaleLayout::Floats, 16) => Grouped::GGUF_Q6_K,
        (ScaleLayout::Floats, _) => Grouped::GGUF_Q4_K,
        (_, group) => Grouped::halves(Bits::Four, group),
    };
    let mut records = vec![0; narrow.size_bytes(n, k)];
    quantise(Variant::Scalar, narrow, &operands.weight, k, &mut records);
    if format.bits == Bits::Eight {
        let mut wide = vec![0; format.size_bytes(n, k)];
        kernels::quant::widen(Variant::Scalar, narrow, k, &records, &mut wide);
        records = wide;
    }
    (DeviceWeight::Grouped(format, of(&records)), records)
}

fn grouped_linears<T: Element>() {
    let formats = [
        Grouped::W4,
        Grouped::GGUF_Q4,
        Grouped::GGUF_Q4_K.widened(),
        Grouped::GGUF_Q8,
        Grouped::W4.widened(),
        Grouped::GGUF_Q6_K.widened(),
    ];
    for (seed, shape) in (0..).zip(SHAPES.iter().flat_map(|shape| [shape; 2])) {
        let (shape, format) = (*shape, formats[seed % formats.len()]);
        let (rows, n, k) = shape;
        let mut operands = operands::<T>(seed as u64, shape);
        let (weight, records) = grouped(&operands, format);
        let straight = operands.results(weight);
        let mut wide = Output::<T>::new(n * k);
        let (columns, to) = (n as u32, wide.pointer());
        run(&[decompress(dtype::<T>(), format, columns, k as u32, of(&records), to)]);
        operands.weight = wide.take();
        let context = format!("{format:?} {}", operands.context());
        let mut row_values = vec![0.0; k];
        for (row, values) in operands.weight.chunks(k).enumerate() {
            decode_row(format, &records, k, row, &mut row_values);
            let expected: Vec<T> = row_values.iter().map(|value| T::from_f32(*value)).collect();
            assert_eq!(bits(values), bits(&expected), "{context}: weights of column {row}");
        }
        let expected = if size_of::<T>() == 2 {
            // The weights are not rounded.
            let mut exact = vec![0.0; n * k];
            for (row, values) in exact.chunks_mut(k).enumerate() {
                decode_row(format, &records, k, row, values);
            }
            let x: Vec<f32> = operands.x.iter().map(|x| x.to_f32()).collect();
            reference::linear(rows, n, k, &x, &exact, None)
        } else {
            let through = operands.results(operands.plain());
            assert_eq!(bits(&straight), bits(&through), "{context}: straight and decompressed");
            reference::linear(rows, n, k, &operands.x, &operands.weight, None)
        };
        assert_close(&straight, &expected, operands.scale(), TOLERANCE, &context);
        if format.bits == Bits::Four {
            let wide = format.widened();
            let mut widened = vec![0; wide.size_bytes(n, k)];
            kernels::quant::widen(Variant::Scalar, format, k, &records, &mut widened);
            let through = operands.results(DeviceWeight::Grouped(wide, of(&widened)));
            assert_eq!(bits(&straight), bits(&through), "{context}: straight and widened");
        }
    }
}

#[test]
fn grouped_linears_match_the_reference_and_those_over_decompressed_weights() {
    grouped_linears::<Half>();
    grouped_linears::<f32>();
}
