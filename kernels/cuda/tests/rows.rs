//! Tests of operations on rows against the scalar reference, over awkward shapes, with outputs
//! initialised to NaN.

#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use common::{Random, assert_close, bits};
use cuda_kernels::{
    DeviceNorm, DeviceRopeTables, add_rms_norm, argmax, embed, embed_grouped, head_norm, norm, rope,
};
use cuda_shim::set_order;
use device::{Half, Output, dtype, of, of_mut, run};
use kernels::quant::{decode_row, quantise};
use kernels::{Element, SampleDraw, SampleScratch, Variant, reference, sample};
use model::quantized_format::Grouped;

/// Rounding error of sums of this length in f32.
const TOLERANCE: f64 = 2e-6;

fn embeds<T: Element>() {
    let mut random = Random::new(1);
    for (rows, hidden) in [(1, 1), (3, 33), (5, 64), (2, 700)] {
        let (vocab, places) = (11, 9);
        let table = random.vector::<T>(vocab * hidden);
        let learned = random.vector::<T>(places * hidden);
        let tokens: Vec<u32> = (0..rows).map(|_| random.below(vocab) as u32).collect();
        let positions: Vec<u32> = (0..rows).map(|_| random.below(places - 2) as u32).collect();
        for with_positions in [false, true] {
            let mut out = Output::<f32>::new(rows * hidden);
            let extra = with_positions.then(|| (of(&positions), of(&learned), 2));
            let (count, width, to) = (rows as u32, hidden as u32, out.pointer());
            run(&[embed(dtype::<T>(), count, width, of(&tokens), of(&table), extra, to)]);
            for (at, out) in out.take().into_iter().enumerate() {
                let (row, i) = (at / hidden, at % hidden);
                let mut expected = table[tokens[row] as usize * hidden + i].to_f32();
                if with_positions {
                    expected += learned[(positions[row] as usize + 2) * hidden + i].to_f32();
                }
                assert_eq!(out.to_bits(), expected.to_bits(), "row {row} element {i}");
            }
        }
    }
}

#[test]
fn embedding_gathers_rows() {
    embeds::<Half>();
    embeds::<f32>();
}

#[test]
fn embedding_decodes_rows_of_a_grouped_table() {
    let mut random = Random::new(2);
    for (format, hidden) in [(Grouped::W4, 64), (Grouped::W4, 100), (Grouped::GGUF_Q4, 33)] {
        let table = random.vector::<f32>(40 * hidden);
        let mut records = vec![0; format.size_bytes(40, hidden)];
        quantise(Variant::Scalar, format, &table, hidden, &mut records);
        let tokens = [39u32, 0, 17];
        let mut out = Output::<f32>::new(3 * hidden);
        let (width, to) = (hidden as u32, out.pointer());
        run(&[embed_grouped(3, width, format, of(&tokens), of(&records), to)]);
        let mut expected = vec![0.0; 3 * hidden];
        for (out, token) in expected.chunks_mut(hidden).zip(tokens) {
            decode_row(format, &records, hidden, token as usize, out);
        }
        assert_eq!(bits(&out.take()), bits(&expected), "{format:?} hidden {hidden}");
    }
}

fn norms<T: Element>(with_bias: bool) {
    let mut random = Random::new(3);
    for (rows, hidden, indexed) in [(1, 1, false), (3, 7, true), (2, 64, false), (4, 1000, true)] {
        let x = random.vector::<f32>((rows + 3) * hidden);
        let (gain, bias) = (random.vector::<f32>(hidden), random.vector::<f32>(hidden));
        let index: Vec<u32> = (0..rows).map(|_| random.below(rows + 3) as u32).collect();
        let chosen = if indexed { of(&index) } else { 0 };
        let mut out = Output::<T>::new(rows * hidden);
        let eps = 1e-5;
        let operands = DeviceNorm {
            rows: rows as u32,
            hidden: hidden as u32,
            x: of(&x),
            gain: of(&gain),
            bias: if with_bias { of(&bias) } else { 0 },
            eps,
            row_index: chosen,
        };
        run(&[norm(dtype::<T>(), &operands, out.pointer())]);
        let mut expected = Vec::new();
        for (row, picked) in index.iter().enumerate() {
            let from = if indexed { *picked as usize } else { row };
            let x = &x[from * hidden..][..hidden];
            expected.extend(if with_bias {
                reference::layer_norm(x, &gain, &bias, f64::from(eps))
            } else {
                reference::rms_norm(x, &gain, f64::from(eps))
            });
        }
        let context = format!("rows {rows} hidden {hidden} bias {with_bias}");
        assert_close(&out.take(), &expected, (hidden, 1.0), TOLERANCE, &context);
    }
}

#[test]
fn norms_match_the_reference() {
    for order in [0, 1, 5] {
        set_order(order);
        norms::<Half>(false);
        norms::<f32>(false);
        norms::<Half>(true);
        norms::<f32>(true);
    }
}

/// `(rows, heads, head_dim, rotary_dim, tables)`.
const ROPE_SHAPES: [(usize, usize, usize, usize, usize); 8] = [
    (1, 1, 2, 2, 1),
    (3, 5, 6, 6, 1),
    (2, 9, 64, 64, 1),
    (2, 3, 128, 128, 2),
    (1, 2, 512, 512, 1),
    (5, 3, 80, 32, 3),
    (4, 7, 128, 96, 2),
    (3, 2, 600, 512, 1),
];

fn ropes<T: Element>() {
    let mut random = Random::new(4);
    for (rows, heads, head_dim, rotary_dim, count) in ROPE_SHAPES {
        let x = random.vector::<T>(rows * heads * head_dim);
        let half = rotary_dim / 2;
        let frequencies: Vec<f32> = (0..count * half)
            .map(|i| 10_000f32.powf(-((i % half) as f32) / half as f32) / (1 + i / half) as f32)
            .collect();
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        let table_of_row: Vec<u32> = (0..rows).map(|_| random.below(count) as u32).collect();
        let tables = DeviceRopeTables {
            inverse_frequencies: of(&frequencies),
            rotary_dim: rotary_dim as u32,
            attention_factor: if rotary_dim == head_dim { 1.0 } else { 1.19 },
            table_of_row: if count > 1 { of(&table_of_row) } else { 0 },
        };
        let mut out = Output::holding(&x);
        let (count, width, to) = (rows as u32, head_dim as u32, out.pointer());
        let at = of(&positions);
        run(&[rope(dtype::<T>(), count, heads as u32, width, at, &tables, to)]);
        let out = out.take();
        let mut expected = Vec::new();
        for (row, x) in x.chunks(heads * head_dim).enumerate() {
            let own = &frequencies[table_of_row[row] as usize * half..][..half];
            for head in x.chunks(head_dim) {
                let head: Vec<f64> = head.iter().map(|value| f64::from(value.to_f32())).collect();
                let factor = f64::from(tables.attention_factor);
                expected.extend(reference::rope(&head, positions[row], own, factor));
            }
        }
        let context = format!("rows {rows} heads {heads} head_dim {head_dim} of {rotary_dim}");
        assert_close(&out, &expected, (head_dim, 1.0), TOLERANCE, &context);
        for (head, old) in out.chunks(head_dim).zip(x.chunks(head_dim)) {
            assert_eq!(bits(&head[rotary_dim..]), bits(&old[rotary_dim..]), "{context}");
        }
    }
}

#[test]
fn rope_matches_the_reference() {
    ropes::<Half>();
    ropes::<f32>();
}

/// Widths of a warp and of a block, and rows that do not fill a block.
fn norms_of_rows<T: Element>() {
    let mut random = Random::new(6);
    for (rows, heads, width) in
        [(1, 1, 1), (3, 5, 6), (2, 9, 64), (5, 2, 128), (1, 2, 512), (3, 1, 513), (2, 1, 2000)]
    {
        let x = random.vector::<T>(rows * heads * width);
        let (gain, residual): (Vec<f32>, Vec<f32>) =
            (random.vector(width), random.vector(rows * heads * width));
        let (eps, gained, dtype) = (1e-6, of(&gain), dtype::<T>());
        let (row_count, head_count, elements) = (rows as u32, heads as u32, width as u32);
        let mut normed = Output::holding(&x);
        let to = normed.pointer();
        run(&[head_norm(dtype, row_count, head_count, elements, gained, eps, to)]);
        let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
        let expected: Vec<f64> = wide
            .chunks(width)
            .flat_map(|row| reference::rms_norm(row, &gain, f64::from(eps)))
            .collect();
        let context = format!("rows {rows} heads {heads} width {width}");
        let normed = normed.take();
        assert_close(&normed, &expected, (width, 1.0), TOLERANCE, &context);
        // A head alone.
        let last = (rows * heads - 1) * width;
        let mut alone = Output::holding(&x[last..]);
        run(&[head_norm(dtype, 1, 1, elements, gained, eps, alone.pointer())]);
        assert_eq!(bits(&alone.take()), bits(&normed[last..]), "{context}");

        let mut added = Output::holding(&residual);
        let count = row_count * head_count;
        run(&[add_rms_norm(dtype, count, elements, of(&x), gained, eps, added.pointer())]);
        let sums: Vec<f64> =
            expected.iter().zip(&residual).map(|(norm, old)| norm + f64::from(*old)).collect();
        let added = added.take();
        assert_close(&added, &sums, (width, 1.0), TOLERANCE, &context);
        let mut alone = Output::holding(&residual[last..]);
        run(&[add_rms_norm(dtype, 1, elements, of(&x[last..]), gained, eps, alone.pointer())]);
        assert_eq!(bits(&alone.take()), bits(&added[last..]), "{context}");
    }
}

#[test]
fn norms_in_place_and_added_match_the_reference() {
    for order in [0, 1, 5] {
        set_order(order);
        norms_of_rows::<Half>();
        norms_of_rows::<f32>();
    }
}

#[test]
fn argmax_is_the_greedy_token_of_the_cpu() {
    let mut random = Random::new(5);
    let nan = f32::NAN;
    let mut rows = vec![
        vec![nan; 300],
        vec![f32::NEG_INFINITY; 300],
        [vec![nan; 7], vec![f32::NEG_INFINITY; 293]].concat(),
        [vec![nan; 299], vec![-5.0]].concat(),
        [vec![1.0; 300]].concat(),
        [vec![2.0; 150], vec![f32::INFINITY], vec![nan; 149]].concat(),
    ];
    for _ in 0..20 {
        // Few distinct values, so that there are ties.
        let mut row: Vec<f32> = (0..300).map(|_| random.below(40) as f32 - 20.0).collect();
        row[random.below(300)] = nan;
        rows.push(row);
    }
    let logits = rows.concat();
    let mut tokens = vec![0; rows.len()];
    let mut scratch = SampleScratch::new(300);
    for order in 0..6 {
        set_order(order);
        run(&[argmax(rows.len() as u32, 300, of(&logits), of_mut(&mut tokens))]);
        let greedy = |row: &Vec<f32>| sample(row, SampleDraw::GREEDY, &mut scratch);
        let expected: Vec<u32> = rows.iter().map(greedy).collect();
        assert_eq!(tokens, expected, "order {order}");
    }
}
